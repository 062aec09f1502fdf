"""Matrix Market, by scipy's reader: compiled, fed from a stream, expands symmetry, names the line of a mistake."""

from __future__ import annotations

import numpy as np

from gridml.placement.bipartite import MOST, Bipartite
from gridml.placement.files.source import Source


def read(source: Source) -> Bipartite:
    """Read a matrix of coordinates; every entry is an edge, whatever its value. Raises UsageError, which names the
    line, for what is none, and for one that is as dense as an array."""
    from scipy.io import mmread

    with source.opened() as reader:
        try:
            matrix = mmread(reader)
        except (ValueError, OverflowError) as error:
            said = str(error).rstrip(".")
            place = said[:1].lower() + said[1:] if said.startswith("Line ") else f"line {reader.lines:,}: {said}"
            raise source.wrong(f"{place}; expected a Matrix Market file of coordinates") from error
        except MemoryError as error:
            raise source.wrong(f"{error}; expected as many entries as fit into memory") from error
    if isinstance(matrix, np.ndarray):
        raise source.wrong("is a dense array; expected a matrix of coordinates", 1)
    if max(matrix.shape) > MOST:
        raise source.wrong(f"has {matrix.shape[0]:,} rows and {matrix.shape[1]:,} columns; expected up to {MOST:,}")
    return Bipartite.from_edges(matrix.row, matrix.col, matrix.shape)

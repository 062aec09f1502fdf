"""The formats of graph files by name, and files of weights.

A new format is a file and a line here. Weights of rows or columns are arrays in files of numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.bipartite import BIPARTITE, VERTICES, Bipartite, Numbered, as_bipartite
from gridml.placement.files import array_formats, text_formats
from gridml.placement.files.source import GraphSource, Watch, unwatched


@dataclass(frozen=True)
class Format:
    """A graph file format."""

    name: str
    endings: tuple[str, ...]  #: of file names that select this format, also before one of `COMPRESSED_SUFFIXES`
    read: Callable[[GraphSource], Bipartite]
    pieces: Callable[[GraphSource], Iterator[Bipartite]] | None = None  #: reads in pieces; None: only as a whole


COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma")
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("libsvm", (".svm", ".libsvm", ".svmlight"), text_formats.read_libsvm, text_formats.pieces),
        Format("matrix-market", (".mtx", ".mm"), text_formats.read_matrix_market),
        Format("edges", (".edges", ".tsv", ".csv", ".txt", ".el"), text_formats.read_edge_list),
        Format("hmetis", (".hgr",), text_formats.read_hmetis),
        Format("npz", (".npz",), array_formats.read_npz),
        Format("csr-folder", (".csr",), array_formats.read_csr_folder),
    )
}


def find(name: str) -> Format:
    """Return a format. Raises UsageError for a name that none has."""
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}; expected {', '.join(FORMATS)}.")
    return FORMATS[name]


def format_of(file: Path) -> Format:
    """Return the format that a file's name says. Raises UsageError where it says none."""
    if file.is_dir():
        return FORMATS["csr-folder"]
    name = file.name.lower()
    for ending in COMPRESSED_SUFFIXES:
        name = name.removesuffix(ending)
    for form in FORMATS.values():
        if name.endswith(form.endings):
            return form
    if file.is_file():
        GraphSource(file).check_text()
    formats = ", ".join(f"{form.name} ({' '.join(form.endings)})" for form in FORMATS.values())
    raise UsageError(f"{file}: its name says no format; expected one of {formats}, or say it: --format libsvm.")


def read(file: Path, format_name: str | None = None, watch: Watch = unwatched) -> Bipartite:
    """Read the graph in a file; its name says the format, unless that is given.

    Raises UsageError where the file cannot be read, holds something else, or nothing.
    """
    return read_numbered(file, format_name, watch).graph


def read_numbered(
    file: Path, format_name: str | None = None, watch: Watch = unwatched, *, kind: str = BIPARTITE
) -> Numbered:
    """As `read`, with the numbers that rows and columns have in the file. Of a general graph the rows are of a `kind`
    (`general.KINDS`): its vertices, edges or cliques."""
    form = format_of(file) if format_name is None else find(format_name)
    source = GraphSource(file, watch)
    try:
        if kind != BIPARTITE and form.name == "hmetis":
            raise source.wrong(f"is a hypergraph, which is bipartite; expected a graph for rows as {kind}")
        if form.name == "edges":
            given = text_formats.read_numbered(source, general=kind != BIPARTITE)
        else:
            given = Numbered(form.read(source))
        graph = given.graph
        if not graph.edges:
            raise _without_edges(source, graph.rows, form.name)
        return Numbered(as_bipartite(graph, kind), given.rows if kind in (BIPARTITE, VERTICES) else None, given.columns)
    except UsageError as error:
        if str(file) in str(error):
            raise
        raise source.wrong(str(error)) from error


def store(file: Path, folder: Path, format_name: str | None = None, watch: Watch = unwatched) -> None:
    """Write the graph in a file to a folder (`csr_folder`), in which it can stay as it is placed. A libsvm file is not
    read into memory for this, either.

    Raises UsageError as `read` does, and where there is such a folder already; StorageError where it cannot be written.
    """
    array_formats.check_new(folder)
    form = format_of(file) if format_name is None else find(format_name)
    if form.pieces is None:
        array_formats.write(folder, (piece for _, piece in read(file, form.name, watch).pieces()))
    else:
        source = GraphSource(file, watch)
        array_formats.write(folder, _with_edges(form.pieces(source), source, form.name))


def _with_edges(pieces: Iterable[Bipartite], source: GraphSource, form: str) -> Iterator[Bipartite]:
    """The pieces of a graph as they are. Raises UsageError after the last one, if none of them has an edge."""
    rows = edges = 0
    for piece in pieces:
        rows, edges = rows + piece.rows, edges + piece.edges
        yield piece
    if not edges:
        raise _without_edges(source, rows, form)


def _without_edges(source: GraphSource, rows: int, form: str) -> UsageError:
    return source.wrong(
        f"holds {rows:,} rows and no edges; expected rows that touch columns, in the format {form}. Look whether it is "
        "the right file, or say which format it has: --format."
    )


def read_weights(path: Path) -> NDArray[Any]:
    """Read an array from a .npy. Raises UsageError where there is none; what is in it is for `Bipartite.weighted`."""
    try:
        weights = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}. Name a .npy of weights.") from error
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is no .npy of numbers, or not all of one. Write it with numpy.save.") from error
    if not isinstance(weights, np.ndarray):
        raise UsageError(f"{path} holds several arrays; expected a .npy of one, as numpy.save writes it.")
    return weights

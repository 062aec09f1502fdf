"""The registry of graph file formats, and a reader of weights.

To add a format, add its module, and an entry in `FORMATS`. Weights of rows or columns are read from numpy's .npy.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gridml.errors import UsageError
from gridml.placement.bipartite import BIPARTITE, VERTICES, Bipartite, Numbered, as_bipartite
from gridml.placement.files import array_formats, text_formats
from gridml.placement.files.source import GraphSource, Watch, unwatched


@dataclass(frozen=True)
class Format:
    """A graph file format."""

    name: str
    endings: tuple[str, ...]  #: file name endings that select this format; one of `COMPRESSED_SUFFIXES` may follow
    read: Callable[[GraphSource], Bipartite]
    pieces: Callable[[GraphSource], Iterator[Bipartite]] | None = None  #: reads a graph in pieces; None: not supported


COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma")
#: Formats by name. The first one whose endings match a file is taken.
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
    """Return a format by name. Raises UsageError for an unknown name."""
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}; expected {', '.join(FORMATS)}.")
    return FORMATS[name]


def format_of(file: Path) -> Format:
    """Return the format of a file by the ending of its name; a folder is a csr-folder. Raises UsageError for an unknown
    ending."""
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
    raise UsageError(
        f"{file}: the ending of its name is no known format; expected one of {formats}, or --format, such as "
        "--format libsvm."
    )


def read(file: Path, format_name: str | None = None, watch: Watch = unwatched) -> Bipartite:
    """Read the graph in a file, in the given format. Without one, the ending of the file's name determines it.

    Raises UsageError if the file cannot be read, is not in this format, or has no edges.
    """
    return read_numbered(file, format_name, watch).graph


def read_numbered(
    file: Path, format_name: str | None = None, watch: Watch = unwatched, *, kind: str = BIPARTITE
) -> Numbered:
    """Like `read`, but return also the numbers that rows and columns have in the file. `kind` is one of
    `bipartite.KINDS`; for a general graph, it selects vertices, edges or cliques as rows."""
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
    """Convert the graph in a file to a csr-folder, which can be placed even if it is larger than memory. A libsvm file
    is converted in pieces, so it need not fit into memory here either; files of other formats must.

    Raises UsageError like `read`, and if the folder exists; StorageError if the folder cannot be written.
    """
    array_formats.check_new(folder)
    form = format_of(file) if format_name is None else find(format_name)
    if form.pieces is None:
        array_formats.write(folder, (piece for _, piece in read(file, form.name, watch).pieces()))
    else:
        source = GraphSource(file, watch)
        array_formats.write(folder, _with_edges(form.pieces(source), source, form.name))


def _with_edges(pieces: Iterable[Bipartite], source: GraphSource, form: str) -> Iterator[Bipartite]:
    """Yield the pieces of a graph unchanged. Raises UsageError after the last one if there was no edge."""
    rows = edges = 0
    for piece in pieces:
        rows, edges = rows + piece.rows, edges + piece.edges
        yield piece
    if not edges:
        raise _without_edges(source, rows, form)


def _without_edges(source: GraphSource, rows: int, form: str) -> UsageError:
    return source.wrong(
        f"holds {rows:,} rows and no edges; expected rows that touch columns, in the format {form}. Check that it is "
        "the right file, or give its format by --format."
    )


def read_weights(path: Path) -> NDArray[Any]:
    """Read an array from a .npy. Raises UsageError for other files; `Bipartite.weighted` checks the values."""
    try:
        if zipfile.is_zipfile(path):
            raise UsageError(f"{path} holds several arrays; expected a .npy of one, as numpy.save writes it.")
        with path.open("rb") as file:
            return array_formats.read_array(file, path.stat().st_size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}. Name a .npy of weights.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no .npy of numbers, or its end is missing. Write it with numpy.save.") from error

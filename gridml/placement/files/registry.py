"""The formats by name: a new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gridml.errors import UsageError
from gridml.placement.bipartite import Bipartite
from gridml.placement.files import csr_folder, edge_list, hmetis, libsvm, matrix_market, npz
from gridml.placement.files.numbered import Numbered
from gridml.placement.files.source import Source, Watch, unwatched
from gridml.placement.general import BIPARTITE, VERTICES, as_bipartite


@dataclass(frozen=True)
class Format:
    """A file whose name ends in one of `endings`, with or without one of `PACKED`, is taken to have this format. One
    that has `pieces` can be read piece by piece."""

    name: str
    endings: tuple[str, ...]
    read: Callable[[Source], Bipartite]
    pieces: Callable[[Source], Iterator[Bipartite]] | None = None


PACKED = (".gz", ".bz2", ".xz", ".lzma")
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("libsvm", (".svm", ".libsvm", ".svmlight"), libsvm.read, libsvm.pieces),
        Format("matrix-market", (".mtx", ".mm"), matrix_market.read),
        Format("edges", (".edges", ".tsv", ".csv", ".txt", ".el"), edge_list.read),
        Format("hmetis", (".hgr",), hmetis.read),
        Format("npz", (".npz",), npz.read),
        Format("csr-folder", (".csr",), csr_folder.read),
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
    for ending in PACKED:
        name = name.removesuffix(ending)
    for form in FORMATS.values():
        if name.endswith(form.endings):
            return form
    if file.is_file():
        Source(file).check_text()
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
    source = Source(file, watch)
    try:
        if kind != BIPARTITE and form.name == "hmetis":
            raise source.wrong(f"is a hypergraph, which is bipartite; expected a graph for rows as {kind}")
        if form.name == "edges":
            given = edge_list.read_numbered(source, general=kind != BIPARTITE)
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
    csr_folder.check_new(folder)
    form = format_of(file) if format_name is None else find(format_name)
    if form.pieces is None:
        csr_folder.write(folder, (piece for _, piece in read(file, form.name, watch).pieces()))
    else:
        source = Source(file, watch)
        csr_folder.write(folder, _with_edges(form.pieces(source), source, form.name))


def _with_edges(pieces: Iterable[Bipartite], source: Source, form: str) -> Iterator[Bipartite]:
    """The pieces of a graph as they are. Raises UsageError after the last one, if none of them has an edge."""
    rows = edges = 0
    for piece in pieces:
        rows, edges = rows + piece.rows, edges + piece.edges
        yield piece
    if not edges:
        raise _without_edges(source, rows, form)


def _without_edges(source: Source, rows: int, form: str) -> UsageError:
    return source.wrong(
        f"holds {rows:,} rows and no edges; expected rows that touch columns, in the format {form}. Look whether it is "
        "the right file, or say which format it has: --format."
    )

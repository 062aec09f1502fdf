"""Graphs of the Stanford Network Analysis Project (SNAP; Leskovec and Krevl, 2014), as lists of edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.pinned import Arrays, Fetched, Pin, Report, Source, reading
from gridml.datasets.public import PublicSet, gunzip
from gridml.errors import DataError


@dataclass(frozen=True)
class SnapGraph:
    """The edges of a graph in ascending order, read-only; vertices count from 0. Those of a graph without directions
    are there once, from the smaller end to the larger."""

    source: NDArray[np.int64]  #: (n,)
    target: NDArray[np.int64]  #: (n,)
    vertices: int


def snap(
    name: str, cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> SnapGraph:
    """Return a graph by its name.

    "facebook": 88,234 friendships of 4,039 people (McAuley and Leskovec, 2012). "enron": 183,831 pairs of 36,692
    addresses that wrote to each other (Klimt and Yang, 2004). "slashdot": 948,464 links, with directions, of 82,168
    users to friends and foes (Leskovec, Lang, Dasgupta and Mahoney, 2008).

    `cache`, `progress` and `sources` are as for `mnist`. Raises DataError for another name, or if no source has the
    graph; StorageError if the cache cannot be written.
    """
    if name not in GRAPHS:
        raise DataError(f"snap got {name!r}; expected one of {', '.join(GRAPHS)}.")
    (edges,) = GRAPHS[name].obtain(cache, progress, sources)
    source, target = (edges[:, column].astype(np.int64) for column in (0, 1))
    for column in (source, target):
        column.flags.writeable = False
    return SnapGraph(source, target, int(edges.max()) + 1)


def read_edges(name: str, file: str, directed: bool, folder: Path, report: Report) -> Arrays:
    """Read a file of a folder, as SNAP has it: two numbers a line, and remarks behind #. Where it is not, read
    `FILE.edges.gz`, in which vertices count from 1."""
    path, first = folder / f"{file}.txt.gz", 0
    if not path.is_file():
        path, first = folder / f"{_RENAMED[file]}.edges.gz", 1
    lines = (line for line in gunzip(path).splitlines() if not line.startswith(b"#"))
    edges = np.array(b" ".join(lines).split(), np.int64).reshape(-1, 2) - first
    if not directed:
        edges = np.sort(edges, axis=1)  # some files have every edge twice
    return {name: np.unique(edges, axis=0)}


_RENAMED = {
    "facebook_combined": "facebook-combined",
    "email-Enron": "email-enron",
    "soc-Slashdot0902": "soc-slashdot0902-directed",
}
_HOME = "https://snap.stanford.edu/data/"


def _graph(name: str, title: str, file: str, edges: int, sha256: str, *, directed: bool = False) -> PublicSet:
    read, address = partial(read_edges, name, file, directed), f"{_HOME}{file}.txt.gz"
    home = Source(address, reading(read, Fetched(f"{file}.txt.gz", address)))
    pin = Pin(name, (edges, 2), "<i4", sha256)
    return PublicSet(f"SNAP's {title}", "snap", (pin,), read, f"the file {file}.txt.gz", (home,), ())


GRAPHS = {
    "facebook": _graph("facebook", "Facebook", "facebook_combined", 88_234,
                       "ad600080689ef712aa394c23c79ea1554b7bc734f304a74e5da569b637248d81"),
    "enron": _graph("enron", "Enron", "email-Enron", 183_831,
                    "0ae3a682c40deabe4cbcc814982aae55ae466379e9d8f40ba94e05b0f6372dea"),
    "slashdot": _graph("slashdot", "Slashdot", "soc-Slashdot0902", 948_464,
                       "1383282ba547f96b4e81e15e74920da2c37338a67d898f04ae9062a0a7d26080", directed=True),
}  # fmt: skip

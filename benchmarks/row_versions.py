"""Versions of array fields, as changed rows and as whole arrays: the cost of a commit, and of the base of a push.

Four million rows of 16 float32; each version is a push of 10,000 rows, trained from the version eight before it. In
one process and in turn: the master's method, and for comparison every 16th version written whole, and its base read
from that file.

    python -m benchmarks.row_versions [COMMITS]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

import gridml
from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from gridml.model.graph import Graph
from gridml.protocol.push import Array, Ids, RowValues
from master.store.replica import Replica
from master.store.versions import MAX_CHAIN_FILES, Base, Versions, initial

ROWS, WIDTH = sized(4_000_000, 20_000), 16
PUSHED = 10_000  # rows
STALE = 8  # the staleness of a push, in versions
WHOLE_EVERY = 16  # versions; only these are also written whole, which is slow
T = TypeVar("T")
P = ParamSpec("P")


class Row(gridml.Vertex):
    value = gridml.array("float32", (WIDTH,))
    aggregate = gridml.by_name({"*": gridml.stale_mean()})


class Sample(gridml.Vertex):
    rows = gridml.edge(Row)


def graph() -> Graph:
    g = Graph()
    g.add(Row, value=np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32))
    g.add(Sample, 1, rows=np.zeros((1, 2), np.int64))
    return g


@dataclass
class Taken:
    """CPU seconds, and bytes written."""

    commits_s: list[float] = field(default_factory=list)  #: of each commit
    bases_s: list[float] = field(default_factory=list)  #: of each base with the rows of a push
    from_files_s: list[float] = field(default_factory=list)  #: of each base from a whole file
    reads_s: list[float] = field(default_factory=list)  #: of each read of a whole version
    sizes: list[int] = field(default_factory=list)  #: bytes of each commit

    def row(self, name: str) -> dict[str, Cell]:
        return {
            "versions": name,
            "MB written": round(statistics.mean(self.sizes) / 1e6, 2),
            "commit CPU s": round(statistics.mean(self.commits_s), 4),
            "base CPU s": round(statistics.median(self.bases_s), 4),
            "base from files CPU s": round(statistics.median(self.from_files_s), 4),
            "read CPU s": round(statistics.median(self.reads_s), 3),
        }


def timed(into: list[float], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call, append the CPU seconds to `into`, and return the result."""
    began = time.process_time()
    result = call(*args, **kwargs)
    into.append(time.process_time() - began)
    return result


def main() -> None:
    (commits,) = numbers(__doc__, commits=sized(MAX_CHAIN_FILES, 32))
    with tempfile.TemporaryDirectory(prefix="row-versions-") as folder:
        rows = measured(Path(folder), commits)
    write(
        "row_versions",
        f"Versions of {ROWS:,} rows of {WIDTH} float32, pushes of {PUSHED:,} rows",
        rows,
        [
            f"{commits} commits in one process; whole: every {WHOLE_EVERY}th version is written and read as a file of "
            "all rows, too, in turn with the others",
            "MB written, commit CPU s: the mean of all commits, with those that write all rows; CPU s: user and system",
            f"base: the median; the rows of a push from the version {STALE} commits ago, which the master has in "
            "memory; whole: from the version's file",
            "from files: the median of every 16th version, as after a restart; each file's SHA-256 is checked",
            "read: the median of the same versions, read whole as by a master on startup",
        ],
    )


def measured(folder: Path, commits: int) -> list[dict[str, Cell]]:
    random = np.random.default_rng(1)
    versions, plain = Versions(folder / "rows"), Versions(folder / "whole")
    here = graph()
    replica = Replica(here, versions)
    digests: dict[int, str] = {0: replica.start(initial(here, 0))}
    rows, whole = Taken(), Taken()
    for version in range(1, commits + 1):
        ids = np.sort(random.choice(ROWS, PUSHED, replace=False))
        stale = max(0, version - STALE)
        replica.begin_version()
        old = timed(rows.bases_s, gathered, replica.base, stale, digests[stale], ids)
        replica.put({}, {"Row": RowValues(ids, {"value": old + np.float32(0.1)})}, version)
        digests[version] = timed(rows.commits_s, replica.commit_version, version)
        rows.sizes.append(versions.path(version).stat().st_size)
        if version % WHOLE_EVERY:
            continue
        expected = replica.state.arrays["Row"]["value"]
        sha256 = timed(whole.commits_s, plain.write, version, replica.state)
        whole.sizes.append(plain.path(version).stat().st_size)
        timed(whole.bases_s, gathered, plain.mapped, version, sha256, ids)
        from_files = timed(rows.from_files_s, gathered, versions.mapped, version, digests[version], ids)
        np.testing.assert_array_equal(from_files, expected[ids])
        read = timed(rows.reads_s, versions.read, version, digests[version])
        np.testing.assert_array_equal(read.arrays["Row"]["value"], expected)
        timed(whole.reads_s, plain.read, version, sha256)
        plain.remove(version)
    whole.from_files_s = whole.bases_s
    return [whole.row("whole"), rows.row("rows that changed")]


def gathered(base: Callable[[int, str], Base], version: int, sha256: str, ids: Ids) -> Array:
    """Return the rows of a base that a push names."""
    return base(version, sha256).rows("Row", ids)["value"]


if __name__ == "__main__":
    main()

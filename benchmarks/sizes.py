"""Compare the sizes that gridml chooses with sizes chosen in advance by hand, where they matter most.

Rows: 8 million of 1 KB in a memory-mapped file, with next to no arithmetic, so the cutting and copying of chunks
dominates. Replica: a network of 100 MB, whose pushes are expensive. Two workers run on this machine, with default and
with requested sizes in turn. The rows are trained for a fixed time, the replica to the end of its run.

    python -m benchmarks.sizes [REPEATS] [rows|replica]
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from benchmarks.arguments import parser_of, sized
from benchmarks.table import Cell, write
from gridml.errors import RunError
from master.backends.registry import make
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.views.report import report

PROGRAMS = Path(__file__).parent / "programs"
ROWS, WIDTH = sized(8_000_000, 80_000), 256  # float32
ROWS_S = sized(60.0, 1.0)  # of training rows
SAMPLE_S = 0.02  # between two samples of the master's memory


@dataclass(frozen=True)
class Case:
    """A program and its settings."""

    name: str
    program: str
    sizes: str
    chunk: int | None = None  #: vertices; None: chosen by gridml
    push_every: int | None = None  #: vertices; None: chosen by gridml
    lasts_s: float | None = None  #: after which the run is stopped; None: it runs to its end


ROWS_CASES = (
    Case("rows", "wide_rows.py", "chosen", lasts_s=ROWS_S),
    Case("rows", "wide_rows.py", "--chunk 4096", 4096, lasts_s=ROWS_S),
)
REPLICA_CASES = (
    Case("replica", "wide_net.py", "chosen"),
    Case("replica", "wide_net.py", "--chunk 2048 --push-every 2048", 2048, 2048),
)


@dataclass(frozen=True)
class Played:
    """The result of a run."""

    rate: float  #: vertices credited per second
    goodput: float
    master_mb: float  #: peak anonymous memory of the master
    silent_s: float  #: the longest time between two turns of its loop
    largest: int  #: vertices of its largest chunk
    largest_mb: float  #: bytes of its largest chunk, in MB
    load: float  #: of the machine at the end


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=sized(3, 1))
    parser.add_argument("which", nargs="?", choices=["rows", "replica"], default=sized(None, "rows"), help="or both")
    options = parser.parse_args()
    repeats, which = options.repeats, options.which or ""
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory(prefix="sizes-") as folder:
        for cases in (ROWS_CASES, REPLICA_CASES):
            if which in ("", cases[0].name):
                rows += compare(cases, repeats, Path(folder))
    write(
        "sizes" + (f"_{which}" if which else ""),
        "Chosen against requested sizes: 8 million rows of 1 KB, and a replica of 100 MB",
        rows,
        [
            f"medians of {repeats} runs of each, in turn; two local workers; ratio: each pair's, the median",
            f"rows: vertices credited in the {ROWS_S:.0f} s after the master's first turn, of a sparse file, so the "
            "disk's seeks are not measured; the digest of the file is computed before the first turn",
            "replica: a whole epoch, boots included; goodput: from gridml report",
            "master MB: its peak anonymous memory (RssAnon), sampled every 20 ms; silent s: the longest time between "
            "two turns of its loop, over all runs; with the replica it is the merge of a push, not a chunk",
            "load: the machine's at the end of a run, the highest; above three there was other work on it",
        ],
    )


def compare(cases: tuple[Case, Case], repeats: int, folder: Path) -> list[dict[str, Cell]]:
    """Return a line of the table for each case, the chosen sizes first."""
    played: dict[str, list[Played]] = {case.sizes: [] for case in cases}
    for repeat in range(repeats):
        for case in cases if repeat % 2 == 0 else cases[::-1]:
            played[case.sizes].append(play(case, folder))
            print(case.name, case.sizes, played[case.sizes][-1], flush=True)
    asked = played[cases[1].sizes]
    return [
        {
            "case": case.name,
            "sizes": case.sizes,
            "vertices/s": round(statistics.median(each.rate for each in mine)),
            "ratio": round(statistics.median(a.rate / b.rate for a, b in zip(mine, asked, strict=True)), 2),
            "goodput": round(statistics.median(each.goodput for each in mine), 3),
            "goodput min": round(min(each.goodput for each in mine), 3),
            "master MB": round(max(each.master_mb for each in mine)),
            "silent s": round(max(each.silent_s for each in mine), 2),
            "largest lease": max(each.largest for each in mine),
            "largest chunk MB": round(max(each.largest_mb for each in mine), 1),
            "load": round(max(each.load for each in mine), 1),
        }
        for case, mine in ((case, played[case.sizes]) for case in cases)
    ]


def play(case: Case, folder: Path) -> Played:
    """Play one run in a process of its own."""
    root = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    environment = {**os.environ, "ROWS": str(_file(folder)) if case.name == "rows" else ""}
    try:
        child = "from benchmarks.sizes import child; child()"
        command = [sys.executable, "-c", child, json.dumps(asdict(case)), str(root)]
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return Played(**json.loads(ended.stdout.splitlines()[-1]))
    finally:
        shutil.rmtree(root)


def _file(folder: Path) -> Path:
    """Return the file of the rows: sparse, with one number in every block of 16,384 rows."""
    path = folder / "rows.npy"
    if not path.exists():
        values = open_memmap(path, "w+", np.float32, (ROWS, WIDTH))
        values[:: 1 << 14, 0] = 1.0
    return path


def child() -> None:
    """Run one master in this process, and print the result."""
    case, root = Case(**json.loads(sys.argv[1])), Path(sys.argv[2])
    settings = Settings(PROGRAMS / case.program, chunk=case.chunk, push_every=case.push_every)
    turns = _Turns(case.lasts_s)
    with start(settings, root / "run", Environment(make, tick=turns)) as run:
        memory = _Memory(root / "run" / "chunks")
        memory.start()
        try:
            run.finish()
        except RunError:
            if not turns.over:
                raise
        rate = run.ledger.credited / turns.elapsed_s
        memory.end()
    shown = report(root / "run")
    with sqlite3.connect(f"file:{root / 'run' / 'ledger.db'}?mode=ro", uri=True) as ledger:
        largest = ledger.execute("SELECT max(stop - start) FROM leases").fetchone()[0]
    assert shown.duplicated == 0
    load = os.getloadavg()[0]
    played = Played(rate, shown.goodput or 0.0, memory.peak_mb, turns.longest_s, largest or 0, memory.largest_mb, load)
    print(json.dumps(asdict(played)))


class _Turns:
    """A timer of the turns of the master's loop; it stops the run after `lasts_s`."""

    def __init__(self, lasts_s: float | None) -> None:
        self.longest_s = 0.0
        self.over = False
        self._lasts_s = lasts_s
        self._first_s = self._last_s = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        self._first_s = self._first_s or now
        self.longest_s = max(self.longest_s, now - (self._last_s or now))
        self._last_s = now
        if self._lasts_s is not None and self.elapsed_s >= self._lasts_s:
            self.over = True
            raise RunError("long enough")

    @property
    def elapsed_s(self) -> float:
        return self._last_s - self._first_s


class _Memory(threading.Thread):
    """A sampler of this process's peak anonymous memory, and of its largest published chunk."""

    def __init__(self, chunks: Path) -> None:
        super().__init__(daemon=True)
        self._chunks = chunks
        self._ended = threading.Event()
        self.peak_mb = self.largest_mb = 0.0

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            status = Path("/proc/self/status").read_text()
            self.peak_mb = max(self.peak_mb, int(status.partition("RssAnon:")[2].split()[0]) / 1024)
            self.largest_mb = max([self.largest_mb, *_sizes(self._chunks)])

    def end(self) -> None:
        self._ended.set()
        self.join()


def _sizes(folder: Path) -> list[float]:
    """Return the size of each file of a folder in MB. The master may delete files during the scan."""
    sizes = []
    for path in folder.glob("*"):
        try:
            sizes.append(path.stat().st_size / 1e6)
        except FileNotFoundError:
            continue
    return sizes


if __name__ == "__main__":
    main()

"""The model's prediction against real processes that are really killed: goodput of local runs with short lives.

The costs are measured in a run without kills (t_x, a worker's boot, a chunk's start); the model then says what goodput
to expect of workers whose lives are drawn from a distribution and end by SIGKILL, and real runs show what it was.

    python -m benchmarks.local_goodput [RUNS]
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import Cell, write
from chunk_model.costs import Costs
from chunk_model.families import Exponential, Weibull
from chunk_model.goodput import many_chunks
from chunk_model.lifetime import Lifetime
from master.backends.base import Backend
from master.backends.choose import worker_command
from master.backends.local import Local
from master.backends.script import Lives, Script, Steady
from master.beginning import start
from master.report import Report, report
from master.run import Outside
from master.rundir import RunDirectory
from master.settings import Settings

PROGRAM = Path(__file__).parent / "programs" / "timed.py"
WORKERS = 6
SECONDS = 45  # what a run takes if nothing is lost


@dataclass(frozen=True)
class Case:
    """Lives in seconds, and the sizes in vertices; `push_every` as large as the chunk: all or nothing."""

    lifetime: Lifetime
    chunk: int
    push_every: int


CASES = (
    Case(Exponential(8.0), 800, 200),
    Case(Exponential(8.0), 800, 800),
    Case(Weibull(2.0, 10.0), 1200, 1200),
)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows: list[dict[str, Cell]] = []
    for case in CASES:
        costs = calibrated(case)
        predicted = float(many_chunks(case.lifetime, costs, case.chunk, push_every=case.push_every))
        found = [play(case, Lives(WORKERS, case.lifetime, seed, 0.0, late=0)) for seed in range(runs)]
        measured = [f.goodput or 0.0 for f in found]
        middle = statistics.median(measured)
        rows.append(
            {
                "lives": str(case.lifetime),
                "chunk": case.chunk,
                "push every": case.push_every,
                "boot s": round(costs.boot_s, 2),
                "predicted": round(predicted, 4),
                "measured": round(middle, 4),
                "off": f"{middle / predicted - 1:+.1%}",
                "range": f"{min(measured):.3f} to {max(measured):.3f}",
                "kills a run": statistics.median(f.kills for f in found),
            }
        )
        print(rows[-1], flush=True)
    write(
        "local_goodput",
        "Goodput of real local runs against the chunk model's prediction",
        rows,
        [
            f"medians of {runs} runs of {WORKERS} worker processes, every one ended by SIGKILL; goal: within 5%",
            "goodput: seconds that credited vertices took, of all seconds that workers lived",
            "costs from a run without kills on the same machine; the lives were the only thing that differed",
            "chunks shrink at the end of an epoch, in about the last tenth of each run, which the model leaves out",
            "every run credited each of its vertices exactly once (checked)",
        ],
    )


def calibrated(case: Case) -> Costs:
    """What things cost here: a run without kills."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    try:
        run(case, Steady(WORKERS), folder / "run", seconds=10)
        database = sqlite3.connect(folder / "run" / "ledger.db")
        trained, train_s = database.execute("SELECT sum(trained), sum(train_s) FROM workers").fetchone()
        exec_s = train_s / trained
        first = database.execute(
            "SELECT w.started_s, min(c.at_s), c.stop - c.start FROM workers w JOIN credits c ON c.worker = w.worker "
            "GROUP BY w.worker"
        ).fetchall()
        boot_s = statistics.median(at_s - started_s - count * exec_s for started_s, at_s, count in first)
        database.close()
    finally:
        shutil.rmtree(folder)
    return Costs(exec_s=exec_s, boot_s=boot_s, push_s=0.0)


def play(case: Case, script: Script) -> Report:
    """One run with kills; its report. Raises AssertionError where a vertex was not credited exactly once."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    try:
        run(case, script, folder / "run", seconds=SECONDS)
        found = report(folder / "run")
    finally:
        shutil.rmtree(folder)
    assert found.duplicated == found.lost == 0 and found.credited == found.vertices
    return found


def run(case: Case, script: Script, root: Path, *, seconds: float) -> None:
    """Train as many vertices as all workers together manage in `seconds`."""
    os.environ["TIMED_VERTICES"] = str(int(WORKERS * seconds / 0.002))
    settings = Settings(PROGRAM, workers=WORKERS, chunk=case.chunk, push_every=case.push_every)

    def backend(settings: Settings, directory: RunDirectory) -> Backend:
        return Local(worker_command(settings, directory), script, directory.logs)

    with start(settings, root, Outside(backend)) as begun:
        begun.finish()


if __name__ == "__main__":
    main()

"""Compare the model's prediction of goodput with local runs whose processes are really killed.

Workers' lives are drawn from a distribution and end by SIGKILL. The run's own master measures the costs of a vertex, a
boot, a chunk and a push, and chooses by them. The model predicts the goodput for these costs, and the run's ledger has
the actual one. Boots must be measured in such a run: if no worker dies, all boot at once, and each boot takes longer.

    python -m benchmarks.local_goodput [RUNS]
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from chunk_model.families import Exponential, Weibull
from chunk_model.goodput import Costs, chunk_goodput
from chunk_model.lifetime import Lifetime
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Script, ScriptedLives
from master.launch import start
from master.ports.environment import Environment
from master.state.jobs import Backend
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.views.report import report

PROGRAM = Path(__file__).parent / "programs" / "timed.py"
WORKERS = 6
SECONDS = sized(45, 3)  # duration of a run without losses


@dataclass(frozen=True)
class Case:
    """The configuration of a run."""

    lifetime: Lifetime  #: in seconds
    chunk: int  #: vertices
    push_every: int  #: vertices; the size of the chunk: all or nothing


@dataclass(frozen=True)
class Played:
    """The result of a run."""

    costs: Costs  #: measured by its master
    predicted: float  #: goodput by the model for these costs
    measured: float  #: goodput
    kills: int


CASES = (
    Case(Exponential(8.0), 800, 200),
    Case(Exponential(8.0), 800, 800),
    Case(Weibull(2.0, 10.0), 1200, 1200),
)


def main() -> None:
    (runs,) = numbers(__doc__, runs=sized(5, 1))
    rows: list[dict[str, Cell]] = []
    for case in sized(CASES, CASES[:1]):
        played = [play(case, seed) for seed in range(runs)]
        off = [each.measured / each.predicted - 1 for each in played]
        rows.append(
            {
                "lives": str(case.lifetime),
                "chunk": case.chunk,
                "push every": case.push_every,
                "boot s": round(statistics.median(each.costs.boot_s for each in played), 2),
                "chunk's start s": round(statistics.median(each.costs.start_s for each in played), 4),
                "predicted": round(statistics.median(each.predicted for each in played), 4),
                "measured": round(statistics.median(each.measured for each in played), 4),
                "off": f"{statistics.median(off):+.1%}",
                "range": f"{min(off):+.1%} to {max(off):+.1%}",
                "kills a run": statistics.median(each.kills for each in played),
            }
        )
        print(rows[-1], flush=True)
    write(
        "local_goodput",
        "Goodput of real local runs against the chunk model's prediction",
        rows,
        [
            f"medians of {runs} runs of {WORKERS} worker processes, every one ended by SIGKILL; goal: within 5%",
            "off: a run's goodput against the model, with the costs measured by the master of the same run",
            "goodput: seconds of credited vertices over the lifetimes of the workers",
            "the model ignores that chunks shrink at the end of an epoch, in about the last tenth of each run",
            "every run credited each of its vertices exactly once (checked)",
        ],
    )


def play(case: Case, seed: int) -> Played:
    """Play one run with kills. Raises AssertionError if a vertex was not credited exactly once."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    try:
        costs = run(case, ScriptedLives(WORKERS, case.lifetime, seed, 0.0, late=0), folder / "run")
        shown = report(folder / "run")
    finally:
        shutil.rmtree(folder)
    assert shown.duplicated == shown.lost == 0 and shown.credited == shown.vertices
    assert shown.goodput is not None
    predicted = chunk_goodput(case.lifetime, costs, case.chunk, many=True, push_every=case.push_every)
    return Played(costs, predicted, shown.goodput, shown.kills)


def run(case: Case, script: Script, root: Path) -> Costs:
    """Train as many vertices as all workers together can in `SECONDS`. Return the costs that the master measured."""
    os.environ["TIMED_VERTICES"] = str(int(WORKERS * SECONDS / 0.002))
    settings = Settings(PROGRAM, workers=WORKERS, chunk=case.chunk, push_every=case.push_every)

    def backend(settings: Settings, directory: RunDirectory) -> Backend:
        return Local(worker_command(settings, directory), script, directory.logs)

    with start(settings, root, Environment(backend)) as begun:
        begun.finish()
        costs = begun.parts.leases.sizing.measures.costs()
    assert costs is not None
    # A local worker's life begins with its process, so it never waits for a machine.
    return replace(costs, wait_s=0.0)


if __name__ == "__main__":
    main()

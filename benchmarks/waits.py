"""Measure how long workers on a fast device wait: f sleeps, as the host of a GPU does, and moves a large replica.

The share that a worker trains is the rate at which vertices are credited, over that of a loop that never waits. With
--against, the same runs are made with the gridml of another checkout, in turn.

    python -m benchmarks.waits [--against CHECKOUT] [REPEATS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.arguments import parser_of, sized
from benchmarks.credited_rate import credited_rate
from benchmarks.table import Cell, write

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "sleeps.py"
BATCH = 128


class Case(NamedTuple):
    """A program and its workers."""

    mb: int  #: of the replica
    step_s: float
    samples: int  #: of an epoch
    epochs: int
    workers: int

    @property
    def epoch_s(self) -> float:
        """Of the loop."""
        return self.samples / BATCH * self.step_s


CASES = (
    Case(100, 0.08, 2_048, 12, 1),
    Case(100, 0.08, 16_384, 2, 1),
    Case(400, 0.3, 2_048, 6, 1),
    Case(100, 0.16, 4_096, 6, 2),
)
SMALL = (Case(1, 0.01, 1_024, 3, 1),)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, whose gridml is measured, too")
    parser.add_argument("repeats", nargs="?", type=int, default=sized(3, 1))
    options = parser.parse_args()
    trees = {"trains": ROOT, **({"trained before": options.against.resolve()} if options.against else {})}
    rows: list[dict[str, Cell]] = []
    for case in sized(CASES, SMALL):
        shares: dict[str, list[float]] = {name: [] for name in trees}
        for _ in range(options.repeats):
            for name, tree in trees.items():
                shares[name].append(share(case, tree))
        rows.append(
            {
                "replica MB": case.mb,
                "workers": case.workers,
                "epoch of the loop s": round(case.epoch_s, 2),
                **{name: round(statistics.median(each), 3) for name, each in reversed(shares.items())},
                "least": round(min(shares["trains"]), 3),
            }
        )
        print(rows[-1], flush=True)
    write(
        "waits",
        "The share of its time that a worker on a fast device trains",
        rows,
        [
            f"medians of {options.repeats} runs, in turn; f sleeps in the .08 to .3 s of a batch of {BATCH}",
            "trains: vertices credited a second between the first credit and the last, over those that as many loops "
            "would train; the snapshot of a push is copied by the CPU here, which takes about 1 ms a megabyte and is "
            "counted as waiting (a GPU takes 8 ms for 500 MB: devices.md), and so is the last push of the run",
            "trained before: the same with the checkout given by --against (the committed figures: eb6820eb)",
        ],
    )


def share(case: Case, tree: Path) -> float:
    """Run a case with the gridml of a tree; return the share of the time that its workers train."""
    program = {"MB": case.mb, "STEP": case.step_s, "SAMPLES": case.samples, "EPOCHS": case.epochs}
    with tempfile.TemporaryDirectory(prefix="waits-") as kept:
        run = Path(kept) / "run"
        command = [sys.executable, "-m", "gridml", "run", str(PROGRAM), "--workers", str(case.workers)]
        environment = {**os.environ, "PYTHONPATH": str(tree), **{name: str(value) for name, value in program.items()}}
        subprocess.run(
            [*command, "--steps-each", "0", "--run-dir", str(run)],
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return credited_rate(run) / (case.workers * BATCH / case.step_s)


if __name__ == "__main__":
    main()

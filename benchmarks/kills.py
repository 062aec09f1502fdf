"""Measure the accuracy that kills cost: LeNet on MNIST on real worker processes, half of them killed without grace.

A worker's life is measured in its own training time (CPU seconds after its first chunk), because starting Python and
torch takes as long as a third of an epoch here. Lives are exponential, with a mean of a third of an epoch of the
worker's share, and end in turn by SIGTERM with two seconds of grace and by SIGKILL.

    python -m benchmarks.kills [SEEDS [EPOCHS]]
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_of, sized
from benchmarks.table import Cell, write
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Steady
from master.launch import start
from master.ports.environment import Environment
from master.state.jobs import JobEvent, State
from master.store.rundir import RunDirectory
from master.store.settings import Settings

HERE = Path(__file__).parent
PROGRAMS = {
    "stale_mean": sized(HERE.parent / "examples" / "mnist.py", HERE / "programs" / "adult.py"),
    "mean": HERE / "programs" / "mnist_mean.py",
}
IMAGES, MAX_KILLS = sized((60_000, math.inf), (900, 1))
SECONDS_PER_IMAGE = 1.1e-4  # of LeNet on one core; only scales the lives
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """The configuration of a run."""

    rule: str  #: the merge rule
    workers: int
    kills: bool  #: workers are killed
    seed: int
    epochs: int


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=sized(5, 1))
    parser.add_argument("epochs", nargs="?", type=int, default=sized(3, 1))
    parser.add_argument("--one", help="run one case, given as JSON (the benchmark calls itself with it)")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(Case(**json.loads(options.one)))))
        return
    compare(options.seeds, options.epochs)


def compare(seeds: int, epochs: int) -> None:
    """Run every combination with each seed: loops and single workers in parallel, the rest alone on the machine."""
    rows: list[dict[str, Cell]] = []
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 1)) as two, ThreadPoolExecutor(1) as alone:
        loops = list(two.map(lambda seed: sequential(seed, epochs), range(seeds)))
        rows.append(row("plain loop", 1, False, [{"accuracy": a, "killed": 0, "wasted": 0} for a in loops], None))
        for rule in sized([*PROGRAMS], ["stale_mean"]):
            for workers in sized((1, 2, 4), (1,)):
                without: float | None = None
                for kills in sized((False, True), (True,)):
                    cases = [Case(rule, workers, kills, seed, epochs) for seed in range(seeds)]
                    results = list((two if workers == 1 else alone).map(in_own_process, cases))
                    rows.append(row(rule, workers, kills, results, without))
                    without = statistics.mean(f["accuracy"] for f in results)
                    print(rows[-1], flush=True)
    write(
        "kills",
        f"Accuracy on MNIST after {epochs} epochs, with and without kills",
        rows,
        [
            f"mean and standard deviation over {seeds} seeds, in percent; loss: points lost to kills",
            "lives: exponential, mean a third of an epoch of a worker's own share of training; half SIGTERM, half "
            "SIGKILL",
            "wasted: vertices trained but never credited, in percent of those credited",
            "every run credited each of its vertices exactly once (checked)",
        ],
    )


def row(
    rule: str, workers: int, kills: bool, results: list[dict[str, float]], without: float | None
) -> dict[str, Cell]:
    accuracy = [100 * f["accuracy"] for f in results]
    mean = statistics.mean(accuracy)
    return {
        "rule": rule,
        "workers": workers,
        "kills": "yes" if kills else "no",
        "accuracy": round(mean, 3),
        "sd": round(statistics.stdev(accuracy), 3) if len(accuracy) > 1 else None,
        "loss": None if without is None else round(100 * without - mean, 3),
        "kills a run": statistics.mean(f["killed"] for f in results),
        "wasted %": round(statistics.mean(f["wasted"] for f in results), 2),
    }


def sequential(seed: int, epochs: int) -> float:
    """Return the plain loop's accuracy at equal samples."""
    command = [sys.executable, "-m", "benchmarks.plain_loop", str(epochs), str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return float(json.loads(done.stdout)["accuracy"])


def in_own_process(case: Case) -> dict[str, float]:
    """Run a case in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.kills", *sized([], ["--smallest"]), "--one", json.dumps(vars(case))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run(case: Case) -> dict[str, float]:
    """Run one case to its end. Return its accuracy, kills and share of wasted work. Raises AssertionError if its
    credits are not exact."""
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    killed: list[str] = []

    def pool(settings: Settings, directory: RunDirectory) -> Local:
        command = worker_command(settings, directory)
        steady = Steady(settings.workers)
        if not case.kills:
            return Local(command, steady, directory.logs)
        return Reaper(command, steady, directory.logs, case=case, mail=directory.root / "mail", killed=killed)

    try:
        settings = Settings(program=PROGRAMS[case.rule], workers=case.workers, epochs=case.epochs, seed=case.seed)
        with start(settings, root / "run", Environment(pool)) as made:
            made.finish()
        from master.views.report import report

        shown = report(root / "run")
        for epoch in shown.epochs:
            assert (epoch.credited, epoch.duplicated, epoch.lost) == (IMAGES, 0, 0), epoch
        wasted = sum(epoch.wasted for epoch in shown.epochs)
        accuracy = shown.epochs[-1].metrics["accuracy"]
        return {"accuracy": accuracy, "killed": len(killed), "wasted": 100 * wasted / (IMAGES * case.epochs)}
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Reaper(Local):
    """The local back end; it ends each worker once it has used the CPU time of its life."""

    def __init__(self, command, script, logs, *, case: Case, mail: Path, killed: list[str]) -> None:  # type: ignore[no-untyped-def]
        super().__init__(command, script, logs)
        self._rng = np.random.default_rng([case.seed, case.workers])
        self._mean_s = IMAGES / case.workers / 3 * SECONDS_PER_IMAGE
        self._mail = mail
        self._killed = killed
        self._pids: dict[str, int] = {}  # of running workers
        self._until: dict[str, float] = {}  # CPU seconds at which a worker dies; drawn when it has its first chunk

    def poll(self) -> list[JobEvent]:
        events = super().poll()
        self._pids.update({e.worker: e.pid for e in events if e.state is State.RUNNING and e.pid})
        for ended in [e.worker for e in events if e.state.ended]:
            self._pids.pop(ended, None)
        for worker, pid in list(self._pids.items()):
            progress = self._mail / worker / "progress"
            used = cpu_s(pid)
            if used is None or not progress.exists() or not progress.stat().st_size:
                continue  # no chunk yet: its life has not begun
            until = self._until.setdefault(worker, used + self._rng.exponential(self._mean_s))
            if used >= until and len(self._killed) < MAX_KILLS:
                self.cancel(worker, grace_s=2.0 if len(self._killed) % 2 else 0.0)
                self._killed.append(worker)
                del self._pids[worker]
        return events


def cpu_s(pid: int) -> float | None:
    """Return the CPU seconds that a process has used, None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()

"""Measure the overhead of gridml: workers against plain PyTorch loops with the same batch, in turn on the same machine.

A worker's speed is the vertices that the ledger credits between the first and the last credit of the run, divided by
that time. It includes fetching chunks, pushing, merging and storing replicas, and beginning and ending epochs.

    python -m benchmarks.overhead [REPEATS]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.credited_rate import credited_rate
from benchmarks.table import Cell, write
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Steady
from master.launch import start
from master.ports.environment import Environment
from master.state.jobs import State
from master.store.rundir import RunDirectory
from master.store.settings import Settings

PROGRAM = Path(__file__).parent / "programs" / "lenet.py"
EPOCHS, PUSH_EVERY = sized((3, None), (1, 256))


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=sized(5, 1))
    rows = [measure(workers, repeats) for workers in sized((1, 2), (1,))]
    write(
        "overhead",
        "Workers against plain PyTorch loops (LeNet on MNIST, batch 64, one thread each)",
        rows,
        [
            f"medians of {repeats} pairs run in turn, {EPOCHS} epochs a worker or loop; ratio: median over the pairs",
            "images per second of all workers or loops together, after the first batches",
            "memory: peak resident set of one process, the median; a loop holds the whole data set, a worker its "
            "chunks",
            "goals: ratio ≥ 0.95 for one worker, ≥ 0.93 for two; memory ≤ 1.15 of the loop's",
        ],
    )


def measure(count: int, repeats: int) -> dict[str, Cell]:
    """Return a line of the table: `count` workers against as many loops in parallel."""
    pairs = []
    for repeat in range(repeats):
        order = (loops, workers) if repeat % 2 else (workers, loops)
        measured = {call.__name__: call(count) for call in order}
        pairs.append((measured["workers"], measured["loops"]))
    mine, theirs = zip(*pairs, strict=True)
    return {
        "processes": count,
        "workers img/s": statistics.median(rate for rate, _ in mine),
        "loops img/s": statistics.median(rate for rate, _ in theirs),
        "ratio": statistics.median(m[0] / t[0] for m, t in pairs),
        "ratio min": min(m[0] / t[0] for m, t in pairs),
        "ratio max": max(m[0] / t[0] for m, t in pairs),
        "worker MB": statistics.median(kb for _, kb in mine) / 1024,
        "loop MB": statistics.median(kb for _, kb in theirs) / 1024,
        "memory ratio": statistics.median(m[1] / t[1] for m, t in pairs),
    }


def loops(count: int) -> tuple[float, float]:
    """Return (images per second of all, peak kB of one) of `count` plain loops in parallel."""
    command = [sys.executable, "-m", "benchmarks.plain_loop", str(EPOCHS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, env=environment, text=True)
        for seed in range(count)
    ]
    reports = [json.loads(p.communicate()[0]) for p in processes]
    return sum(r["rate"] for r in reports), statistics.median(r["peak_kb"] for r in reports)


def workers(count: int) -> tuple[float, float]:
    """Return (images per second of all, peak kB of one) of a run of `count` workers; each trains as much as a loop."""
    root = Path(tempfile.mkdtemp(prefix="overhead-"))
    pids: dict[str, int] = {}
    peaks: dict[str, int] = {}

    class Watched(Local):
        """The local back end; it records the peak memory of each running worker."""

        due_s = 0.0

        def poll(self) -> list:  # type: ignore[type-arg]
            events = super().poll()
            pids.update({e.worker: e.pid for e in events if e.state is State.RUNNING and e.pid})
            if time.monotonic() >= self.due_s:  # not in every turn: sampling costs time that is measured
                self.due_s = time.monotonic() + 0.5
                for worker, pid in pids.items():
                    peaks[worker] = max(peaks.get(worker, 0), peak_kb(pid))
            return events

    def pool(settings: Settings, directory: RunDirectory) -> Watched:
        return Watched(worker_command(settings, directory), Steady(count), directory.logs)

    try:
        settings = Settings(program=PROGRAM, workers=count, epochs=EPOCHS * count, push_every=PUSH_EVERY)
        with start(settings, root / "run", Environment(pool)) as run:
            run.finish()
        return credited_rate(root / "run"), statistics.median(peaks.values())
    finally:
        shutil.rmtree(root, ignore_errors=True)


def peak_kb(pid: int) -> int:
    """Return a process's peak resident set in kB, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main()

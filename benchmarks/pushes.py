"""Measure what a push costs the master and its worker in real local runs, by the size of the replica.

Four workers push after every batch. f waits a millisecond and moves every weight, so that a push contains the whole
replica and little else takes time. CPU seconds are those between the first merge and the last: the master's, of all
its threads, and the workers' together.

    python -m benchmarks.pushes [REPEATS]
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import textwrap
import time
from contextlib import closing
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.limits import PROGRAM as IDLE
from benchmarks.table import Cell, write
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Steady
from master.launch import start
from master.ports.environment import Environment
from master.state.jobs import JobEvent, State
from master.store.reader import read_push_costs
from master.store.rundir import RunDirectory
from master.store.settings import Settings

KILOBYTES = sized((250, 1_000, 25_000), (250,))
WORKERS, TENSORS = sized(4, 2), 10
BATCHES = {250: sized(6_000, 40), 1_000: 3_000, 25_000: 300}
BODY = """\
        time.sleep(0.001)
        with torch.no_grad():
            for weight in network.model.parameters():
                weight.add_(1e-3)
"""
PROGRAM = IDLE.replace("import numpy as np", "import time").replace("        pass\n", BODY)


class Watched(Local):
    """The local back end; it remembers the process of each worker."""

    def __init__(self, settings: Settings, directory: RunDirectory) -> None:
        super().__init__(worker_command(settings, directory), Steady(settings.workers), directory.logs)
        self.pids: dict[str, int] = {}

    def poll(self) -> list[JobEvent]:
        events = super().poll()
        self.pids.update({e.worker: e.pid for e in events if e.state is State.RUNNING and e.pid})
        return events

    def cpu_s(self) -> float:
        """Return the CPU seconds of all workers so far."""
        return sum(map(_cpu_s, self.pids.values()))


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(kilobytes: int) -> dict[str, float]:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory(prefix="pushes-") as here:
        program = Path(here) / "program.py"
        elements, batches = kilobytes * 1000 // 4 // TENSORS, BATCHES[kilobytes]
        program.write_text(textwrap.dedent(PROGRAM).format(elements=elements, tensors=TENSORS, vertices=batches))
        settings = Settings(program, workers=WORKERS, epochs=1, push_every=1, spot_checks=0.0)
        pool: list[Watched] = []
        readings: list[tuple[float, float, float]] = []  # wall, the master's CPU, the workers' CPU

        def back_end(settings: Settings, directory: RunDirectory) -> Watched:
            pool.append(Watched(settings, directory))
            return pool[0]

        def hook(point: str) -> None:
            if point == "after-version":
                del readings[1:]
                readings.append((time.perf_counter(), time.process_time(), pool[0].cpu_s()))

        with start(settings, Path(here) / "run", Environment(back_end, hook=hook)) as run:
            run.finish()
        with closing(sqlite3.connect(Path(here) / "run" / "ledger.db")) as ledger:
            groups = [pushes for (pushes,) in ledger.execute("SELECT pushes FROM versions ORDER BY version")][2:]
            costs = read_push_costs(ledger)
    assert costs is not None, "workers were answered"
    (wall_s, master_s, workers_s), pushes = (b - a for a, b in zip(*readings, strict=True)), sum(groups)
    return {
        "pushes": pushes,
        "pushes/s": pushes / wall_s,
        "in a group": pushes / len(groups),
        "master ms": 1e3 * master_s / pushes,
        "worker ms": 1e3 * workers_s / pushes,
        "of it push ms": 1e3 * costs.push_s,
        "travel ms": 1e3 * costs.travel_s,
        "master's share": master_s / wall_s,
        "workers' share": workers_s / wall_s / WORKERS,
        "pushes/s of a core": pushes / master_s,
    }


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=sized(3, 1))
    rows: list[dict[str, Cell]] = []
    for kilobytes in KILOBYTES:
        runs = [measure(kilobytes) for _ in range(repeats)]
        rows.append({"kB": kilobytes, **{name: statistics.median(run[name] for run in runs) for name in runs[0]}})
        print(rows[-1], flush=True)
    write("pushes", "The cost of a push in a local run, by the size of the replica", rows, NOTES)


NOTES = [
    f"{WORKERS} workers on one machine, medians of the runs; a push contains {TENSORS} tensors, all of them changed",
    "in a group: pushes that share a version and a transaction; master ms, worker ms: CPU of one push",
    "worker ms includes the batches that the worker trains while its push is under way; of it push ms: what the worker "
    "measures, CPU of sending and decoding and the time of the snapshot",
    "share: CPU seconds per second, of one worker; pushes/s of a core: what a master carries that does nothing else",
]


if __name__ == "__main__":
    main()

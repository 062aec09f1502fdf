"""Check that a long run on HTCondor stays flat: two thousand chunks, one job each, on a real pool of eight slots.

The run is sampled every few seconds and summarised by quarters: jobs in the queue, memory of the schedd, CPU of the
master. One job per chunk is the hardest case; by default a job trains as many chunks as it can.

    python -m benchmarks.condor.chunks [CHUNKS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from master.store.reader import connect
from master.views.progress import RunProgress, read_progress
from pools import pool
from pools.pool import Pool
from pools.release import NoCondor

PROGRAM = Path(__file__).parents[1] / "programs" / "many_chunks.py"
VERTICES = 20_000
SLOTS, EVERY_S = 8, sized(2.0, 0.05)


@dataclass(frozen=True)
class Sample:
    """One sample of a run."""

    at_s: float
    share: float  #: credited so far
    jobs: int  #: queued and running
    schedd_bytes: int  #: resident set of the schedd
    master_s: float  #: CPU seconds of the master so far


def main() -> None:
    (chunks,) = numbers(__doc__, chunks=sized(2_000, 16))
    with tempfile.TemporaryDirectory(prefix="chunks-") as folder:
        try:
            with pool.personal(Path(folder) / "pool", cpus=SLOTS) as pool_up:
                samples = follow(pool_up, Path(folder) / "run", VERTICES // chunks)
        except NoCondor as why:
            print(f"skipped: {why}")
            return
    write(
        "condor_chunks",
        f"A run of {chunks:,} chunks, one job each, on {SLOTS} slots of a real pool",
        [line for i in range(4) if (line := quarter(samples, i, chunks))],
        [
            f"by quarters of the credited vertices; {len(samples)} samples, one every {EVERY_S:g} s",
            "jobs: waiting and running; schedd MB: resident set",
            "master CPU: seconds per second of the run; master ms: CPU per chunk",
        ],
    )


def follow(pool_up: Pool, root: Path, chunk: int) -> list[Sample]:
    """Run to the end, sampling every few seconds."""
    command = [sys.executable, "-P", "-m", "gridml", "submit", str(PROGRAM)]
    options = ["--foreground", "--workers", "16", "--max-idle", "8", "--chunks-per-job", "1", "--chunk", str(chunk)]
    small = ["--request-memory", "64MB", "--request-disk", "20MB", "--run-dir", str(root)]
    process = subprocess.Popen([*command, *options, *small], env=pool_up.environment(), stdout=subprocess.DEVNULL)
    master, schedd = psutil.Process(process.pid), _schedd(pool_up)
    samples: list[Sample] = []
    began = time.monotonic()
    while process.poll() is None:
        time.sleep(EVERY_S)
        if (root / "ledger.db").exists() and process.poll() is None:
            now, times = _progress(root), master.cpu_times()
            samples.append(
                Sample(
                    time.monotonic() - began,
                    now.all_credited / VERTICES,
                    now.alive + now.queued,
                    schedd.memory_info().rss,
                    times.user + times.system,
                )
            )
    if process.returncode != 0:
        raise SystemExit(f"the run ended with {process.returncode}")
    return samples


def quarter(samples: list[Sample], i: int, chunks: int) -> dict[str, Cell]:
    """Return a line of the table: the samples of a quarter of the work; {} if they show no progress, in a short run."""
    mine = [s for s in samples if i / 4 <= min(s.share, 0.999) < (i + 1) / 4]
    if not mine or mine[-1].share == mine[0].share:
        return {}
    seconds = mine[-1].at_s - mine[0].at_s
    used, done = mine[-1].master_s - mine[0].master_s, (mine[-1].share - mine[0].share) * chunks
    return {
        "quarter": i + 1,
        "s": seconds,
        "jobs median": statistics.median(s.jobs for s in mine),
        "jobs max": max(s.jobs for s in mine),
        "schedd MB": statistics.median(s.schedd_bytes for s in mine) / 1e6,
        "master CPU": used / seconds,
        "master ms a chunk": used / done * 1e3,
    }


def _progress(root: Path) -> RunProgress:
    connection = connect(root)
    try:
        return read_progress(connection, time.time())
    finally:
        connection.close()


def _schedd(pool_up: Pool) -> psutil.Process:
    master = pool.pid(pool_up.submit)
    assert master is not None
    return next(p for p in psutil.Process(master).children() if p.name() == "condor_schedd")


if __name__ == "__main__":
    main()

"""Run unattended through thousands of kills: on a real HTCondor pool and on local processes, at the same time.

The pool evicts its jobs at random, a third without grace, and holds them like the OSPool's schedds; local workers die
by SIGTERM or SIGKILL. Runs follow one another until each back end has had half of the kills.

    python -m benchmarks.unattended [KILLS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import safetensors.numpy

from benchmarks.arguments import numbers, sized
from benchmarks.condor.holds import policy
from benchmarks.table import Cell, write
from master.simulation.result import verify_credits
from pools import pool
from pools.release import NoCondor
from pools.submitted import PROGRAM, VERTICES

KILLS, WORKERS, EPOCHS, LIFE_S = 2_000, sized(6, 2), sized(60, 2), 4
_GRIDML = (sys.executable, "-P", "-m", "gridml")


@dataclass
class Tally:
    """The sum of all runs on one back end, each of which credited and counted every vertex once."""

    runs: int = 0
    kills: int = 0
    graceful: int = 0
    held: int = 0
    credited: int = 0
    wasted: int = 0
    minutes: float = 0.0


def main() -> None:
    (kills,) = numbers(__doc__, kills=sized(KILLS, 2))
    on_pool = ("submit", "--foreground", "--request-memory", "64MB..1GB", "--request-disk", "100MB")
    on_processes = ("run", "--lifetime", f"exponential({LIFE_S}s)")
    with tempfile.TemporaryDirectory(prefix="unattended-") as folder:
        try:
            with (
                pool.personal(Path(folder) / "pool", cpus=WORKERS, more=policy(LIFE_S)) as found,
                ThreadPoolExecutor() as pair,
            ):
                condor = pair.submit(until, kills / 2, on_pool, Path(folder) / "condor", found.environment())
                local = pair.submit(until, kills / 2, on_processes, Path(folder) / "local", os.environ)
                tallies = {"HTCondor": condor.result(), "local": local.result()}
        except NoCondor as why:
            print(f"skipped: {why}")
            return
    write(
        "unattended",
        f"Runs on a real pool and on local processes at once, {WORKERS} workers each that live {LIFE_S} s in the mean",
        [row(name, tally) for name, tally in tallies.items()],
        [
            "exact: every vertex of every epoch was credited once, and the replica, which counts all vertices, has the "
            "same number",
            "held: jobs on hold, after 30 starts or for their memory; gridml replaced or released all of them",
            f"a run is {EPOCHS} epochs of {VERTICES:,} vertices ({PROGRAM.name}); wasted: trained again",
        ],
    )


def until(kills: float, options: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> Tally:
    """Play runs until the number of kills is reached. Raises SystemExit if a run does not finish."""
    tally = Tally()
    verb, *rest = options
    while tally.kills < kills:
        root = folder / str(tally.runs)
        root.parent.mkdir(exist_ok=True)
        asked = ("--workers", str(WORKERS), "--epochs", str(EPOCHS), "--seed", str(tally.runs), "--run-dir", str(root))
        with (folder / f"{tally.runs}.log").open("w") as log:
            command = [*_GRIDML, verb, str(PROGRAM), *asked, *rest, "--json"]
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(options)} ended with {done.returncode}: {Path(log.name).read_text()[-2000:]}")
        count(tally, root)
        print(verb, tally, flush=True)
    return tally


def count(tally: Tally, root: Path) -> None:
    """Add a finished run. Raises AssertionError if a vertex was not credited, or not counted, exactly once."""
    said = json.loads(subprocess.run([*_GRIDML, "report", str(root), "--json"], capture_output=True, check=True).stdout)
    assert verify_credits(root).credited == VERTICES * EPOCHS
    trained = safetensors.numpy.load_file(root / "final.safetensors")
    assert [int(values.sum()) for values in trained.values()] == [VERTICES * EPOCHS]
    assert (said["duplicated"], said["lost"]) == (0, 0)
    tally.runs += 1
    tally.kills += said["kills"]
    tally.graceful += said["sigterm"]
    tally.held += sum(
        line.split()[2] == "held" for line in (root / "events.log").read_text().splitlines() if line[:1] != " "
    )
    tally.credited += said["credited"]
    tally.wasted += said["wasted"]
    tally.minutes += said["wall_s"] / 60


def row(name: str, tally: Tally) -> dict[str, Cell]:
    return {
        "back end": name,
        "runs": tally.runs,
        "exact": tally.runs,
        "kills": tally.kills,
        "with grace": tally.graceful,
        "held": tally.held,
        "credited": tally.credited,
        "wasted": tally.wasted,
        "min": tally.minutes,
    }


if __name__ == "__main__":
    main()

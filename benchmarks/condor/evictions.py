"""LeNet on MNIST on four firewalled workers of a real HTCondor pool with frequent evictions, by each carrier.

The pool's startds preempt at random: a life lasts 20 s on average, and a third of the evictions have no grace. The
master is a job of the local universe. Each worker host draws its own random numbers, because HTCondor seeds random()
alike on all of them.

    python -m benchmarks.condor.evictions
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from pools import pool
from pools.pool import Pool
from pools.release import NoCondor

_ROOT = Path(__file__).parents[2]
EXAMPLE = _ROOT / sized("examples/mnist.py", "benchmarks/programs/adult.py")
WORKERS, SUBNET = sized(4, 2), 80
LIFE_S = 20
_GRIDML = (sys.executable, "-P", "-m", "gridml")
# A startd evaluates its policy once a second (POLLING_INTERVAL). HTCondor seeds random() alike on all hosts, so the
# draw is compared with the number in the host's name: worker1, worker2, ...
POLICY = f"""
PREEMPT = (Activity == "Busy") && (int(random(1.0) * {LIFE_S}.0) == int(substr(Machine, 6, 1)))
WANT_VACATE = random(1.0) < 2/3.0
MachineMaxVacateTime = 5
"""


def main() -> None:
    numbers(__doc__)
    with tempfile.TemporaryDirectory(prefix="evictions-") as folder:
        try:
            with pool.firewalled(Path(folder) / "pool", workers=WORKERS, more=POLICY, subnet=SUBNET) as pool_up:
                by_sftp = ("--carrier", "sftp", "--sftp", f"10.{SUBNET}.0.1")
                rows = [
                    run(pool_up, "chirp", Path(folder) / "by-chirp"),
                    run(pool_up, "sftp", Path(folder) / "by-sftp", *by_sftp),
                ]
        except NoCondor as why:
            print(f"skipped: {why}")
            return
    write(
        "condor_evictions",
        f"LeNet on MNIST, {WORKERS} firewalled workers that live {LIFE_S} s in the mean, by `gridml submit`",
        rows,
        [
            "evictions: with farewell (SIGTERM first, and the worker pushed its work) and without",
            "duplicated, lost: vertices credited twice or never, in all epochs; wasted: trained again",
        ],
    )


def run(pool_up: Pool, carrier: str, root: Path, *options: str) -> dict[str, Cell]:
    """Run to the end, and return a line of the table."""
    asked = (
        "submit",
        str(EXAMPLE),
        *sized((), ("--epochs", "1")),
        "--workers",
        str(WORKERS),
        "--request-memory",
        "1GB",
        "--run-dir",
        str(root),
    )
    gridml(pool_up, *asked, *options)
    gridml(pool_up, "watch", str(root))
    report = json.loads(gridml(pool_up, "report", str(root), "--json"))
    return {
        "carrier": carrier,
        "accuracy %": 100 * report["epochs"][-1]["metrics"]["accuracy"],
        "evictions": report["kills"],
        "with farewell": report["sigterm"],
        "without": report["sigkill"],
        **{name: report[name] for name in ("credited", "duplicated", "lost", "wasted")},
        "min": report["wall_s"] / 60,
        "goodput": report["goodput"],
    }


def gridml(pool_up: Pool, *arguments: str) -> str:
    done = subprocess.run([*_GRIDML, *arguments], env=pool_up.environment(), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"gridml {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()

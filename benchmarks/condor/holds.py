"""LeNet on MNIST on a real HTCondor pool that evicts its jobs at random and holds them like the OSPool's schedds.

They hold a job after 30 starts, after the hours of its category, and when it exceeds its requested memory. The run is
unattended.

    python -m benchmarks.condor.holds [EPOCHS]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.condor.evictions import EXAMPLE, gridml
from benchmarks.table import write
from master.store.reader import opened
from pools import pool, submitted
from pools.release import NoCondor

WORKERS, EPOCHS, LIFE_S, MEMORY = sized(4, 2), 60, 15, "128MB..2GB"


def policy(life_s: int) -> str:
    """Return a pool's configuration: jobs are evicted at random after `life_s` seconds on average, a third without
    grace, and held like on the OSPool. A startd evaluates its policy once a second (POLLING_INTERVAL)."""
    return f"""
PREEMPT = (Activity == "Busy") && (random(1.0) < 1/{life_s}.0)
WANT_VACATE = random(1.0) < 2/3.0
MachineMaxVacateTime = 5
{submitted.policies()}
"""


def main() -> None:
    (epochs,) = numbers(__doc__, epochs=sized(EPOCHS, 1))
    with tempfile.TemporaryDirectory(prefix="holds-") as folder:
        root = Path(folder) / "run"
        try:
            with pool.personal(Path(folder) / "pool", cpus=WORKERS, more=policy(LIFE_S)) as found:
                asked = ("--workers", str(WORKERS), "--epochs", str(epochs), "--request-memory", MEMORY)
                gridml(found, "submit", str(EXAMPLE), "--run-dir", str(root), *asked)
                gridml(found, "watch", str(root))
                report = json.loads(gridml(found, "report", str(root), "--json"))
                if report["status"] != "finished":
                    raise SystemExit(f"the run is {report['status']}: {report['stopped_because']}")
                left = found.tool(
                    "condor_q", "-constraint", "GridmlRun =!= undefined", "-af", "ClusterId"
                ).stdout.split()
        except NoCondor as why:
            print(f"skipped: {why}")
            return
        with opened(root) as ledger:
            held = [text for (text,) in ledger.execute("SELECT text FROM events WHERE topic = 'held'")]
            jobs = {worker.partition(".")[0] for (worker,) in ledger.execute("SELECT worker FROM workers")}
    write(
        "condor_holds",
        f"LeNet on MNIST, {WORKERS} workers that live {LIFE_S} s in the mean, on a pool with the OSPool's policies",
        [
            {
                "epochs": epochs,
                "accuracy %": 100 * report["epochs"][-1]["metrics"]["accuracy"],
                "evictions": report["kills"],
                "jobs": len(jobs),
                "held for their starts": sum("was started" in text for text in held),
                "for memory": sum("asks for more memory" in text for text in held),
                "otherwise": sum("was started" not in text and "asks for more memory" not in text for text in held),
                **{name: report[name] for name in ("credited", "duplicated", "lost", "wasted")},
                "workers' jobs left": len(left),
                "min": report["wall_s"] / 60,
                "goodput": report["goodput"],
            }
        ],
        [
            f"policies as in pools/submitted.py: {submitted.STARTS} starts, {submitted.MEDIUM_HOURS:g} and "
            f"{submitted.LONG_HOURS:g} hours, which no job of this run reaches; --request-memory {MEMORY}",
            "gridml replaces a job that is held for its starts, and releases one that is held for memory with a larger "
            "request; the run was unattended",
            "duplicated, lost: vertices credited twice or never, in all epochs; wasted: trained again",
        ],
    )


if __name__ == "__main__":
    main()

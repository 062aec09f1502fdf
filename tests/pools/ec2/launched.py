"""Scenarios of the tests of `gridml launch` inside a local EC2, by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.local_ec2 import all_off, credited, left_on_ec2, oldest, wait, work_of
from master.backends.ec2.provisioning import TOKEN
from master.sftp.roster import FOLDER, Roster
from pools.ec2 import control
from pools.ec2.control import VARIABLE, Control

PROGRAM = Path(__file__).parents[2] / "programs" / "slow_count.py"
GRIDML = (sys.executable, "-P", "-m", "gridml")
NOTICE_S = 10.0
OFF_S = 90.0


def launch(run: Path, *more: str) -> subprocess.Popen[bytes]:
    """Launch two instances, with output to stderr."""
    command = [
        *(*GRIDML, "launch", str(PROGRAM), "--instances", "2", "--epochs", "6", "--run-dir", str(run)),
        *("--identity-certificate", os.environ[control.CERTIFICATE_VARIABLE], "--address", "172.31.0.1"),
        *("--instance-types", "t2.small,t2.micro", "--steps-each", "0", *more),
    ]
    return subprocess.Popen(command, stdout=sys.stderr)


def gridml(*arguments: str) -> int:
    return subprocess.run([*GRIDML, *arguments], stdout=sys.stderr).returncode


def report(run: Path) -> dict[str, Any]:
    said = subprocess.run([*GRIDML, "report", str(run), "--json"], check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def taken(run: Path, provider: Control) -> dict[str, Any]:
    """Its first worker's instance is taken, with a notice."""
    with launch(run) as master:
        wait(master, lambda: credited(run) > 0.05)
        victim = wait(master, lambda: oldest(run, ()))
        provider.interrupt(victim.id, NOTICE_S)
        status = master.wait()
    provider.wait(all_off, OFF_S)
    goodbye = Roster(run).goodbye(victim.id)
    return {
        "status": status,
        "report": report(run),
        "goodbye": goodbye and [goodbye.exit_status, goodbye.evicted],
        "work": work_of(run, victim.worker),
        "left": left_on_ec2(),
        "token": (run / FOLDER / TOKEN).read_text(),
    }


def resumed(run: Path, provider: Control) -> dict[str, Any]:
    """Its master is killed, and another one takes over the instances, which kept working."""
    with launch(run) as master:
        wait(master, lambda: credited(run) > 0.1)
        master.kill()
    status = gridml("resume", str(run))
    provider.wait(all_off, OFF_S)
    return {"status": status, "report": report(run), "launched": Roster(run).ids(), "left": left_on_ec2()}


def cancelled(run: Path, provider: Control) -> dict[str, Any]:
    """Its master is killed, and the run is cancelled without a master."""
    with launch(run) as master:
        wait(master, lambda: credited(run) > 0.1)
        master.kill()
    status = gridml("cancel", str(run))
    provider.wait(all_off, OFF_S)
    return {"status": status, "left": left_on_ec2()}


def orphaned(run: Path, provider: Control) -> dict[str, Any]:
    """Its master is killed, and no other starts: its instances end themselves, and a sweep removes the rest."""
    with launch(run, "--silence", "5", "--orphan-patience", "5") as master:
        wait(master, lambda: credited(run) > 0.1)
        master.kill()
    events = provider.wait(all_off, OFF_S)
    by_themselves = [event.id for event in events if event.what == "switched itself off"]
    before = left_on_ec2()
    status = gridml("ec2", "sweep", "--older-than", "0s", "--yes")
    return {"by_themselves": by_themselves, "before": before, "status": status, "left": left_on_ec2()}


def main(name: str, folder: Path) -> None:
    scenarios: dict[str, Callable[[Path, Control], dict[str, Any]]] = {
        each.__name__: each for each in (taken, resumed, cancelled, orphaned)
    }
    print(json.dumps(scenarios[name](folder / "run", Control(os.environ[VARIABLE]))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

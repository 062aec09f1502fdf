"""What the test of `gridml launch` does inside a local EC2: a run whose first worker is taken, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.local_ec2 import all_off, credited, left_on_ec2, oldest, wait, work_of
from master.sftp.roster import Roster
from pools.ec2 import inside
from pools.ec2.control import VARIABLE, Control

GRIDML = (sys.executable, "-P", "-c", "from gridml.cli import main; main()")
NOTICE_S = 10.0


def main(program: str, folder: Path) -> None:
    provider, run = Control(os.environ[VARIABLE]), folder / "run"
    command = [
        *(*GRIDML, "launch", program, "--instances", "2", "--epochs", "6", "--run-dir", str(run)),
        *("--identity-certificate", os.environ[inside.CERTIFICATE_VARIABLE], "--address", "172.31.0.1"),
        *("--instance-types", "t2.small,t2.micro", "--steps-each", "0"),
    ]
    with subprocess.Popen(command, stdout=sys.stderr) as launch:
        wait(launch, lambda: credited(run) > 0.05)
        taken = wait(launch, lambda: oldest(run, ()))
        provider.interrupt(taken.id, NOTICE_S)
        status = launch.wait()
    provider.wait(all_off, 60.0)
    farewell = Roster(run).farewell(taken.id)
    said = subprocess.run([*GRIDML, "report", str(run), "--json"], check=True, capture_output=True, text=True).stdout
    outcome = {
        "status": status,
        "report": json.loads(said),
        "taken": taken.worker,
        "farewell": farewell and [farewell.exit_status, farewell.evicted],
        "work": work_of(run, taken.worker),
        "left": left_on_ec2(),
        "token": (run / "fleet-token").read_text(),
    }
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

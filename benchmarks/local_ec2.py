"""LeNet on MNIST by `gridml launch` on a local EC2 whose instances really boot and are interrupted like on the real
one.

Four instances. The first fleet finds no capacity; one instance of the second never reports and is replaced; two are
interrupted with a notice of two minutes; one is taken without notice. One machine is provider, master and all
instances at once, which the times include. Needs root; the first call takes minutes to build the root file system of
the instances.

    python -m benchmarks.local_ec2
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import numbers
from benchmarks.table import Cell, write
from master.sftp.roster import Instance, Roster
from pools.ec2 import control, root
from pools.ec2.control import VARIABLE, Control
from pools.ec2.guest_cloud import CloudEvent
from pools.ec2.machine import NoLocalEc2, unavailable

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.py"
INSTANCES, NOTICE_S, BOOT_PATIENCE_S = 4, 120.0, 60.0
LIMIT_S, OFF_S = 3600.0, 60.0
OFF = ("is taken", "is gone", "switched itself off", "is terminated as asked")
TYPES = "t2.small,t2.micro"  # of one vCPU: each worker uses one thread
MIN_ACCURACY = 0.99
# (credited share of the run, fate of a worker's instance)
FATES = ((0.1, "interrupted"), (0.3, "crashed"), (0.5, "interrupted"))
_GRIDML = (sys.executable, "-P", "-m", "gridml")


def main() -> None:
    numbers(__doc__)
    reason = unavailable()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    try:
        made = root.prepare()
    except NoLocalEc2 as error:
        print(f"skipped: {error}")
        return
    with tempfile.TemporaryDirectory(prefix="local-ec2-") as folder:
        command = [sys.executable, "-m", "benchmarks.local_ec2", "--inside", folder]
        done = subprocess.run(control.command(made, Path(folder), command), env=control.environment())
    sys.exit(done.returncode)


@dataclass(frozen=True)
class Deed:
    """The provider's action on a worker's instance."""

    fate: str
    instance: Instance
    at_s: float  #: seconds since 1970


def play(folder: Path) -> None:
    """Run the program inside the local EC2, act as the provider, and write the results."""
    provider, run = Control(os.environ[VARIABLE]), folder / "run"
    provider.refuse(1)
    provider.mute(1)
    command = [
        *(*_GRIDML, "launch", str(EXAMPLE), "--instances", str(INSTANCES), "--run-dir", str(run)),
        *("--identity-certificate", os.environ[control.CERTIFICATE_VARIABLE], "--address", "172.31.0.1"),
        *("--instance-types", TYPES, "--boot-patience", str(BOOT_PATIENCE_S)),
    ]
    deeds: list[Deed] = []
    with subprocess.Popen(command) as launch:
        for share, fate in FATES:
            wait(launch, lambda share=share: credited(run) >= share)  # type: ignore[misc]
            victim = wait(launch, lambda: oldest(run, deeds))
            deeds.append(Deed(fate, victim, time.time()))
            if fate == "crashed":
                provider.crash(victim.id)
            else:
                provider.interrupt(victim.id, NOTICE_S)
        status = launch.wait(LIMIT_S)
    report = json.loads(
        subprocess.run([*_GRIDML, "report", str(run), "--json"], check=True, capture_output=True, text=True).stdout
    )
    left = left_on_ec2()
    provider.wait(all_off, OFF_S)
    rows = lives(run, provider, deeds)
    write(
        "local_ec2",
        f"LeNet on MNIST by `gridml launch --instances {INSTANCES}` on a local EC2: every instance that was launched",
        rows,
        [
            f"accuracy {100 * report['epochs'][-1]['metrics']['accuracy']:.2f}% after {len(report['epochs'])} epochs, "
            f"{report['wall_s'] / 60:.1f} min; {report['credited']:,} vertices credited, {report['duplicated']} twice, "
            f"{report['lost']} never, {report['wasted']:,} trained again; goodput {report['goodput']:.2f}",
            f"exit status {status}; the first fleet found no capacity; left on EC2: {left or 'nothing'}",
            "first ping s: from launch to enrolment; last push s: from the notice to the last credit; off s: from the "
            "notice to the end of the instance, two minutes later unless the run is over before",
            "trained in vain: vertices that the worker's heartbeats reported but that were not credited to it",
        ],
    )
    interrupted = [row for row in rows if row["fate"] == "interrupted"]
    wrong = [
        *(["the run did not end well"] if status or report["status"] != "finished" else []),
        *([f"left on EC2: {left}"] if left else []),
        *(["credits are not exact"] if report["duplicated"] or report["lost"] else []),
        *(["accuracy"] if report["epochs"][-1]["metrics"]["accuracy"] < MIN_ACCURACY else []),
        *(["an interrupted worker lost work"] if any(row["trained in vain"] for row in interrupted) else []),
        *(["no instance was mute"] if not any(row["fate"] == "mute" for row in rows) else []),
    ]
    if wrong:
        raise SystemExit(f"the run is wrong: {', '.join(wrong)}")


def wait(launch: subprocess.Popen[bytes], found: Callable[[], Any]) -> Any:
    """Poll `found` until it returns a true value, and return that. Raises SystemExit if the run ends before."""
    while not (value := found()):
        if launch.poll() is not None:
            raise SystemExit(f"the run ended with {launch.returncode} before all planned interruptions")
        time.sleep(0.2)
    return value


def credited(run: Path) -> float:
    """Return the credited share of the run; 0 before its ledger exists."""
    done = subprocess.run([*_GRIDML, "status", str(run), "--json"], capture_output=True, text=True)
    if done.returncode:
        return 0.0
    status = json.loads(done.stdout)
    return float(status["all_credited"] / status["total"])


def oldest(run: Path, deeds: Sequence[Deed]) -> Instance | None:
    """Return the instance that has been enrolled for longest and that the provider has not touched; None: none."""
    roster, done = Roster(run), {deed.instance.id for deed in deeds}
    enrolled = [
        (enrolment.enrolled_s, id)
        for id in roster.ids()
        if id not in done
        and (enrolment := roster.enrolment(id)) is not None
        and roster.goodbye(id) is None
        and roster.end(id) is None
    ]
    return roster.instance(min(enrolled)[1]) if enrolled else None


def all_off(events: Sequence[CloudEvent]) -> bool:
    """Return True if every guest that was launched is off."""
    return {e.id for e in events if e.what == "is launched"} <= {e.id for e in events if e.what in OFF}


def lives(run: Path, provider: Control, deeds: Sequence[Deed]) -> list[dict[str, Cell]]:
    """Return a line of the table for each instance."""
    roster, fates = Roster(run), {deed.instance.id: deed for deed in deeds}
    events = provider.events()
    launched = {event.id: event.at_s for event in events if event.what == "is launched"}
    off = {event.id: event.at_s for event in events if event.what in OFF}
    mute = {event.id for event in events if "network cut" in event.what}
    rows: list[dict[str, Cell]] = []
    for id in sorted(roster.ids(), key=lambda each: launched[each]):
        instance, enrolment, deed = roster.instance(id), roster.enrolment(id), fates.get(id)
        assert instance is not None
        kept, lost, last_s = work_of(run, instance.worker)
        noticed = deed is not None and deed.fate == "interrupted"
        rows.append(
            {
                "instance": instance.worker,
                "fate": deed.fate if deed else "mute" if id in mute else "stayed",
                "first ping s": enrolment.enrolled_s - launched[id] if enrolment else None,
                "last push s": last_s - deed.at_s if deed and noticed and last_s else None,
                "off s": off[id] - deed.at_s if deed and id in off else None,
                "credited": kept,
                "trained in vain": lost,
            }
        )
    return rows


def work_of(run: Path, worker: str) -> tuple[int, int, float | None]:
    """Return a worker's credited vertices, those that its heartbeats reported but that were lost with its leases, and
    the time of its last credit in seconds since 1970; None if it has none."""
    with closing(sqlite3.connect(f"file:{run / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        kept, last_s = ledger.execute(
            "SELECT coalesce(sum(stop - start), 0), max(at_s) FROM credits WHERE worker = ?", (worker,)
        ).fetchone()
        (lost,) = ledger.execute(
            "SELECT coalesce(sum(max(0, trained - (upto - start))), 0) FROM leases"
            " WHERE worker = ? AND closed_s IS NOT NULL",
            (worker,),
        ).fetchone()
    return int(kept), int(lost), last_s


def left_on_ec2() -> str:
    """Return the names of the resources that still exist, separated by commas."""
    import boto3

    ec2 = boto3.client("ec2")
    described = [each for found in ec2.describe_instances()["Reservations"] for each in found["Instances"]]
    instances = [each["InstanceId"] for each in described if each["State"]["Name"] != "terminated"]
    templates = [each["LaunchTemplateId"] for each in ec2.describe_launch_templates()["LaunchTemplates"]]
    groups = [e["GroupId"] for e in ec2.describe_security_groups()["SecurityGroups"] if e["GroupName"] != "default"]
    return ", ".join([*instances, *templates, *groups])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        play(Path(sys.argv[2]))
    else:
        main()

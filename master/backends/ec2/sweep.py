"""What runs that are over have left on EC2, found by its tags and removed."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridml.errors import GridmlError, RunError
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.ends import note_unwatched_end
from master.backends.ec2.removal import Made, made_by, remove
from master.decisions.sweeping import Remains, may_be_swept
from master.sftp.roster import Roster
from master.store.cancelled import mark_cancelled
from master.store.reader import holder
from master.store.rundir import MasterLock, RunDirectory


@dataclass(frozen=True)
class Found:
    """What one run has on EC2, whether it may be removed, and why. `root` is its directory, None where it is of another
    machine."""

    run: str
    made: Made
    swept: bool
    reason: str
    root: Path | None


def withdraw(cloud: Cloud, directory: RunDirectory, rest: Callable[[float], None] = time.sleep) -> str | None:
    """Remove what a run has on EC2 that no master holds; return what it was, None for nothing.

    Raises RunError when a master holds it, where EC2 refuses, or for what is left all the same.
    """
    facts = Roster(directory.root).facts
    if facts is None:
        return None
    lock = MasterLock(directory)  # a master that begins meanwhile ends at once
    try:
        roster = Roster(directory.root)
        found = removed(cloud, facts.run, rest)
        _note_ends(cloud, facts.run, roster)
        if found:
            mark_cancelled(directory)
        return str(found) or None
    finally:
        lock.release()


def _note_ends(cloud: Cloud, run: str, roster: Roster) -> None:
    """Keep when the instances ended, or the report would count them as paid for until now."""
    seen, now = {each.id: each for each in cloud.instances(run)}, time.time()
    for id in roster.ids():
        note_unwatched_end(roster, id, seen, now, "removed while no master drove the run")


def swept(cloud: Cloud, found: Found) -> Made:
    """Remove what a run has left; return what that was. Raises RunError for what is left all the same."""
    made = removed(cloud, found.run)
    if found.root is not None:
        roster = Roster(found.root)
        if (facts := roster.facts) is not None and facts.run == found.run:
            _note_ends(cloud, found.run, roster)
    return made


def removed(cloud: Cloud, run: str, rest: Callable[[float], None] = time.sleep) -> Made:
    """Remove what a run has; return what that was. Raises RunError for what is left."""
    found, left = remove(cloud, run, rest)
    if left:
        raise RunError(f"on EC2 there is still {left} of {run}. Ask again in some minutes.")
    return found


def find(cloud: Cloud, run: str | None, older_than_s: float, now: float) -> list[Found]:
    """Return what every run has on EC2, or the one that is named."""
    everything = made_by(cloud, run)
    found = []
    for name, place in sorted(everything.runs.items()):
        made = everything.of(name)
        host, _, path = place.partition(":")
        here = host == socket.gethostname()
        root = Path(path) if here else None
        driven = None if root is None else _driver(root)
        ages = [now - each.launched_s for each in made.instances]
        remains = Remains(name, host, here, driven, min(ages, default=None))
        verdict = may_be_swept(remains, named=run is not None, older_than_s=older_than_s)
        found.append(Found(name, made, *verdict, root))
    return found


def _driver(root: Path) -> str | None:
    """Who drives the run in a directory; nobody, where there is none."""
    with contextlib.suppress(OSError, GridmlError):
        return holder(root)
    return None

"""Removal of a run's resources on EC2, found by their tags: instances first, then what they were launched from."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridml.errors import GridmlError, RunError
from master.backends.ec2.answers import ListedInstance, TaggedResource
from master.backends.ec2.cloud import ALIVE, Cloud
from master.backends.ec2.states import note_unwatched_end
from master.sftp.roster import Roster
from master.store.journal import mark_cancelled
from master.store.reader import holder
from master.store.rundir import MasterLock, RunDirectory

SHUTTING_DOWN = "shutting-down"  # a state in which an instance is no longer paid for
MAX_POLLS, POLL_INTERVAL_S = 60, 5.0  # how often to poll until everything is removed, and the pause between polls


@dataclass(frozen=True)
class Resources:
    """The resources of one run, or of all runs, on EC2."""

    instances: tuple[ListedInstance, ...] = ()
    templates: tuple[TaggedResource, ...] = ()
    groups: tuple[TaggedResource, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.instances or self.templates or self.groups)

    def __str__(self) -> str:
        parts = [("instance", self.instances), ("launch template", self.templates), ("security group", self.groups)]
        return ", ".join(f"{len(found)} {what}{'s' if len(found) > 1 else ''}" for what, found in parts if found)

    @property
    def runs(self) -> dict[str, str]:
        """The runs' directories (HOST:PATH), by name."""
        return {each.run: each.place for each in (*self.groups, *self.templates, *self.instances)}

    def of(self, run: str) -> Resources:
        """Return the resources of one run."""
        return Resources(
            tuple(each for each in self.instances if each.run == run),
            tuple(each for each in self.templates if each.run == run),
            tuple(each for each in self.groups if each.run == run),
        )


def made_by(cloud: Cloud, run: str | None = None) -> Resources:
    """List the resources of a run, or of all runs. Raises CloudError."""
    return Resources(tuple(cloud.instances(run, states=ALIVE)), tuple(cloud.templates(run)), tuple(cloud.groups(run)))


def remove_run(
    cloud: Cloud, run: str, rest: Callable[[float], None], max_polls: int = MAX_POLLS
) -> tuple[Resources, Resources]:
    """Remove the resources of a run. Returns (those found, those left after `max_polls` polls). Raises CloudError."""
    found = left = made_by(cloud, run)
    for poll in range(max_polls):
        if not left:
            break
        if poll:
            rest(POLL_INTERVAL_S)
        cloud.end([each.id for each in left.instances if each.state != SHUTTING_DOWN])
        for template in left.templates:
            cloud.remove_template(template.id)
        for group in left.groups:  # EC2 refuses while a group has an instance; the next poll retries
            cloud.remove_group(group.id)
        left = made_by(cloud, run)
    return found, left


@dataclass(frozen=True)
class RunRemains:
    """Facts about a run with resources on EC2, for `may_be_swept`."""

    run: str
    host: str  # host of the run directory
    here: bool  # the host is this machine
    driven: str | None  # the process of the run's master; None if this machine has no such process
    youngest_s: float | None  # age of the run's youngest instance; None if it has no instance


def may_be_swept(remains: RunRemains, *, named: bool, older_than_s: float) -> tuple[bool, str]:
    """Return whether to remove the resources of a run, and the reason; `named` if the user named this run."""
    if remains.driven is not None:
        return False, f"its master drives it: {remains.driven}"
    if remains.youngest_s is not None and remains.youngest_s < older_than_s:
        return (
            False,
            f"its youngest instance is {remains.youngest_s:.0f} s old, which is less than {older_than_s:.0f} s",
        )
    if named:
        return True, "it is named"
    if not remains.here:
        return False, f"whether it is over can be seen on {remains.host or 'another machine'} only; name it with --run"
    return True, "no master drives it"


@dataclass(frozen=True)
class Leftovers:
    """The resources of one run, and whether a sweep removes them."""

    run: str
    made: Resources
    swept: bool
    reason: str
    root: Path | None  # the run directory, None if it is on another machine


def withdraw(cloud: Cloud, directory: RunDirectory, rest: Callable[[float], None] = time.sleep) -> str | None:
    """Remove the resources of a run without a master; return a description of what was removed, None for nothing.

    Raises RunError if a master drives the run, if EC2 refuses, or if something is left.
    """
    facts = Roster(directory.root).facts
    if facts is None:
        return None
    with MasterLock(directory):  # a master that starts now finds the lock taken and exits
        found = removed(cloud, facts.run, rest)
        _note_ends(cloud, facts.run, Roster(directory.root))
        if found:
            mark_cancelled(directory)
        return str(found) or None


def _note_ends(cloud: Cloud, run: str, roster: Roster) -> None:
    """Record the ends of a run's instances, because the report would otherwise count their costs until now."""
    seen, now = {each.id: each for each in cloud.instances(run)}, time.time()
    for id in roster.ids():
        note_unwatched_end(roster, id, seen, now, "removed while no master drove the run")


def swept(cloud: Cloud, found: Leftovers) -> Resources:
    """Remove the leftovers of a run; return the resources found. Raises RunError if one is still there afterwards."""
    made = removed(cloud, found.run)
    if found.root is not None:
        roster = Roster(found.root)
        if (facts := roster.facts) is not None and facts.run == found.run:
            _note_ends(cloud, found.run, roster)
    return made


def removed(cloud: Cloud, run: str, rest: Callable[[float], None] = time.sleep) -> Resources:
    """Remove the resources of a run; return the resources found. Raises RunError if one is still there afterwards."""
    found, left = remove_run(cloud, run, rest)
    if left:
        raise RunError(f"on EC2 there is still {left} of {run}. Try again in some minutes.")
    return found


def find(cloud: Cloud, run: str | None, older_than_s: float, now: float) -> list[Leftovers]:
    """Return the resources of every run, or of the run that is named, and whether they may be removed."""
    everything = made_by(cloud, run)
    found = []
    for name, place in sorted(everything.runs.items()):
        made = everything.of(name)
        host, _, path = place.partition(":")
        here = host == socket.gethostname()
        root = Path(path) if here else None
        driven = None if root is None else _driver(root)
        ages = [now - each.launched_s for each in made.instances]
        remains = RunRemains(name, host, here, driven, min(ages, default=None))
        verdict = may_be_swept(remains, named=run is not None, older_than_s=older_than_s)
        found.append(Leftovers(name, made, *verdict, root))
    return found


def _driver(root: Path) -> str | None:
    """Return the process that drives the run in a directory; None if there is no such process, or no run."""
    with contextlib.suppress(OSError, GridmlError):
        return holder(root)
    return None

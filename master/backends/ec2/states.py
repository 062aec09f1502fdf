"""Ends of workers and instances.

A table derives the end of a worker from EC2's state of its instance and from the worker's goodbye message. The roster
records the ends of instances, from which costs are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from master.backends.ec2.answers import ListedInstance
from master.sftp.roster import End, GoodbyeMessage, Roster
from master.state.jobs import State, in_words


class Stage(StrEnum):
    """Stages of an instance's life."""

    THERE = "is there"
    GONE = "is gone or going"


class Cause(StrEnum):
    """Reasons why an instance ends."""

    TAKEN = "EC2 took it"
    ASKED = "somebody asked EC2 to end it"
    ITSELF = "it shut itself down"
    BROKEN = "EC2 could not start it or keep it running"
    UNSAID = "EC2 does not say why"


class Goodbye(StrEnum):
    """The worker's goodbye message."""

    NONE = "no goodbye"
    DONE = "it left with status 0"
    FAILED = "it left with another status"
    TAKEN = "its instance got an interruption notice"  # from EC2


# A stopped instance counts as ended: if started again, it would not be the same worker.
_GOING = ("shutting-down", "terminated", "stopping", "stopped")
_CAUSES: Mapping[str, Cause] = {
    "Server.SpotInstanceTermination": Cause.TAKEN,
    "Server.SpotInstanceShutdown": Cause.TAKEN,
    "Server.SpotInstanceStop": Cause.TAKEN,
    "Server.ScheduledStop": Cause.TAKEN,
    "Client.UserInitiatedShutdown": Cause.ASKED,
    "Client.UserInitiatedHibernate": Cause.ASKED,
    "Client.InstanceInitiatedShutdown": Cause.ITSELF,
    "Client.InstanceTerminated": Cause.ITSELF,
    "Client.InternalError": Cause.BROKEN,
    "Client.InvalidSnapshot.NotFound": Cause.BROKEN,
    "Client.VolumeLimitExceeded": Cause.BROKEN,
    "Server.InsufficientInstanceCapacity": Cause.BROKEN,
    "Server.InternalError": Cause.BROKEN,
}

_LEFT = {Goodbye.DONE: State.FINISHED, Goodbye.FAILED: State.LOST, Goodbye.TAKEN: State.EVICTED}
ENDS: Mapping[tuple[Stage, Cause, Goodbye], State | None] = {
    **{(stage, cause, goodbye): end for stage in Stage for cause in Cause for goodbye, end in _LEFT.items()},
    # An interrupted instance shuts its system down, and its worker may then leave with status 0.
    **{(stage, Cause.TAKEN, goodbye): State.EVICTED for stage in Stage for goodbye in Goodbye},
    **{(Stage.GONE, cause, Goodbye.NONE): State.LOST for cause in Cause},
    **{(Stage.GONE, cause, Goodbye.NONE): State.EVICTED for cause in (Cause.TAKEN, Cause.ASKED)},
    **{(Stage.THERE, cause, Goodbye.NONE): None for cause in Cause},  # the worker lives
}
"""The end of a worker that was not cancelled; None while the worker is alive. The table covers every combination."""


def stage_of(state: str) -> Stage:
    """Return the stage for EC2's name of a state. An unknown state counts as THERE: no worker is given up early."""
    return Stage.GONE if state in _GOING else Stage.THERE


def cause_of(reason: str) -> Cause:
    """Return the cause for the code of an instance's StateReason."""
    return _CAUSES.get(reason, Cause.UNSAID)


def goodbye_of(goodbye: GoodbyeMessage | None) -> Goodbye:
    """Classify a worker's goodbye message; `goodbye` is None if there is no message."""
    if goodbye is None:
        return Goodbye.NONE
    if goodbye.evicted:
        return Goodbye.TAKEN
    return Goodbye.DONE if goodbye.exit_status == 0 else Goodbye.FAILED


def end_of(state: str, reason: str, goodbye: GoodbyeMessage | None) -> State | None:
    """Return the end of a worker, None while it is alive."""
    return ENDS[stage_of(state), cause_of(reason), goodbye_of(goodbye)]


def is_there(seen: ListedInstance | None) -> bool:
    """Return whether EC2 lists an instance as alive."""
    return seen is not None and stage_of(seen.state) is Stage.THERE


def was_taken(seen: ListedInstance | None, *, notified: bool) -> bool:
    """Return whether EC2 interrupted an instance; `notified` if it got the interruption notice."""
    # EC2's own reason has priority over the notice: an instance that its user ended after the notice is paid for.
    if seen is None or is_there(seen) or cause_of(seen.reason) is Cause.UNSAID:
        return notified
    return cause_of(seen.reason) is Cause.TAKEN


def note_end(roster: Roster, id: str, seen: ListedInstance | None, now: float) -> None:
    """Record when an instance ended whose worker's end is in the roster, and whether EC2 interrupted it."""
    if (end := roster.end(id)) is not None:
        roster.keep(replace(end, ended_s=now, taken=was_taken(seen, notified=end.taken)))


def note_unwatched_end(roster: Roster, id: str, seen: Mapping[str, ListedInstance], now: float, why: str) -> None:
    """Record the end of an instance that no master observed. The time is EC2's, or the goodbye message's, or `now`."""
    instance, goodbye, found = roster.instance(id), roster.goodbye(id), seen.get(id)
    if instance is None or roster.end(id) is not None:
        return
    ended_s = now
    if not is_there(found):
        known = found.ended_s if found is not None else goodbye.said_s if goodbye is not None else None
        ended_s = now if known is None else min(now, max(known, instance.launched_s))
    roster.keep(End(id, ended_s, why, was_taken(found, notified=goodbye is not None and goodbye.evicted)))


def in_full(state: str, reason: str, goodbye: GoodbyeMessage | None) -> str:
    """Describe how a worker ended, for logs and reports."""
    of_machine = f"the instance is {state}: {cause_of(reason)}{f' ({reason})' if reason else ''}"
    if goodbye is None:
        return of_machine
    said = f"{in_words(goodbye.exit_status)}, {goodbye.why}" if goodbye.why else in_words(goodbye.exit_status)
    return said if stage_of(state) is Stage.THERE else f"{said}; {of_machine}"

"""When instances ended and who ended them, written into the roster: what is paid for them follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from master.backends.base import in_words
from master.backends.ec2.answers import Seen
from master.backends.ec2.states import Cause, Stage, cause_of, stage_of
from master.sftp.roster import End, Farewell, Roster


def is_there(seen: Seen | None) -> bool:
    """Whether EC2 lists an instance that is not going."""
    return seen is not None and stage_of(seen.state) is Stage.THERE


def was_taken(seen: Seen | None, *, told: bool) -> bool:
    """Whether EC2 took an instance: what EC2 says of one that is gone counts, and else what the instance was `told`.
    One that was told so and that its user ended first is paid for."""
    if seen is None or is_there(seen) or cause_of(seen.reason) is Cause.UNSAID:
        return told
    return cause_of(seen.reason) is Cause.TAKEN


def note_end(roster: Roster, id: str, seen: Seen | None, now: float) -> None:
    """Keep that an instance is gone whose worker has ended before."""
    if (end := roster.end(id)) is not None:
        roster.keep(replace(end, ended_s=now, taken=was_taken(seen, told=end.taken)))


def note_unwatched_end(roster: Roster, id: str, seen: Mapping[str, Seen], now: float, why: str) -> None:
    """Keep the end of an instance that no master saw: at the moment that EC2 tells of, as long as it remembers it."""
    instance, farewell, found = roster.instance(id), roster.farewell(id), seen.get(id)
    if instance is None or roster.end(id) is not None:
        return
    ended_s = now
    if not is_there(found):
        known = found.ended_s if found is not None else farewell.said_s if farewell is not None else None
        ended_s = now if known is None else min(now, max(known, instance.launched_s))
    roster.keep(End(id, ended_s, why, was_taken(found, told=farewell is not None and farewell.evicted)))


def in_full(state: str, reason: str, farewell: Farewell | None) -> str:
    """How a worker ended, for a person."""
    of_machine = f"the instance is {state}: {cause_of(reason)}{f' ({reason})' if reason else ''}"
    if farewell is None:
        return of_machine
    said = f"{in_words(farewell.exit_status)}, {farewell.why}" if farewell.why else in_words(farewell.exit_status)
    return said if stage_of(state) is Stage.THERE else f"{said}; {of_machine}"

"""What becomes of a worker, from what EC2 says of its instance and what the worker said when it left: one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from master.backends.base import State
from master.sftp.roster import Farewell


class Stage(StrEnum):
    """How far an instance has come."""

    THERE = "is there"
    GONE = "is gone or going"


class Cause(StrEnum):
    """Why an instance is going."""

    TAKEN = "EC2 took it"
    ASKED = "somebody asked EC2 to end it"
    ITSELF = "it shut itself down"
    BROKEN = "EC2 could not start it or keep it running"
    UNSAID = "EC2 does not say why"


class Word(StrEnum):
    """What the worker of an instance said when it left."""

    NONE = "no word"
    DONE = "it left with status 0"
    FAILED = "it left with another status"
    TAKEN = "it was told that its instance is taken"


_STAGES: Mapping[str, Stage] = {
    "pending": Stage.THERE,
    "running": Stage.THERE,
    "shutting-down": Stage.GONE,
    "terminated": Stage.GONE,
    "stopping": Stage.GONE,  # it will not come again as the same worker
    "stopped": Stage.GONE,
}
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

ENDS: Mapping[tuple[Stage, Cause, Word], State | None] = {
    **{(Stage.THERE, cause, Word.NONE): None for cause in Cause},  # the worker lives
    **{(Stage.THERE, cause, Word.DONE): State.FINISHED for cause in Cause if cause is not Cause.TAKEN},
    **{(Stage.THERE, cause, Word.FAILED): State.LOST for cause in Cause if cause is not Cause.TAKEN},
    **{(Stage.THERE, Cause.TAKEN, word): State.EVICTED for word in (Word.DONE, Word.FAILED)},
    (Stage.GONE, Cause.TAKEN, Word.NONE): State.EVICTED,
    (Stage.GONE, Cause.TAKEN, Word.DONE): State.EVICTED,  # status 0 because its system went down
    (Stage.GONE, Cause.TAKEN, Word.FAILED): State.EVICTED,
    (Stage.GONE, Cause.ASKED, Word.NONE): State.EVICTED,
    (Stage.GONE, Cause.ASKED, Word.DONE): State.FINISHED,
    (Stage.GONE, Cause.ASKED, Word.FAILED): State.LOST,
    (Stage.GONE, Cause.ITSELF, Word.NONE): State.LOST,
    (Stage.GONE, Cause.ITSELF, Word.DONE): State.FINISHED,
    (Stage.GONE, Cause.ITSELF, Word.FAILED): State.LOST,
    (Stage.GONE, Cause.BROKEN, Word.NONE): State.LOST,
    (Stage.GONE, Cause.BROKEN, Word.DONE): State.FINISHED,
    (Stage.GONE, Cause.BROKEN, Word.FAILED): State.LOST,
    (Stage.GONE, Cause.UNSAID, Word.NONE): State.LOST,
    (Stage.GONE, Cause.UNSAID, Word.DONE): State.FINISHED,
    (Stage.GONE, Cause.UNSAID, Word.FAILED): State.LOST,
    **{(stage, cause, Word.TAKEN): State.EVICTED for stage in Stage for cause in Cause},
}
"""The end of a worker that the master did not ask for, None while it lives."""


def stage_of(state: str) -> Stage:
    """Return what a state of EC2's means; one that is new counts as being there."""
    return _STAGES.get(state, Stage.THERE)


def cause_of(reason: str) -> Cause:
    """Return what the code of an instance's StateReason means."""
    return _CAUSES.get(reason, Cause.UNSAID)


def word_of(farewell: Farewell | None) -> Word:
    """Return what a worker said when it left, None: nothing."""
    if farewell is None:
        return Word.NONE
    if farewell.evicted:
        return Word.TAKEN
    return Word.DONE if farewell.exit_status == 0 else Word.FAILED


def end_of(state: str, reason: str, farewell: Farewell | None) -> State | None:
    """Return how a worker has ended, None while it lives."""
    return ENDS[stage_of(state), cause_of(reason), word_of(farewell)]

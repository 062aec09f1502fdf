"""What is done about a job that was put on hold: it is let go again, replaced, left to a person, or the run stops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

MAX_HELD = 3  # jobs on hold before any worker has spoken
MAX_RELEASES = 3  # of one job, where what held it may pass; then another takes its place
MAX_RAISES = 10  # of what one job asks for: it doubles each time
RELEASE_S = 15.0  # before the first of them, four times as long before each further one
MAX_ROUNDS = 3  # holds for each worker that is asked for, with nothing credited in between
FEWEST_HOLDS = 10  # so many are borne in any case


class HeldFor(StrEnum):
    """Why a job is on hold, as far as it matters for what is done about it."""

    PERSON = "a person"  # somebody wants it so
    POLICY = "a policy"  # it ran too long, or began too often: released, it would be held again; a new job is not
    MEMORY = "memory"  # it needs more, and the next attempt asks for more
    TROUBLE = "trouble"  # of its machine or its network: it may pass
    ITSELF = "itself"  # what it asks for or brings with it: every job of the run is like it


class Remedy(Enum):
    """What is done about a hold."""

    RELEASE = auto()
    REPLACE = auto()
    WAIT = auto()  # for a person
    STOP = auto()  # the run, which a person can resume


@dataclass(frozen=True)
class Hold:
    """A job on hold `because` of something, `released` so often before. `fruitless` jobs were held, by no person, since
    something was credited, this one among them; `held` are on hold, `alive` others are queued or run, of `asked`
    workers. `spoken`: some worker of the run has once."""

    because: HeldFor
    reason: str
    released: int = 0
    fruitless: int = 1
    held: int = 1
    alive: int = 0
    asked: int = 1
    spoken: bool = True


def after_hold(hold: Hold) -> tuple[Remedy, float, str]:
    """Return what to do, after how many seconds, and why.

    However the pool holds jobs, each remedy is bounded: by `MAX_RELEASES` of a job, and for the run by `MAX_ROUNDS` of
    all its workers without a credit. What only a person can mend waits while others are at work.
    """
    on_hold = f"{hold.held} jobs are on hold"
    if hold.because is HeldFor.MEMORY and hold.released < MAX_RAISES:
        return Remedy.RELEASE, 0.0, "it asks for more memory"
    if not hold.spoken and (hold.held >= MAX_HELD or not hold.alive):
        return Remedy.STOP, 0.0, f"{hold.held} jobs were put on hold and none has ever run: {hold.reason}"
    if hold.because is HeldFor.PERSON:
        return Remedy.WAIT, 0.0, f"{on_hold}; this one waits for whoever put it there"
    bound = max(FEWEST_HOLDS, MAX_ROUNDS * hold.asked)
    if hold.fruitless > bound:
        return Remedy.STOP, 0.0, f"jobs were put on hold {hold.fruitless} times with nothing credited: {hold.reason}"
    if hold.because is HeldFor.ITSELF:
        if not hold.alive:
            return Remedy.STOP, 0.0, f"all jobs are on hold, and others would be, too: {hold.reason}"
        return Remedy.WAIT, 0.0, f"{on_hold}; another job would be held, too"
    if hold.because is HeldFor.TROUBLE and hold.released < MAX_RELEASES:
        pause_s = RELEASE_S * 4.0**hold.released
        return Remedy.RELEASE, pause_s, f"what held it may pass: released in {pause_s:.0f} s"
    if hold.because in (HeldFor.TROUBLE, HeldFor.MEMORY):
        return Remedy.REPLACE, 0.0, f"it was released {hold.released} times: another job takes its place"
    return Remedy.REPLACE, 0.0, "released it would be held again: another job takes its place"

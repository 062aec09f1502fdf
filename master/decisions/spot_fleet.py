"""Which spot pools are asked for instances and when, and what is done about instances that say nothing.

A pool is an instance type in a zone: prices and spare capacity are those of a pool. Times are seconds on one clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

POOL_PAUSE_S = (30.0, 900.0)  # for which a pool without capacity is left alone: at first, at most
ACCOUNT_PAUSE_S = (15.0, 300.0)  # for which nothing is asked for, where no pool would help
FIRST_ENROLMENT_S = 120.0  # within which one of a fleet's first instances should have been heard of
SHUTDOWN_S = 60.0  # that an instance may take to end after its worker has said goodbye
NOTICE_S = 180.0  # the same, where it was told that it would be taken: two minutes' notice, and one to go


@dataclass(frozen=True, order=True)
class Pool:
    """Instances of one type in one zone."""

    type: str
    zone: str

    def __str__(self) -> str:
        return f"{self.type} in {self.zone}"


class Refusal(StrEnum):
    """Why a provider did not launch what it was asked for."""

    CAPACITY = "it has no spare capacity"
    PRICE = "the price is above --max-price"
    QUOTA = "the account's quota is used up"
    UNSUITED = "it has no such pool"
    DENIED = "the credentials do not allow it"
    MISSING = "it is asked for with what is not there"
    OTHER = "it gives another reason"


OF_NO_USE = (Refusal.DENIED, Refusal.MISSING)  # in no pool, and at no time


@dataclass(frozen=True)
class Refused:
    """How often in a row a pool, or the account, has been refused, and until when it is left alone."""

    times: int = 0
    until_s: float = 0.0
    because: Refusal = Refusal.OTHER

    @property
    def for_good(self) -> bool:
        """Whether asking again would change nothing."""
        return self.times > 0 and self.because in (Refusal.UNSUITED, *OF_NO_USE)


def after_refusal(before: Refused, because: Refusal, now: float, *, of_account: bool = False) -> tuple[Refused, str]:
    """Return until when a pool is left alone that was refused once more, and why; each time in a row twice as long."""
    first_s, most_s = ACCOUNT_PAUSE_S if of_account else POOL_PAUSE_S
    times = before.times + 1
    pause_s = min(most_s, first_s * 2.0 ** min(times - 1, 30))
    refused = Refused(times, now + pause_s, because)
    if refused.for_good:
        return refused, f"{because}, and is not asked again"
    return refused, f"{because}, and is asked again in {pause_s:.0f} s"


def concerns_account(refused: Collection[Refusal]) -> tuple[bool, str]:
    """Return whether a launch was refused for what no other pool would change."""
    if Refusal.QUOTA in refused:
        return True, "a quota holds for all pools"
    if refused and all(each is Refusal.OTHER for each in refused):
        return True, "nothing says that it is the pool's fault"
    return False, "other pools may have what these have not"


def pools_to_ask(
    pools: Sequence[Pool], refused: Mapping[Pool, Refused], account: Refused, now: float
) -> tuple[list[Pool], str]:
    """Return which pools a launch may use now, none while all are left alone, and why."""
    if account.for_good:
        return [], f"nothing is asked for any more: {account.because}"
    if account.times and now < account.until_s:
        return [], f"nothing is asked for until {account.until_s - now:.0f} s from now: {account.because}"
    left_alone = {pool for pool, each in refused.items() if each.for_good or now < each.until_s}
    asked = [pool for pool in pools if pool not in left_alone]
    return asked, f"{len(asked)} of {len(pools)} pools are not left alone"


def no_pool_left(pools: Sequence[Pool], refused: Mapping[Pool, Refused]) -> tuple[bool, str]:
    """Return whether none of the pools will ever give an instance, and why."""
    nothing = Refused()
    if not all(refused.get(pool, nothing).for_good for pool in pools):
        return False, "some pool may have capacity later"
    reasons = sorted({str(refused[pool].because) for pool in pools})
    return True, f"none of the {len(pools)} pools gives instances: {'; '.join(reasons)}"


def boots_too_long(launched_s: float, now: float, patience_s: float) -> tuple[bool, str]:
    """Return whether an instance that has not enrolled is given up, and another takes its place."""
    waited_s = now - launched_s
    if waited_s < patience_s:
        return False, f"it was launched {waited_s:.0f} s ago, and may take {patience_s:.0f} s to enrol"
    return True, f"it was launched {waited_s:.0f} s ago and has not enrolled; at most {patience_s:.0f} s are waited for"


def is_out_of_their_reach(running_since_s: Sequence[float], now: float, *, any_enrolled: bool) -> tuple[bool, str]:
    """Return whether the master seems to be where no instance can reach it: some run, and none was ever heard of.
    `running_since_s` is when those that run were launched."""
    if any_enrolled or not running_since_s:
        return False, "an instance has enrolled, or none runs"
    waited_s = now - min(running_since_s)
    if waited_s < FIRST_ENROLMENT_S:
        return False, f"the first was launched {waited_s:.0f} s ago"
    count = len(running_since_s)
    return True, f"{count} instance{'s run' if count > 1 else ' runs'}, and after {waited_s:.0f} s none has enrolled"


def overstays(said_s: float, now: float, *, told_taken: bool) -> tuple[bool, str]:
    """Return whether an instance is terminated that has not ended although its worker said goodbye. One that its
    provider said it takes is left to it: interrupted in its first hour, it costs nothing."""
    most_s, waited_s = NOTICE_S if told_taken else SHUTDOWN_S, now - said_s
    if waited_s < most_s:
        return False, f"its worker said goodbye {waited_s:.0f} s ago"
    return True, f"its worker said goodbye {waited_s:.0f} s ago, and it should have ended within {most_s:.0f} s"

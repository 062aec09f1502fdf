"""How many workers a run asks for: as many as are wanted, but no more than it is long enough for.

Nobody is sent away for that: what was asked for may train on, and is not replaced.
"""

from __future__ import annotations

import math
from statistics import median

from master.decisions.crowding import FEW, USUAL, Length, worth_asking
from master.records import Standing
from master.wiring import Parts

LOOK_S = 5.0  # between two looks at how often workers push


class Asking:
    """Keeps `workers.useful` in line with how often the workers of one master push."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        known = parts.store.ledger.get("asked") or {}
        self._interval: float = known.get("interval", USUAL)  # between two pushes of a worker, in vertices
        self._told = known.get("workers", parts.workers.wanted)
        self._look_s = -math.inf

    def look(self, now: float) -> None:
        """Choose the number anew, now and then, and when another is wanted; tell when another is asked for."""
        workers = self._parts.workers
        if now < self._look_s and workers.asked == self._told:
            return
        self._look_s = now + LOOK_S
        if not self._parts.exchange.merger.averages:
            return
        settings, total = self._parts.spec.settings, self._parts.leases.epochs.total
        self._interval = self._measured()
        length = Length(total, self._interval, settings.pushes_each)
        workers.useful, reason = worth_asking(length, workers.useful)
        if workers.asked != self._told:
            self._tell(reason, now)

    def _measured(self) -> float:
        """Vertices between two pushes of a worker: as asked for, or by what they cost those that have pushed.

        Not what workers are told: that is less where lives or shares of an epoch are short, and the more workers share
        an epoch, the shorter these are.
        """
        settings, workers = self._parts.spec.settings, self._parts.workers
        every: float | None = settings.push_every
        if every is None:
            known = [each.worth_a_push for each in workers if each.standing is Standing.RUNNING and each.push_s > 0]
            every = median(known) if len(known) >= min(FEW, workers.wanted) else self._interval
        return min(every, settings.chunk or every)  # a chunk ends with a push

    def _tell(self, reason: str, now: float) -> None:
        ledger, workers = self._parts.store.ledger, self._parts.workers
        self._told = workers.asked
        because = f"of {workers.wanted:,} wanted: {reason}" if workers.asked < workers.wanted else "all that are wanted"
        with ledger.transaction():
            ledger.set("asked", {"workers": workers.asked, "interval": self._interval, "reason": because})
            self._parts.journal.event(now, "asked", f"{workers.asked:,} workers are asked for, {because}")

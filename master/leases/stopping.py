"""When a run has trained enough, by what its ledger says: so the next master decides as this one does."""

from __future__ import annotations

from collections.abc import Callable

from gridml.model.goals import EarlyStopping
from master.decisions.stopping import StoppingFacts, may_begin, stops
from master.store.ledger import Ledger


class Stopping:
    """Early stopping of one run."""

    def __init__(self, wanted: EarlyStopping, ledger: Ledger) -> None:
        self._wanted = wanted
        self._ledger = ledger
        self._read: tuple[int, int] | None = None  # how many evaluations were read, and the version of the newest
        self._values: list[tuple[int, float]] = []
        self._enough: str | None = None

    @property
    def enough(self) -> str | None:
        """Why the run has trained enough, None where it has not."""
        self._look()
        return self._enough

    def may_follow(self, epoch: int, due: Callable[[int], bool]) -> bool:
        """Whether another epoch may begin after `epoch`; `due` says of one whether it is evaluated."""
        self._look()
        pending = sum(due(at) for at in self._ledger.not_evaluated(epoch))
        return may_begin(StoppingFacts(self._values, pending), self._wanted)[0]

    def _look(self) -> None:
        """Read the metrics anew where there are others: an evaluation was made, or undone."""
        newest = self._ledger.newest_evaluation()
        if newest == self._read:
            return
        values = ((epoch, self._wanted.goal.find(metrics)) for epoch, _, metrics in self._ledger.evaluations())
        self._values = [(epoch, value) for epoch, value in values if value is not None]  # of another program perhaps
        stop, reason = stops(StoppingFacts(self._values, 0), self._wanted)
        self._enough, self._read = reason if stop else None, newest

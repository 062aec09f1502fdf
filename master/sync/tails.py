"""The tails of a run's epochs: which versions are kept for them, and which an epoch that has ended has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gridml.model.progress import Progress
from gridml.model.schedule import TorchSchedule
from master.decisions.tail import kept_for, tail_of, width_of
from master.store.ledger import Ledger
from master.store.replica import Replica
from master.store.spec import RunSpec

PLACES = 16  # of a run before an epoch's end, at which its rate is looked at
WAITING = 2  # epochs that wait for their evaluation, whose tails are kept
_Choose = Callable[[Mapping[int, int], int, int, int], list[int]]


class Tails:
    """An epoch has no tail where nothing was averaged: one worker's replica is that of a loop. Nor where rows travel
    apart, of which a version's file holds those that changed, or where the rate is torch's to know."""

    def __init__(self, spec: RunSpec, ledger: Ledger, replica: Replica) -> None:
        self._program = spec.program
        self._ledger = ledger
        self._replica = replica
        self._vertices = spec.graph.tables[spec.program.driving(spec.graph)].count
        self._epochs = spec.settings.epochs or spec.program.epochs
        self._steps = spec.program.update.steps(self._vertices)
        whole = bool(spec.graph.replicated) and all(table.type.modules for table in spec.graph.replicated)
        self._possible = whole and not isinstance(spec.program.schedule, TorchSchedule)
        self._widths: dict[int, int] = {}

    def end_of(self, epoch: int) -> Progress:
        """How far the run is when an epoch ends, counted from 0."""
        return self._at(min(epoch + 1, self._epochs) * self._vertices, epoch)

    def tail(self, epoch: int, end: int) -> list[int]:
        """The versions of the tail of an epoch that version `end` ends, as far as they are kept, without that one."""
        return self._chosen(tail_of, epoch, end)

    def wanted(self, closed: Mapping[int, int]) -> set[int]:
        """The versions to keep for epochs that are under way, for the last one, and for the first that wait for their
        evaluation. `closed` are the epochs that have ended, and the versions that they ended with."""
        newest, _ = self._ledger.newest_epoch()
        last = [epoch for epoch in (newest - 1, newest) if epoch >= 0 and (epoch == newest or epoch not in closed)]
        ends = {epoch: closed.get(epoch, self._replica.version) for epoch in last}
        if self._program.evaluate is not None:
            ends |= dict(self._ledger.unevaluated()[:WAITING])
        return {version for epoch, end in ends.items() for version in self._chosen(kept_for, epoch, end)}

    def _chosen(self, choose: _Choose, epoch: int, end: int) -> list[int]:
        if not self._possible or not self._ledger.averaged():
            return []
        return choose(self._ledger.kept_credits, end, self._width(epoch), self._replica.state.nbytes)

    def _width(self, epoch: int) -> int:
        if epoch not in self._widths:
            total, end = self._epochs * self._vertices, min(epoch + 1, self._epochs) * self._vertices
            places = [end * place // PLACES for place in range(PLACES + 1)]
            rates = [self._rate(self._at(credited, min(epoch, credited // self._vertices))) for credited in places]
            rate = rates[-1] / max(rates) if any(rates) else 0.0
            self._widths[epoch] = width_of(end, self._vertices, total, rate)
        return self._widths[epoch]

    def _at(self, credited: int, epoch: int) -> Progress:
        step, steps = self._steps.at(credited, self._epochs), self._epochs * self._steps.per_epoch
        return Progress(epoch, share=credited / (self._epochs * self._vertices), step=step, steps=steps)

    def _rate(self, at: Progress) -> float:
        try:
            factor = self._program.factor(at)
        except Exception:  # the user's: workers fail by it, too, and that is told
            return 0.0
        return max(0.0, factor) if math.isfinite(factor) else 0.0

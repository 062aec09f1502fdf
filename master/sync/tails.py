"""The tails of a run's epochs: which versions are kept for them, and which an epoch that has ended has."""

from __future__ import annotations

from functools import lru_cache

from gridml.model.progress import Progress
from gridml.model.schedule import TorchSchedule
from master.decisions.tail import marks, span, tail_of
from master.store.ledger import Ledger
from master.store.replica import Replica
from master.store.spec import RunSpec

PLACES = 16  # of a run before an epoch's end, at which its rate is looked at


class Tails:
    """None where nothing was averaged: one worker's replica is that of a loop. Nor where rows travel apart, of which a
    version's file holds those that changed, or where the rate is torch's to know."""

    def __init__(self, spec: RunSpec, ledger: Ledger, replica: Replica) -> None:
        self._program = spec.program
        self._ledger = ledger
        self._replica = replica
        self._vertices = spec.graph.tables[spec.program.driving(spec.graph)].count
        self._epochs = spec.settings.epochs or spec.program.epochs
        self._steps = spec.program.update.steps(self._vertices)
        whole = bool(spec.graph.replicated) and all(table.type.modules for table in spec.graph.replicated)
        self._has_any = whole and not isinstance(spec.program.schedule, TorchSchedule)
        self._span = lru_cache(self._span_of)

    def end_of(self, epoch: int) -> Progress:
        """How far the run is when an epoch ends, counted from 0."""
        credited = min(epoch + 1, self._epochs)
        return self._at(credited * self._vertices, epoch)

    def tail(self, epoch: int, version: int) -> tuple[int, ...]:
        """The versions of the tail of an epoch that has ended with a version, as far as they are kept, without it."""
        return self._found(epoch, version) if self._ledger.averaged() else ()

    def wanted(self) -> set[int]:
        """The versions to keep for epochs that are evaluated, that have ended last, or that are under way."""
        if not self._has_any or not self._ledger.averaged():
            return set()
        newest, _ = self._ledger.newest_epoch()
        epochs = {newest, newest - 1, *(epoch for epoch, _ in self._ledger.unevaluated())}
        return {version for epoch in epochs if epoch >= 0 for version in self._found(epoch, self._replica.version)}

    def _found(self, epoch: int, version: int) -> tuple[int, ...]:
        width = self._span(epoch)
        if width == 0:
            return ()
        wanted = marks((epoch + 1) * self._vertices, width, self._replica.state.nbytes)
        return tuple(tail_of(self._ledger.kept_credits, wanted, version))

    def _span_of(self, epoch: int) -> int:
        if not self._has_any:
            return 0
        end, total = min(epoch + 1, self._epochs) * self._vertices, self._epochs * self._vertices
        rates = [self._rate(self._at(end * place // PLACES, epoch)) for place in range(PLACES + 1)]
        highest = max(rates)
        return 0 if highest == 0 else span(end, self._vertices, total, rates[-1] / highest)

    def _at(self, credited: int, epoch: int) -> Progress:
        total = self._epochs * self._vertices
        step, steps = self._steps.at(credited, self._epochs), self._epochs * self._steps.per_epoch
        return Progress(epoch, share=credited / total, step=step, steps=steps)

    def _rate(self, at: Progress) -> float:
        try:
            return max(0.0, self._program.factor(at))
        except Exception:  # the user's: workers fail by it, too, and that is told
            return 0.0

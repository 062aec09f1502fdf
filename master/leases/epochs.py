"""The epochs of a run: the order of the vertices in each, its opening and completion, and the end of training.

Whether a run has trained enough follows from its ledger, so the next master decides as this one does. The next
epoch begins only while it cannot turn out to be one too many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import components
from gridml.model.order import EpochOrder
from gridml.model.program import EarlyStopping
from master.state.spans import Span
from master.store.ledger import Ledger
from master.store.spec import RunSpec


@dataclass(frozen=True)
class StoppingFacts:
    """The goal's `values` in the evaluations so far, oldest first, with the epochs (from 0) that they are of; `pending`
    evaluations are due of epochs that have begun, and not made yet."""

    values: Sequence[tuple[int, float]]
    pending: int


@dataclass(frozen=True)
class BestSoFar:
    """The best value, the epoch (from 0) that it is of, and how many evaluations since were not better."""

    best: float
    epoch: int
    without: int


@dataclass(frozen=True)
class Trend:
    """The least-squares line through the newest `count` evaluations: its slope, in the metric's unit an evaluation,
    and what it gains for the goal from the first to the last that is a number (negative: a loss)."""

    count: int
    slope: float
    gain: float


def best_so_far(facts: StoppingFacts, wanted: EarlyStopping) -> BestSoFar:
    """Return how the evaluations stand. Better is what is better than the best before by more than `min_delta`."""
    best, epoch, without = math.nan, -1, 0
    for at, value in facts.values:
        if wanted.goal.better(value, best, wanted.min_delta):
            best, epoch, without = value, at, 0
        else:
            without += 1
    return BestSoFar(best, epoch, without)


def trend(facts: StoppingFacts, wanted: EarlyStopping) -> Trend | None:
    """Return the line through the last 2 * patience + 1 evaluations, None where the last `patience` are no numbers, or
    fewer than two are one.

    The sums are exact, so that a metric that stays where it is has slope 0 and not what rounding leaves.
    """
    newest = [value for _, value in facts.values[-(2 * wanted.patience + 1) :]]
    numbers = [(k, Fraction(value)) for k, value in enumerate(newest) if math.isfinite(value)]
    if len(numbers) < 2 or numbers[-1][0] < len(newest) - wanted.patience:
        return None
    middle = Fraction(sum(k for k, _ in numbers), len(numbers))
    squares = sum((k - middle) * (k - middle) for k, _ in numbers)
    slope = sum(((k - middle) * value for k, value in numbers), Fraction(0)) / squares
    risen = slope * (numbers[-1][0] - numbers[0][0])
    return Trend(len(newest), _as_float(slope), _as_float(-risen if wanted.goal.mode == "min" else risen))


def should_stop(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return whether the run has trained enough, and why: `patience` evaluations in a row were not better than the best
    before them, and the line through the newest does not get better either."""
    now = best_so_far(facts, wanted)
    metric = wanted.goal.metric
    if now.without < wanted.patience:
        return False, f"{now.without} of {wanted.patience} evaluations in a row have not brought {metric} further"
    by = f" by more than {wanted.min_delta:g}" if wanted.min_delta else ""
    times = f"{now.without} evaluations in a row have" if now.without > 1 else "the last evaluation has"
    best = "it never was a number" if now.epoch < 0 else f"its best is {now.best:.4g}, after epoch {now.epoch + 1}"
    plain = f"{times} not brought {metric} further{by}; {best}"
    if (line := trend(facts, wanted)) is None:
        return True, plain
    changes = f"over the last {line.count} evaluations it changes by {line.slope:+.3g} an evaluation"
    if line.gain > wanted.min_delta:
        return False, f"{plain}, but {changes}: it still gets better"
    return True, f"{plain}, and {changes}"


def can_begin_epoch(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return whether another epoch may begin, and why: not while the evaluations that are due, whatever they bring, may
    end the run. Where patience has run out and the trend alone goes on, the next one may always be bad enough to."""
    now = best_so_far(facts, wanted)
    if now.without + facts.pending < wanted.patience:
        return True, f"{now.without} evaluations without progress and {facts.pending} to come are no reason to stop"
    if facts.pending:
        return False, f"the evaluation of {facts.pending} epochs is awaited: the run may have trained enough"
    enough, reason = should_stop(facts, wanted)
    return not enough, reason


def _as_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:  # of metrics near the largest float
        return math.inf if exact > 0 else -math.inf


class EarlyStopper:
    """Early stopping of one run."""

    def __init__(self, wanted: EarlyStopping, ledger: Ledger) -> None:
        self._wanted = wanted
        self._ledger = ledger
        self._read: tuple[int, int] | None = None  # how many evaluations were read, and the version of the newest
        self._values: list[tuple[int, float]] = []
        self._enough: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """Why the run has trained enough, None where it has not."""
        self._refresh()
        return self._enough

    def can_follow(self, epoch: int, due: Callable[[int], bool]) -> bool:
        """Whether another epoch may begin after `epoch`; `due` says of one whether it is evaluated."""
        self._refresh()
        pending = sum(due(at) for at in self._ledger.epochs_without_metrics(epoch))
        return can_begin_epoch(StoppingFacts(self._values, pending), self._wanted)[0]

    def _refresh(self) -> None:
        """Read the metrics anew where there are others: an evaluation was made, or undone."""
        newest = self._ledger.newest_evaluation()
        if newest == self._read:
            return
        values = ((epoch, self._wanted.goal.find(metrics)) for epoch, _, metrics in self._ledger.evaluations())
        self._values = [(epoch, value) for epoch, value in values if value is not None]  # of another program perhaps
        stop, reason = should_stop(StoppingFacts(self._values, 0), self._wanted)
        self._enough, self._read = reason if stop else None, newest


Ids = NDArray[np.int64]


class Epochs:
    """Epochs of one run. Raises ProgramError where f has nothing to run on, or a component is larger than a chunk."""

    def __init__(self, spec: RunSpec, ledger: Ledger) -> None:
        program, graph, settings = spec.program, spec.graph, spec.settings
        self.driver = program.driving(graph)
        self.vertex_count = graph.tables[self.driver].count  # vertices of an epoch
        self.components = None if program.bsp else components(graph)
        self._units = None if self.components is None else self.components.units[self.driver]
        self._parts = None if spec.placement is None else spec.placement.parts
        if spec.placement is not None:
            ledger.divide(spec.placement.borders)
        self._spec = spec
        self._ledger = ledger
        self.epochs_requested = settings.epochs or program.epochs  # epochs, unless the run has trained enough before
        self._stopping = None if program.early_stopping is None else EarlyStopper(program.early_stopping, ledger)
        # Of each epoch positions up to this are trained, in batches of at least so many vertices.
        self.trained, self.min_batch = self._batches()
        self._orders: dict[int, EpochOrder] = {}
        self._changes_local = any(table.type.mutable for table in graph.local)  # whether f changes local vertices
        if self._units is not None and settings.chunk is not None and self._units.largest > settings.chunk:
            raise ProgramError(
                f"a connected component has {self._units.largest:,} {self.driver} vertices, more than the chunk of "
                f"{settings.chunk:,}; components are never cut. Make chunks larger, or replicate what connects them."
            )

    def _batches(self) -> tuple[int, int]:
        program, batch = self._spec.program, self._spec.program.update.batch or 1
        connected = self._units is not None
        if not program.update.drop_last:
            return self.vertex_count, 1 if connected else program.min_actual_batch
        if connected or self.vertex_count < batch:
            why = "they are connected" if connected else f"there are {self.vertex_count:,}, and a batch has {batch:,}"
            raise ProgramError(
                f"drop_last credits an epoch's last, incomplete batch of {self.driver} vertices without training it; "
                f"got a graph in which {why}, where it makes no sense. Leave it out."
            )
        return self.vertex_count - self.vertex_count % batch, program.min_actual_batch

    @property
    def epoch_count(self) -> int:
        """Epochs of the run: those that were asked for, or that had begun when it had trained enough."""
        if self.stop_reason is None:
            return self.epochs_requested
        return min(self.epochs_requested, self._ledger.newest_epoch()[0] + 1)

    @property
    def stop_reason(self) -> str | None:
        """Why the run has trained enough before all epochs that were asked for; None where it has not."""
        return None if self._stopping is None else self._stopping.stop_reason

    def is_evaluated(self, epoch: int) -> bool:
        """Whether the replica at the end of an epoch is to be evaluated."""
        program, number = self._spec.program, epoch + 1
        is_due = number % program.evaluate_every == 0 or number == self.epochs_requested
        return program.evaluate is not None and is_due

    def skips_evaluation(self, epoch: int) -> bool:
        """Whether the replica at the end of an epoch is not evaluated though the program evaluates."""
        return self._spec.program.evaluate is not None and not self.is_evaluated(epoch)

    def untrained(self, stop: int) -> int:
        """How many of the positions before `stop` are credited without being trained."""
        return max(0, stop - self.trained)

    def is_too_short(self, start: int, stop: int) -> bool:
        """Whether a range that is not empty is less than a batch may have."""
        return start < stop and min(stop, self.trained) - start < self.min_batch

    def lease_stop(self, span: Span, size: int) -> int:
        """Return where a lease of about `size` vertices from a span's beginning ends, so that it cuts no component and
        leaves no crumb. Parts of a placed graph do not end with whole batches."""
        stop = self.order(span.epoch).boundary(min(span.start + size, span.stop))
        crumb = self._parts is not None and span.stop - stop < self._spec.program.update.window
        return span.stop if crumb or self.is_too_short(stop, span.stop) else stop

    @property
    def total(self) -> int:
        """Vertices to credit in the whole run."""
        return self.vertex_count * self.epoch_count

    def order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = EpochOrder(
                self.vertex_count, self._spec.settings.seed, epoch, self._spec.shuffle, self._units, self._parts
            )
        return self._orders[epoch]

    def vertices(self, epoch: int, start: int, stop: int) -> Ids:
        """Return the driving vertices of a range, in the order of training."""
        return self.order(epoch).vertices(start, stop)

    def cuts_component(self, epoch: int, position: int) -> str | None:
        """Return why credit must not end at a position, None if it may."""
        whole = self.order(epoch).boundary(position)
        return None if whole == position else f"a push up to {position} cuts the component that ends at {whole}"

    def is_finished(self) -> bool:
        """Whether every vertex of the run is credited."""
        return bool(self._ledger.credited >= self.total)

    def unevaluated(self) -> list[int]:
        """Return the versions at the ends of epochs that evaluate has not seen yet."""
        return [] if self._spec.program.evaluate is None else [version for _, version in self._ledger.unevaluated()]

    def open_first(self, now: float) -> None:
        self._ledger.open_epoch(0, self.vertex_count, now)

    def open_next(self, now: float) -> int:
        """Open the next epoch if this one is leased and nothing must end first; return the newest."""
        newest, closed = self._ledger.newest_epoch()
        if not self._ledger.spans and newest + 1 < self.epoch_count and self._can_open(newest, closed=closed):
            newest += 1
            self._ledger.open_epoch(newest, self.vertex_count, now)
        return newest

    @property
    def is_sequential(self) -> bool:
        """Whether an epoch opens only when the one before is closed: credited in full, and what its rules held back
        merged. An answer that brings the first lease of an epoch brings that version or a later one with it."""
        return self._spec.program.bsp or self._changes_local or not self._spec.program.overlap

    def is_followed(self, epoch: int) -> bool:
        """Whether vertices of another epoch may be trained before the end of this one."""
        if epoch + 1 >= self.epoch_count or self.is_sequential:
            return False
        return self._stopping is None or self._stopping.can_follow(epoch, self.is_evaluated)

    def _can_open(self, newest: int, *, closed: bool) -> bool:
        """At most two epochs are under way at once; only one where they come in turn.

        Where f changes local vertices the next epoch's chunks must hold what this one makes of them (with BSP that
        shows once its patches are in the files), and evaluate must see them before they change again.
        """
        if self._stopping is not None and not self._stopping.can_follow(newest, self.is_evaluated):
            return False
        bsp = self._spec.program.bsp
        if self._changes_local:
            return closed and not self.unevaluated() and not (bsp and self._ledger.patches())
        if self.is_sequential:
            return closed
        return newest == 0 or self._ledger.is_epoch_complete(newest - 1)

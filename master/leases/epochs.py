"""Epochs of a run: vertex order, opening, completion and early stopping.

Early stopping is computed from the ledger alone, so the next master decides as this one does. The next epoch opens only
if no pending evaluation could still stop the run before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError
from gridml.model.graph import components
from gridml.model.order import EpochOrder
from gridml.model.program import EarlyStopping
from gridml.model.ticks import MiniBatches, Ticks, may_begin
from master.state.spans import Span
from master.store.ledger import Ledger
from master.store.schema import ENOUGH
from master.store.settings import SizeSettings
from master.store.spec import RunSpec


@dataclass(frozen=True)
class StoppingFacts:
    """Evaluations of a run, as far as early stopping depends on them."""

    values: Sequence[tuple[int, float]]  # (epoch from 0, metric) of each evaluation, oldest first
    pending: int  # evaluations of begun epochs that are not done yet


@dataclass(frozen=True)
class BestSoFar:
    """The best evaluation so far."""

    best: float  # NaN if no evaluation was a number
    epoch: int  # from 0; -1 if there is none
    without: int  # evaluations since the best one that were not better


@dataclass(frozen=True)
class Trend:
    """The least-squares line through the newest evaluations."""

    count: int
    slope: float  # in the metric's unit per evaluation
    gain: float  # change from the first to the last finite value, positive if it approaches the goal


def best_so_far(facts: StoppingFacts, wanted: EarlyStopping) -> BestSoFar:
    """Return the best evaluation. A value is better if it improves on the best one before by more than `min_delta`."""
    best, epoch, without = math.nan, -1, 0
    for at, value in facts.values:
        if wanted.goal.better(value, best, wanted.min_delta):
            best, epoch, without = value, at, 0
        else:
            without += 1
    return BestSoFar(best, epoch, without)


def trend(facts: StoppingFacts, wanted: EarlyStopping) -> Trend | None:
    """Return the line through the last 2 * patience + 1 evaluations; None if fewer than two of these are finite, or
    none of the last `patience` is.
    """
    newest = [value for _, value in facts.values[-(2 * wanted.patience + 1) :]]
    # Fractions: a constant metric has slope 0 exactly, and no rounding error passes for progress.
    numbers = [(k, Fraction(value)) for k, value in enumerate(newest) if math.isfinite(value)]
    if len(numbers) < 2 or numbers[-1][0] < len(newest) - wanted.patience:
        return None
    middle = Fraction(sum(k for k, _ in numbers), len(numbers))
    squares = sum((k - middle) * (k - middle) for k, _ in numbers)
    slope = sum(((k - middle) * value for k, value in numbers), Fraction(0)) / squares
    risen = slope * (numbers[-1][0] - numbers[0][0])
    return Trend(len(newest), _as_float(slope), _as_float(-risen if wanted.goal.mode == "min" else risen))


def should_stop(facts: StoppingFacts, wanted: EarlyStopping) -> tuple[bool, str]:
    """Return (whether the run has trained enough, reason). It has if the last `patience` evaluations did not improve on
    the best one, and the trend does not improve either."""
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
    """Return (whether another epoch can begin, reason). It cannot while a pending evaluation could end the run.

    Once patience has run out and only the trend keeps the run going, any pending evaluation could end it.
    """
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
    except OverflowError:  # for metrics near the largest float
        return math.inf if exact > 0 else -math.inf


class EarlyStopper:
    """Early stopping of one run."""

    def __init__(self, wanted: EarlyStopping, ledger: Ledger) -> None:
        self._wanted = wanted
        self._ledger = ledger
        # (evaluations read, version of the newest). `_values` and `_enough` are up to date if this equals the ledger's.
        self._read: tuple[int, int] | None = None
        self._values: list[tuple[int, float]] = []
        self._enough: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """The reason to stop the run; None while it should go on."""
        self._refresh()
        return self._enough

    def can_follow(self, epoch: int, due: Callable[[int], bool]) -> bool:
        """Return whether another epoch can begin after `epoch`; `due` returns whether an epoch is evaluated."""
        self._refresh()
        pending = sum(due(at) for at in self._ledger.epochs_without_metrics(epoch))
        return can_begin_epoch(StoppingFacts(self._values, pending), self._wanted)[0]

    def _refresh(self) -> None:
        """Read the metrics again if an evaluation was added or undone."""
        newest = self._ledger.newest_evaluation()
        if newest == self._read:
            return
        values = ((epoch, self._wanted.goal.find(metrics)) for epoch, _, metrics in self._ledger.evaluations())
        # A value is None if another version of the program lacked the metric.
        self._values = [(epoch, value) for epoch, value in values if value is not None]
        stop, reason = should_stop(StoppingFacts(self._values, 0), self._wanted)
        self._enough, self._read = reason if stop else None, newest


Ids = NDArray[np.int64]


def leased_sizes(sizes: SizeSettings, ticks: Ticks | None) -> tuple[SizeSettings, str]:
    """Return (the sizes that a run uses, what of `sizes` it does not use). With ticks a lease, and a push, is one
    mini-batch."""
    if ticks is None:
        return sizes, ""
    given = {"--chunk": sizes.chunk, "--push-every": sizes.push_every}
    unused = " and ".join(f"{name} {value}" for name, value in given.items() if value is not None)
    return replace(sizes, chunk=ticks.largest, push_every=ticks.largest), unused and f"{unused} not used"


DRAWN = 1 << 32  # a seed of the order of a replicated type, which no part of the driving type has


def drawn(count: int, seed: int, epoch: int, block: int, blocks: int, *, shuffles: bool) -> NDArray[np.bool_]:
    """Return a mask (count,) of the vertices of a replicated type that are one of the `blocks` of an epoch."""
    order = np.arange(count)
    if shuffles:
        np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch, DRAWN)))).shuffle(order)
    mask = np.zeros(count, np.bool_)
    mask[order[count * block // blocks : count * (block + 1) // blocks]] = True
    return mask


class Epochs:
    """Epochs of one run. Raises ProgramError if f has nothing to run on, or a component is larger than the `chunk` that
    the user chose."""

    def __init__(self, spec: RunSpec, ledger: Ledger, chunk: int | None) -> None:
        program, graph = spec.program, spec.graph
        self.driver = program.driving(graph)
        #: positions of an epoch: its driving vertices, each as often as a mini-batch has phases
        self.vertex_count = program.positions(graph)
        self.components = None if program.consistency.is_bsp else components(graph)
        self._units = None if self.components is None else self.components.units[self.driver]
        self._parts = None if spec.placement is None else spec.placement.parts
        self._division = program.division(graph)
        if self._division is not None and self._units is not None:
            raise ProgramError(
                f"{self.driver} vertices are connected by edges to local vertices, which mini-batches with slack= or "
                f"edges= would cut apart. Leave out these edges, or slack= and edges=."
            )
        #: None unless workers wait for one another within a pass
        self.ticks = self._division if program.consistency.waits else None
        self._spec = spec
        self._orders: dict[int, EpochOrder] = {}
        # Parts with clocks are cut from the positions of an epoch, in the order of a placement if there is one.
        if self.ticks is not None:
            ledger.divide(lambda epoch: self.mini_batches(epoch).borders)
        elif spec.placement is not None:
            borders = spec.placement.borders
            ledger.divide(lambda _: borders)
        self._ledger = ledger
        self.epochs_requested = spec.epochs  # upper bound; early stopping can end the run sooner
        self._stopping = None if program.early_stopping is None else EarlyStopper(program.early_stopping, ledger)
        # Positions of an epoch before `trained` are trained, in batches of at least `min_batch` vertices. Positions
        # from `trained` on (an incomplete last batch with drop_last) are credited without training.
        self.trained, self.min_batch = self._batches()
        self._can_be_enough = bool(program.all_syncs)  # a global_sync can end the run
        self._changes_local = bool(graph.mutable_columns())  # f changes local vertices, or stages their edges
        if self._units is not None and chunk is not None and self._units.largest > chunk:
            raise ProgramError(
                f"a connected component has {self._units.largest:,} {self.driver} vertices, more than the chunk of "
                f"{chunk:,}; components are never cut. Make chunks larger, or replicate what connects them."
            )

    def _batches(self) -> tuple[int, int]:
        program, batch = self._spec.program, self._spec.program.shape.batch or 1
        connected = self._units is not None
        if not program.shape.drop_last:
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
        """Number of epochs in the run: as requested, or as many as had begun when the run's end was decided."""
        if self.stop_reason is None:
            return self.epochs_requested
        return min(self.epochs_requested, self._ledger.newest_epoch()[0] + 1)

    @property
    def stop_reason(self) -> str | None:
        """The reason why the run ends before all its epochs; None while it should go on."""
        if (enough := self._enough) is not None:
            return f"{enough['by']} returned True in pass {enough['epoch'] + 1}"
        return None if self._stopping is None else self._stopping.stop_reason

    @property
    def _enough(self) -> dict[str, Any] | None:
        """By which `global_sync` the run ends, and in which epoch; None while it goes on."""
        found: dict[str, Any] | None = self._ledger.get(ENOUGH) if self._can_be_enough else None
        return found

    def is_evaluated(self, epoch: int) -> bool:
        """Return whether the replica at the end of an epoch is evaluated."""
        program, number = self._spec.program, epoch + 1
        if program.evaluate is None or number % program.evaluate_every == 0 or number == self.epochs_requested:
            return program.evaluate is not None
        return (enough := self._enough) is not None and bool(epoch == enough["epoch"])

    def skips_evaluation(self, epoch: int) -> bool:
        """Return whether the program evaluates, but not at the end of this epoch."""
        return self._spec.program.evaluate is not None and not self.is_evaluated(epoch)

    def untrained(self, stop: int) -> int:
        """Return the number of positions before `stop` that are credited without training."""
        return max(0, stop - self.trained)

    def is_too_short(self, start: int, stop: int) -> bool:
        """Return whether a range is not empty, and has fewer vertices to train than a batch needs."""
        return start < stop and min(stop, self.trained) - start < self.min_batch

    def lease_stop(self, span: Span, size: int) -> int:
        """Return the end of a lease of about `size` vertices at the beginning of a span. It cuts no component, and
        leaves no rest that is too small to lease. Where workers wait for one another it is one mini-batch."""
        if self.ticks is not None:
            return self.mini_batches(span.epoch).stop(span.start)
        stop = self.order(span.epoch).boundary(min(span.start + size, span.stop))
        # Parts of a placed graph do not end at a multiple of the batch; a short rest would become a lease of its own.
        crumb = self._parts is not None and span.stop - stop < self._spec.program.shape.window
        return span.stop if crumb or self.is_too_short(stop, span.stop) else stop

    @property
    def total(self) -> int:
        """Vertices to credit in the whole run."""
        return self.vertex_count * self.epoch_count

    def order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = EpochOrder(
                self._spec.graph.tables[self.driver].count,
                self._spec.settings.seed,
                epoch,
                self._spec.shuffle,
                self._units,
                self._parts,
                self._division,
            )
        return self._orders[epoch]

    def mini_batches(self, epoch: int) -> MiniBatches:
        """Return the mini-batches of an epoch. Only for a program whose mini-batches do not depend on workers."""
        made = self.order(epoch).mini_batches
        assert made is not None, "no worker cuts mini-batches of its own"
        return made

    def phase(self, epoch: int, position: int) -> int | None:
        """Return the phase of the program's stages at a position; None if a mini-batch has only one."""
        if self.ticks is None or self.ticks.phases == 1:
            return None
        return self.mini_batches(epoch).place(position)[1] % self.ticks.phases

    def drawn(self, epoch: int, position: int) -> dict[str, NDArray[np.bool_]] | None:
        """Return, by the replicated type whose vertices make mini-batches, a mask (count,) of those at a position; None
        if vertices of the driving type do, or all are one mini-batch. Neighbours are not together, unless the program
        shuffles nothing: their steps would add up to too long ones."""
        of = self._spec.program.shape.drawn
        if of is None or self.ticks is None or self.ticks.blocks == 1:
            return None
        count, block = self._spec.graph.tables[of.__name__].count, self.mini_batches(epoch).place(position)[1]
        made = self.ticks.block(block), self.ticks.blocks
        shuffles = self._spec.program.shuffle != "none"
        return {of.__name__: drawn(count, self._spec.settings.seed, epoch, *made, shuffles=shuffles)}

    def vertices(self, epoch: int, start: int, stop: int) -> Ids:
        """Return the driving vertices of a range, in the order of training."""
        return self.order(epoch).vertices(start, stop)

    def cuts_component(self, epoch: int, position: int) -> str | None:
        """Return the reason why credit must not end at a position; None if it is allowed to."""
        whole = self.order(epoch).boundary(position)
        what = "mini-batch" if self._units is None else "component"
        return None if whole == position else f"a push up to {position} cuts the {what} that ends at {whole}"

    def ready(self, epoch: int) -> tuple[list[Span], str]:
        """Return (the free ranges of an epoch whose first mini-batch may begin, those of the slowest parts first; why
        there is none)."""
        assert self.ticks is not None, "workers wait for one another only with ticks"
        ticks, slack = self.mini_batches(epoch), self._spec.program.consistency.slack
        spans = [span for span in self._ledger.spans if span.epoch == epoch]
        leased = [lease.upto for lease in self._ledger.leases if lease.epoch == epoch and lease.left]
        clocks = ticks.clocks([*(span.start for span in spans), *leased])
        found, why = [], f"epoch {epoch + 1} waits for the one before" if self._ledger.spans else "everything is leased"
        for span in spans:  # each begins where a part is, or behind a mini-batch that is leased
            part, tick = ticks.place(span.start)
            begins, reason = may_begin(clocks, part, tick, self.ticks.slack_of(tick, int(slack)))
            found += [(tick, span.start, span)] if begins else []
            why = reason if not begins else why
        return [span for _, _, span in sorted(found, key=lambda each: each[:2])], why

    def is_finished(self) -> bool:
        """Return whether every vertex of the run is credited."""
        return bool(self._ledger.credited >= self.total)

    def unevaluated(self) -> list[int]:
        """Return the versions at the ends of epochs that are still to be evaluated."""
        return [] if self._spec.program.evaluate is None else [version for _, version in self._ledger.unevaluated()]

    def open_first(self, now: float) -> None:
        self._ledger.open_epoch(0, self.vertex_count, now)

    def open_next(self, now: float) -> int:
        """Open the next epoch if all vertices of the newest are leased and `_can_open` allows it. Return the newest."""
        newest, closed = self._ledger.newest_epoch()
        if not self._ledger.spans and newest + 1 < self.epoch_count and self._can_open(newest, closed=closed):
            newest += 1
            self._ledger.open_epoch(newest, self.vertex_count, now)
        return newest

    @property
    def is_sequential(self) -> bool:
        """True if an epoch opens only after the one before is closed: fully credited, and flushed by its merge rules.
        The reply with the first lease of an epoch then brings the version at that close, or a later one."""
        return self._spec.program.consistency.is_sequential or self._changes_local

    def is_followed(self, epoch: int) -> bool:
        """Return whether vertices of the next epoch can be trained before this one ends."""
        if epoch + 1 >= self.epoch_count or self.is_sequential:
            return False
        return self._stopping is None or self._stopping.can_follow(epoch, self.is_evaluated)

    def _can_open(self, newest: int, *, closed: bool) -> bool:
        """Return whether the next epoch can open. At most two are open at once; one if epochs are sequential."""
        if self._stopping is not None and not self._stopping.can_follow(newest, self.is_evaluated):
            return False
        bsp = self._spec.program.consistency.is_bsp
        # The next epoch's chunks must hold the local vertices as this epoch leaves them (with BSP: after its patches
        # are in the files), and evaluate must read them before they change again.
        if self._changes_local:
            return closed and not self.unevaluated() and not (bsp and self._ledger.patches())
        if self.is_sequential:
            return closed
        return newest == 0 or self._ledger.is_epoch_complete(newest - 1)

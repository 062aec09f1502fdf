"""Chunk sizing: chooses chunk sizes and push intervals from measured costs and lifetimes of workers.

Sizes are chosen again when there are notably more observations, on a thread beside the master's loop, and each change
is an event. Sizes are in seconds of training, so a machine four times as fast gets four times the vertices. Until
lifetimes are known, chunks are 1/8 of a worker's share of the epoch (`master.leases.policy`), and pushes follow the
merge rule (`gridml.engine.pace`).

A chunk size maximises goodput, or follows one of the paper's two formulas, for comparison. The paper's sizes hold for a
chunk that counts only when it ends (`--no-push`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chunk_model.goodput import Costs
from chunk_model.observations import Observations
from gridml.protocol.messages import MAX_PUSH_INTERVAL_S
from master.leases.policy import ChunkFacts, SpeedFacts
from master.state.spans import Delay
from master.state.worker_records import WorkerRecord
from master.store.journal import Events
from master.store.rundir import EventFacts
from master.store.settings import GAUSSIAN, GOODPUT, MAX_COUNT, PAPER, SizeSettings
from master.telemetry.measures import Measures

if TYPE_CHECKING:
    from chunk_model.fit import Selected
    from chunk_model.lifetime import Lifetime


_CANDIDATES = 2_000  # sizes that the search tries; neighbours differ by 1% if a chunk may have a billion vertices


def paper_chunk(rule: str, lifetime: Lifetime, costs: Costs, most: int) -> tuple[int, str]:
    """Return (vertices of a chunk by PAPER or GAUSSIAN, at most `most`, reason).

    The formulas are in `chunk_model.paper`. Raises LifetimeError if the rule needs a normal law and `lifetime` is
    another, ChunkError if lives are too long to be counted in vertices.
    """
    # Imported here: scipy takes 0.3 s, which would delay the master's start.
    from chunk_model.families import Normal
    from chunk_model.lifetime import LifetimeError
    from chunk_model.paper import deterministic_chunk, normal_chunk_as_printed
    from chunk_model.sizes import grid

    if rule == PAPER:
        mean_s = lifetime.mean()
        chunk = deterministic_chunk(mean_s, costs)
        return min(most, chunk), f"{chunk:,} vertices fill a life of {mean_s:.4g} s (the paper's T/(t_c + t_x))."
    if not isinstance(lifetime, Normal):
        raise LifetimeError(f"chunks by the paper's search need lives that are normal, got {lifetime}")
    chunk = normal_chunk_as_printed(lifetime.mean_s, lifetime.sd_s, costs, grid(1, most, _CANDIDATES))
    return chunk, f"{chunk:,} vertices have the least TotalTime for lives of {lifetime} (the paper's search)."


# The first fit comes after FIRST_DEATHS deaths, or after FIRST_EXPOSURE_S seconds lived by all workers together.
FIRST_DEATHS = 3
FIRST_EXPOSURE_S = 600.0
MORE_DEATHS, MORE_EXPOSURE = 1.25, 2.0  # factors by which deaths or exposure must grow before the next fit
APART_S = 15.0  # between two fits, so sizes change at most a few times a minute
NOTABLE = 1.1  # a size that would change by a smaller factor stays
STAYS = 0.99  # a size with this share of the best goodput stays: goodput is flat around its maximum
KNOWN_DEATHS = 10  # a kind of worker with fewer independent deaths takes the fit of all workers
# Shares of the master's one core that merging and granting may take.
MERGING, GRANTING = 0.5, 0.25
# Seconds of the master per push until one was merged: those of a replica of about 20 MB (limits.md). If thousands of
# workers began together and all pushed after half a minute, the pushes at the ends of their chunks would wait for long.
ASSUMED_MERGE_S = 0.1
# Rounds that a chunk lasts at least, if pushes are gathered in rounds: its end takes a push, too, mostly between ticks.
ROUNDS_EACH = 4
# No mixtures: their fit takes a hundred times as long. No normal law: a Weibull law fits normal lives just as well.
FAMILIES = ("exponential", "weibull", "lognormal", "kaplan_meier")


@dataclass(frozen=True)
class SeenLives:
    """Number of observations that a fit can use."""

    deaths: int
    exposure_s: float  # seconds lived by all workers together
    at_s: float  # seconds of the run's clock


@dataclass(frozen=True)
class KindFacts:
    """Measurements of workers on one kind of machine."""

    name: str  # "" for all workers together
    costs: Costs
    lives: Observations
    travel_s: float = 0.0  # seconds from a push to its reply


@dataclass(frozen=True)
class SizingFacts:
    """Input of `size`."""

    kinds: Sequence[KindFacts]  # all workers together come first
    vertices: int  # vertices of an epoch
    workers: int  # number of workers that share them
    batch: int
    many: bool  # a worker trains chunk after chunk, not one per job
    merge_s: float = 0.0  # seconds of the master per push
    grant_s: float = 0.0  # seconds of the master per lease, whatever its size
    largest: int | None = None  # vertices that a chunk may have; None: no limit
    sizes: Sizes = field(default_factory=dict)  # the sizes in force
    expected: str | None = None  # the law that the user expects, as text, until enough lives were observed
    rule: str = GOODPUT  # one of `chunk_rules`


@dataclass(frozen=True)
class Size:
    """Chunk size and push interval for workers of one kind."""

    chunk_s: float  # seconds of training in a chunk
    push_s: float  # seconds of training between two pushes
    chunk: int  # vertices that a typical worker trains in `chunk_s`
    push_every: int  # vertices that a typical worker trains in `push_s`
    why: str


Sizes = Mapping[str, Size]  # by kind; "" for workers of unknown kind


def merging_s(workers: int, merge_s: float) -> float:
    """Return the shortest push interval in seconds that lets one master merge the pushes of `workers`."""
    return workers * merge_s / MERGING


def push_at_least_s(live: int, merge_s: float) -> float:
    """Return the seconds after which a worker pushes even if it has trained less than an interval. If it pushed more
    often than the master can merge, pushes would queue up. `merge_s` is 0 until a push was merged."""
    return max(MAX_PUSH_INTERVAL_S, merging_s(live, merge_s or ASSUMED_MERGE_S))


def is_due(seen: SeenLives, last: SeenLives | None, *, expected: bool = False) -> tuple[bool, str]:
    """Return (whether to fit lifetimes now, reason), by the observations now and at the last fit. With an `expected`
    law the first fit needs no deaths."""
    if not seen.exposure_s > 0:
        return False, "no worker has lived yet"
    if last is None and expected:
        return True, "the user gave a law for lifetimes"
    if last is None:
        if seen.deaths >= FIRST_DEATHS:
            return True, f"{seen.deaths} workers have died"
        return seen.exposure_s >= FIRST_EXPOSURE_S, f"{seen.deaths} deaths in {span(seen.exposure_s)} of work"
    if seen.at_s - last.at_s < APART_S:
        return False, f"the last fit is {seen.at_s - last.at_s:.0f} s old"
    if seen.deaths > last.deaths and seen.deaths >= max(FIRST_DEATHS, MORE_DEATHS * last.deaths):
        return True, f"{seen.deaths} workers have died, {last.deaths} at the last fit"
    longer = seen.exposure_s >= MORE_EXPOSURE * last.exposure_s
    return longer, f"{span(seen.exposure_s)} were lived, {span(last.exposure_s)} at the last fit"


def size(facts: SizingFacts) -> tuple[Sizes, str]:
    """Return (new sizes by kind, reasons).

    Lifetimes are fitted to a kind's own lives if it has enough deaths, to all lives otherwise. Kinds whose sizes in
    force are nearly optimal are left out. Takes about 50 ms per kind.
    """
    # Imported here: scipy takes 0.3 s, which would delay the master's start.
    from chunk_model.choose import Work, choose
    from chunk_model.fit import Selected, select
    from chunk_model.goodput import chunk_goodput
    from chunk_model.parse import hedged, parse

    families = ("normal",) if facts.rule == GAUSSIAN else FAMILIES
    pooled: Selected | None = None
    typical_s = facts.kinds[0].costs.exec_s
    sizes: dict[str, Size] = {}
    reasons = []
    for kind in facts.kinds:
        costs, exec_s = kind.costs, kind.costs.exec_s
        try:
            if facts.expected is not None and facts.kinds[0].lives.independent_deaths < KNOWN_DEATHS:
                law_said, seen = parse(facts.expected), kind.lives.independent_deaths
                selected, lives = Selected(law_said, "", {}, "as said before the run", seen, is_sure=False), kind.lives
            elif kind.lives.independent_deaths >= KNOWN_DEATHS or pooled is None:
                selected, lives = select(kind.lives, families), kind.lives
                pooled = pooled or selected
            else:
                selected, lives = pooled, facts.kinds[0].lives
            push_least_s = max(kind.travel_s, merging_s(facts.workers, facts.merge_s))
            work = Work(
                vertices=max(1, round(facts.vertices * typical_s / exec_s)),  # as if all workers were of this kind
                workers=facts.workers,
                batch=facts.batch,
                largest=None if facts.largest is None else max(facts.largest, facts.batch),
                many=facts.many,
                push_at_least=max(1, round(push_least_s / exec_s)),
            )
            law = hedged(selected.lifetime, lives)
            choice = choose(law, costs, work)
            chunk, reason = choice.chunk, f"{choice.reason} {' '.join(choice.warnings)}".rstrip()
            before = facts.sizes.get(kind.name)
            # Sizes that relieve the master are bounded by the epoch's vertices, and by those that a chunk may have.
            highest_s = exec_s * min(work.vertices or 1, work.largest or math.inf)
            least_s = min(facts.workers * facts.grant_s / GRANTING, highest_s)
            if facts.rule != GOODPUT:
                most = max(facts.batch, round(highest_s / exec_s))
                chunk, reason = paper_chunk(facts.rule, selected.lifetime, costs, most)
                choice = choose(law, costs, replace(work, largest=max(chunk, facts.batch)))  # for the push interval
            elif before is not None and before.chunk_s >= least_s and before.push_s >= push_least_s:
                old = max(1, round(before.chunk_s / exec_s))
                push = min(old, max(1, round(before.push_s / exec_s)))
                if chunk_goodput(law, costs, old, many=facts.many, push_every=push) >= STAYS * choice.goodput:
                    continue
        except (ValueError, ArithmeticError) as error:  # the numbers contradict one another; the error has the remedy
            reasons.append(f"{kind.name or 'all workers'}: sizes stay as they were: {error}")
            continue
        push_every = min(choice.push_every or chunk, chunk)
        chunk_s = max(chunk * exec_s, least_s)
        why = f"{span(chunk_s)} of work, for lives of {span(selected.lifetime.mean())}"
        sizes[kind.name] = Size(chunk_s, push_every * exec_s, max(1, round(chunk_s / exec_s)), push_every, why)
        reasons.append(f"{kind.name or 'all workers'}: {reason} Lives: {selected.lifetime}; {selected.reason}")
    return sizes, " ".join(reason if reason.endswith(".") else f"{reason}." for reason in reasons)


def is_notable(old: Sizes, new: Sizes) -> tuple[bool, str]:
    """Return (whether any size differs notably from the one in force, reason)."""
    for name, size in new.items():
        before = old.get(name)
        if before is None:
            return True, f"the first sizes for {name or 'all workers'}"
        for what, was_s, is_s in (
            ("chunks", before.chunk_s, size.chunk_s),
            ("push intervals", before.push_s, size.push_s),
        ):
            if max(was_s, is_s) > NOTABLE * min(was_s, is_s):
                return True, f"{what} of {name or 'all workers'} change from {span(was_s)} to {span(is_s)}"
    return False, "no size changes by more than a tenth"


def span(seconds: float) -> str:
    """Return a duration as text, such as "4.5 min"."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * length or unit == "s":
            return f"{seconds / length:.3g} {unit}"
    raise AssertionError("seconds are left")


class ChunkSizing:
    """Chunk sizes and push intervals of one run.

    `vertices`: in an epoch; `batch`: vertices in a batch of the program; `vertex_bytes`: estimated bytes of a vertex in
    a chunk, used until chunks were measured.
    """

    def __init__(
        self, settings: SizeSettings, vertices: int, batch: int, vertex_bytes: float = 0.0, *, many: bool
    ) -> None:
        self.measures = Measures(vertex_bytes)
        self._settings = settings
        self._vertices = vertices
        self._batch = batch
        self._many = many
        self._wanted = settings.chunk is None or settings.push_every is None
        self._sizes: Sizes = {}
        self._last: SeenLives | None = None
        self._fit: Future[tuple[Sizes, str]] | None = None
        self._because = ""  # reason of the last fit
        # (time, (delay until a credit, seconds around a chunk) by kind): a cache for that time, see `delays`
        self._delays: tuple[float, dict[str, tuple[Delay, float]]] = 0.0, {}
        self._refused = ""  # reason why no size can be chosen, if an event has reported it
        self._merge_s = 0.0  # seconds of the master per push, as of the last turn

    @property
    def largest(self) -> int:
        """Vertices that a chunk may have by the limit on its bytes."""
        return int(min(MAX_COUNT, self._settings.chunk_bytes / max(self.measures.copying.vertex_bytes, 1e-9)))

    def chunk(self, record: WorkerRecord) -> tuple[int, str] | None:
        """Return (vertices of a worker's next chunk, reason); None while lifetimes or speeds are unknown."""
        sized, rate = self._of(record), self.rate(record)
        if sized is None or rate is None:
            return None
        return max(1, round(sized.chunk_s * rate)), sized.why

    def facts(
        self, record: WorkerRecord, now: float, left: int, workers: int, *, followed: bool
    ) -> tuple[ChunkFacts, SpeedFacts]:
        """Return the facts for a worker's next chunk, of an epoch with `left` vertices not leased, shared by `workers`.

        Chunks are whole batches of the program's own size, so they are whole optimiser steps even if batches are
        smaller because there are many workers.
        """
        rate, speeds, own = self.rate(record), self.measures.speeds, record.measured.speed
        delay, around_s = self.delays(record, now)
        total, vertex_s = speeds.total, delay.copy_s + 1 / rate if rate else math.inf
        chunk = ChunkFacts(
            left,
            workers,
            self._batch,
            wanted=self._settings.chunk,
            per_epoch=self._vertices,
            speed=rate / (total / speeds.count) if rate and total > 0 else 1.0,
            sized=self.chunk(record),
            around=round(around_s / vertex_s),
            idle=round(delay.start_s / vertex_s),
            merging=round(workers * self._merge_s / vertex_s),
            interval=record.assignment.push_every * (ROUNDS_EACH if record.assignment.is_gathered else 1)
            if self._settings.push_every is None
            else 0,
            followed=followed,
            largest=self.largest,
        )
        return chunk, SpeedFacts(rate, speeds.count - (own is not None), total - (own or 0.0), total)

    def max_interval_s(self, record: WorkerRecord) -> float:
        """Return the seconds of training between two pushes that the lifetimes of workers allow; infinity: unknown."""
        sized = self._of(record)
        return math.inf if sized is None else sized.push_s

    def interval(self, record: WorkerRecord) -> int:
        """Return the vertices between two pushes: set by the user, or by the last reply; 0 before the first reply."""
        return self._settings.push_every or record.assignment.push_every

    def rate(self, record: WorkerRecord) -> float | None:
        """Return the vertices per second of a worker, or of its kind until it has trained. None: unknown."""
        if record.measured.speed is not None:
            return record.measured.speed
        exec_s = self.measures.exec_s(record.measured.kind)
        return None if exec_s is None else 1 / exec_s

    def push_s(self, record: WorkerRecord) -> float | None:
        """Return the training seconds that a worker's last push cost it, or its kind's. None: unknown."""
        return record.measured.push_s or self.measures.push_s(record.measured.kind)

    def delay(self, record: WorkerRecord) -> Delay:
        """Return the delay, beside training, until a lease of the worker is credited."""
        return self.measures.delay(record.measured.kind)

    def delays(self, record: WorkerRecord, now: float) -> tuple[Delay, float]:
        """Return (delay, seconds around a chunk), which all workers of a kind share."""
        # Cached per turn: it costs more than all other facts of a grant.
        if self._delays[0] != now:
            self._delays = now, {}
        delays, kind = self._delays[1], record.measured.kind
        if kind not in delays:
            delays[kind] = self.delay(record), self.around_s(record)
        return delays[kind]

    def around_s(self, record: WorkerRecord) -> float:
        """Return the measured seconds around the training of a chunk: start, end, a push's round trip, and with one
        chunk per job the wait for a machine. 0 if nothing was measured."""
        kind = record.measured.kind
        costs = self.measures.costs(kind, many=self._many)
        if costs is None:
            return 0.0
        return costs.start_s + costs.end_s + self.measures.travel_s(kind) + (0.0 if self._many else costs.wait_s)

    def step(self, now: float, workers: int, merge_s: float, executor: Executor, events: Events) -> bool:
        """Take the result of the fit under way, or start one that is due; return whether sizes changed."""
        self._merge_s = merge_s
        if not self._wanted:
            return False
        if self._fit is not None:
            return self._fit.done() and self._take(events)
        lives = self.measures.lives
        seen = SeenLives(lives.deaths, lives.exposure_s(now), now)
        due, because = is_due(seen, self._last, expected=self._settings.expected_lifetime is not None)
        try:
            facts = self._facts(now, workers, merge_s) if due else None
        except (ValueError, ArithmeticError):  # the workers' measures contradict one another
            facts = None
        if facts is None:
            return False
        self._last, self._because = seen, because
        self._fit = executor.submit(size, facts)
        return self._fit.done() and self._take(events)

    def _take(self, events: Events) -> bool:
        assert self._fit is not None
        fit, self._fit = self._fit, None
        try:
            new, reason = fit.result()
        except Exception as error:  # sizes are advice: no error in a fit may end a run
            if not self._refused:
                self._refused = f"{type(error).__name__}: {error}"
                text = "sizes stay as they were: lifetimes could not be fitted"
                events.record("sizing", {"sizes": {}}, text, why=self._refused)
            return False
        notable, change = is_notable(self._sizes, new)
        if new or not reason:
            self._refused = ""
        if notable:
            self._sizes = {**self._sizes, **new}
            sizes = (f"{name or 'all workers'} {_in_words(each)}" for name, each in new.items())
            facts = {"sizes": {name: _numbers(each) for name, each in new.items()}}
            why = f"{reason} Fitted because {self._because}."
            events.record("sizing", facts, f"{'; '.join(sizes)}: {change}", why=why)
        elif not new and reason and not self._refused:
            self._refused = reason
            text = "no size of chunks can be chosen for these lifetimes"
            events.record("sizing", {"sizes": {}}, text, why=reason)
        return notable

    def _facts(self, now: float, workers: int, merge_s: float) -> SizingFacts | None:
        """Return the facts for a fit; None until a worker has trained."""
        measures = self.measures
        kinds = []
        kinds_of_machines = measures.kinds if len(measures.kinds) > 1 else ()
        for name in ("", *kinds_of_machines):
            costs = measures.costs(name, many=self._many)
            if costs is None:
                return None
            lives = measures.lives.observations(now, name or None)
            kinds.append(KindFacts(name, costs, lives, measures.travel_s(name)))
        grant_s, largest = measures.copying.grant_s, max(1, self.largest)
        expected = self._settings.expected_lifetime
        shared = self._vertices, workers, self._batch, self._many
        return SizingFacts(kinds, *shared, merge_s, grant_s, largest, self._sizes, expected, self._settings.chunk_rule)

    def _of(self, record: WorkerRecord) -> Size | None:
        return self._sizes.get(record.measured.kind) or self._sizes.get("")


def _in_words(sized: Size) -> str:
    return (
        f"get {sized.chunk:,} vertices a chunk ({span(sized.chunk_s)} of work), "
        f"and push every {sized.push_every:,} ({span(sized.push_s)}) or more often"
    )


def _numbers(sized: Size) -> EventFacts:
    return {
        "chunk": sized.chunk,
        "chunk_s": sized.chunk_s,
        "push_every": sized.push_every,
        "push_s": sized.push_s,
    }

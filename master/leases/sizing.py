"""The sizes of chunks and the push intervals in force, chosen again as the run learns about its workers.

A new choice is made when there is more to know, in the background of the master's loop, and is recorded. Sizes are
seconds of training, so that a machine four times as fast gets four times the vertices. While nothing is known,
chunks are an eighth of a worker's share of the epoch (`master.leases.policy`), and pushes follow the merge rule
(`gridml.engine.pace`).

The size of a chunk follows goodput, or one of the paper's own two formulas, for a run to be compared with it. The
paper's sizes hold for a chunk that counts when it ends, or not at all (`--no-push`); they say nothing of pushes.
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
from master.store.settings import GAUSSIAN, GOODPUT, MAX_COUNT, PAPER, Settings
from master.telemetry.measures import Measures

if TYPE_CHECKING:
    from chunk_model.fit import Selected
    from chunk_model.lifetime import Lifetime


_CANDIDATES = 2_000  # sizes that the search looks at; two of them differ by 1% where chunks may have a billion vertices


def paper_chunk(rule: str, lifetime: Lifetime, costs: Costs, most: int) -> tuple[int, str]:
    """Return the vertices of a chunk by PAPER or GAUSSIAN, `most` of them at most, and why.

    `chunk_model.paper` has the formulas and how they are read. Raises LifetimeError where lives are normal by the rule
    and `lifetime` is another law, ChunkError where lives are too long to be counted in vertices.
    """
    # Here, not above: a master would wait 0.3 s for scipy as it starts.
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


FIRST_DEATHS = 3  # that make a first guess worth while,
FIRST_EXPOSURE_S = 600.0  # or so many seconds of all workers together in which nobody died
MORE_DEATHS, MORE_EXPOSURE = 1.25, 2.0  # a fit is made again when there is so many times as much to know
APART_S = 15.0  # seconds between two fits at least: sizes change a few times a minute at most
NOTABLE = 1.1  # a size that changes by less stays as it is,
STAYS = 0.99  # and so does one that is worth so much of the best: the hill is flat at its top
KNOWN_DEATHS = 10  # independent ones; a kind with fewer is taken to live as all do
# A master computes on one core. Merging and granting may each take so much of it.
MERGING, GRANTING = 0.5, 0.25
# Not all: the fit of a mixture takes a hundred times as long, and what is normal a Weibull law fits as well.
FAMILIES = ("exponential", "weibull", "lognormal", "kaplan_meier")


@dataclass(frozen=True)
class SeenLives:
    """What a fit can rest on: deaths, and seconds lived by all workers together, as at a moment of the run's clock."""

    deaths: int
    exposure_s: float
    at_s: float


@dataclass(frozen=True)
class KindFacts:
    """One kind of worker ("" for all together): what a chunk costs it, its lives, and the seconds from sending a push
    to its answer."""

    name: str
    costs: Costs
    lives: Observations
    travel_s: float = 0.0


@dataclass(frozen=True)
class SizingFacts:
    """`kinds` begins with all workers together. `vertices` are those of an epoch, shared by `workers`, whose programs
    have batches of `batch`; `many`: a worker takes chunk after chunk. Merging a push costs the master `merge_s`, and
    granting a lease `grant_s`, however large it is. A chunk may have `largest` vertices, None: any number. `sizes` are
    in force. `expected` is a law that lives are expected to follow, as text, before enough of them were seen; `rule`
    is what the size of a chunk follows (`chunk_rules`)."""

    kinds: Sequence[KindFacts]
    vertices: int
    workers: int
    batch: int
    many: bool
    merge_s: float = 0.0
    grant_s: float = 0.0
    largest: int | None = None
    sizes: Sizes = field(default_factory=dict)
    expected: str | None = None
    rule: str = GOODPUT


@dataclass(frozen=True)
class Size:
    """What workers of one kind are given: seconds of training in a chunk, and between two pushes; `chunk` and
    `push_every` are the vertices that a typical one trains in them. `why` in a few words."""

    chunk_s: float
    push_s: float
    chunk: int
    push_every: int
    why: str


Sizes = Mapping[str, Size]  # by kind; "" for workers of which nothing is known


def merging_s(workers: int, merge_s: float) -> float:
    """Return the least seconds between two pushes of each of so many workers, if a push takes the master `merge_s`."""
    return workers * merge_s / MERGING


def push_at_least_s(live: int, merge_s: float) -> float:
    """Return the seconds after which a worker pushes however few vertices it has trained: oftener than the master can
    merge would only make pushes wait."""
    return max(MAX_PUSH_INTERVAL_S, merging_s(live, merge_s))


def is_due(seen: SeenLives, last: SeenLives | None, *, expected: bool = False) -> tuple[bool, str]:
    """Whether lifetimes are fitted (again), given what the last fit rested on; the first at once if it is `expected`
    how long workers live."""
    if not seen.exposure_s > 0:
        return False, "nobody has lived yet"
    if last is None and expected:
        return True, "it was said how long workers live"
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
    """The sizes for every kind that any can be chosen for, and why, kind by kind.

    The law of lifetimes is fitted to the kind's own lives if it has enough deaths, to all otherwise. Kinds whose sizes
    in force are nearly the best are left out. Takes some 50 ms a kind.
    """
    # Here, not above: a master would wait 0.3 s for scipy as it starts.
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
                vertices=max(1, round(facts.vertices * typical_s / exec_s)),  # as if all were of this kind
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
            # Granting never asks for more than a chunk may have: there is no more to do, or to carry.
            highest_s = exec_s * min(work.vertices or 1, work.largest or math.inf)
            least_s = min(facts.workers * facts.grant_s / GRANTING, highest_s)
            if facts.rule != GOODPUT:
                most = max(facts.batch, round(highest_s / exec_s))
                chunk, reason = paper_chunk(facts.rule, selected.lifetime, costs, most)
                choice = choose(law, costs, replace(work, largest=max(chunk, facts.batch)))  # for how often it pushes
            elif before is not None and before.chunk_s >= least_s and before.push_s >= push_least_s:
                old = max(1, round(before.chunk_s / exec_s))
                push = min(old, max(1, round(before.push_s / exec_s)))
                if chunk_goodput(law, costs, old, many=facts.many, push_every=push) >= STAYS * choice.goodput:
                    continue
        except (ValueError, ArithmeticError) as error:  # they make no sense together: it says why, and what to do
            reasons.append(f"{kind.name or 'all workers'}: sizes stay as they were: {error}")
            continue
        push_every = min(choice.push_every or chunk, chunk)
        chunk_s = max(chunk * exec_s, least_s)
        why = f"{span(chunk_s)} of work, for lives of {span(selected.lifetime.mean())}"
        sizes[kind.name] = Size(chunk_s, push_every * exec_s, max(1, round(chunk_s / exec_s)), push_every, why)
        reasons.append(f"{kind.name or 'all workers'}: {reason} Lives: {selected.lifetime}; {selected.reason}")
    return sizes, " ".join(reason if reason.endswith(".") else f"{reason}." for reason in reasons)


def is_notable(old: Sizes, new: Sizes) -> tuple[bool, str]:
    """Whether any size differs enough from what is in force to change it."""
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


def push_interval(
    ruled: int, sized: Size | None, rate: float, batch: int, live: int, merge_s: float
) -> tuple[int, str]:
    """Vertices between two pushes of a worker that trains `rate` vertices per second, in whole batches.

    `ruled` are those that the merge rule and the push budget want. A short life is worth more pushes than that; there
    are no more than the master can merge from `live` workers.
    """

    def whole(seconds: float) -> int:
        return max(1, round(seconds * rate / batch)) * batch

    if rate <= 0:
        return ruled, "as the merge rule and the push budget want; nothing is known of lifetimes"
    least = whole(merging_s(live, merge_s))
    if least > ruled:
        return least, f"{span(least / rate)} of work: the master merges no faster"
    if sized is None:
        return ruled, "as the merge rule and the push budget want; nothing is known of lifetimes"
    wanted = max(least, whole(sized.push_s))
    if wanted < ruled:
        return wanted, f"{span(wanted / rate)} of work: workers do not live for longer pushes to pay"
    return ruled, "as the merge rule and the push budget want; goodput would do with fewer"


def span(seconds: float) -> str:
    """A time in words, such as 4.5 min."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * length or unit == "s":
            return f"{seconds / length:.3g} {unit}"
    raise AssertionError("seconds are left")


class ChunkSizing:
    """One run's sizes. `vertices` are those of an epoch, `batch` the program's own; `vertex_bytes` is a guess at what
    a vertex takes in a chunk."""

    def __init__(self, settings: Settings, vertices: int, batch: int, vertex_bytes: float = 0.0) -> None:
        self.measures = Measures(vertex_bytes)
        self._settings = settings
        self._vertices = vertices
        self._batch = batch
        self._many = settings.facts.chunks_per_job != 1
        self._wanted = settings.chunk is None or settings.push_every is None
        self._sizes: Sizes = {}
        self._last: SeenLives | None = None
        self._fit: Future[tuple[Sizes, str]] | None = None
        self._because = ""  # the last fit was made
        # By kind of worker, as measured at a moment: what passes until a lease is credited, and around a chunk.
        self._delays: tuple[float, dict[str, tuple[Delay, float]]] = 0.0, {}
        self._refused = ""  # why none can be chosen, once that was told

    @property
    def largest(self) -> int:
        """Vertices that a chunk may have by its bytes."""
        return int(min(MAX_COUNT, self._settings.chunk_bytes / max(self.measures.copying.vertex_bytes, 1e-9)))

    def chunk(self, record: WorkerRecord) -> tuple[int, str] | None:
        """Vertices of the next chunk for a worker, and why; None while nothing is known."""
        sized, rate = self._of(record), self.rate(record)
        if sized is None or rate is None:
            return None
        return max(1, round(sized.chunk_s * rate)), sized.why

    def facts(
        self, record: WorkerRecord, now: float, left: int, workers: int, *, followed: bool
    ) -> tuple[ChunkFacts, SpeedFacts]:
        """Return what the size of a worker's next chunk is decided by, of an epoch of which `left` vertices are not
        leased yet, and which so many `workers` share.

        Chunks are whole batches of the program's own size, and whole optimiser steps: a batch made smaller for many
        workers never ends short of it.
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
            interval=record.assignment.push_every if self._settings.push_every is None else 0,
            followed=followed,
            largest=self.largest,
        )
        return chunk, SpeedFacts(rate, speeds.count - (own is not None), total - (own or 0.0), total)

    def push_every(self, record: WorkerRecord, ruled: int, batch: int, live: int, merge_s: float) -> tuple[int, str]:
        """Vertices between two pushes of a worker, given what the merge rule and the push budget want, and why."""
        return push_interval(ruled, self._of(record), self.rate(record) or 0.0, batch, live, merge_s)

    def interval(self, record: WorkerRecord) -> int:
        """Vertices between two pushes of a worker: as asked for, or as it was told last; 0 while it was told none."""
        return self._settings.push_every or record.assignment.push_every

    def rate(self, record: WorkerRecord) -> float | None:
        """Vertices per second, as measured; of a worker that has not trained yet, those of its kind. None while nobody
        has."""
        if record.measured.speed is not None:
            return record.measured.speed
        exec_s = self.measures.exec_s(record.measured.kind)
        return None if exec_s is None else 1 / exec_s

    def push_s(self, record: WorkerRecord) -> float | None:
        """What a push keeps a worker from training: its own last one, or its kind's. None while nobody has told."""
        return record.measured.push_s or self.measures.push_s(record.measured.kind)

    def delay(self, record: WorkerRecord) -> Delay:
        """What passes beside training until a lease of the worker is credited."""
        return self.measures.delay(record.measured.kind)

    def delays(self, record: WorkerRecord, now: float) -> tuple[Delay, float]:
        """Return the delay, and the seconds around a chunk: alike for all workers of a kind, and worked out once for
        all that ask at a moment, because it costs more than the rest of what a lease is granted by."""
        if self._delays[0] != now:
            self._delays = now, {}
        delays, kind = self._delays[1], record.measured.kind
        if kind not in delays:
            delays[kind] = self.delay(record), self.around_s(record)
        return delays[kind]

    def around_s(self, record: WorkerRecord) -> float:
        """What passes around the training of a chunk of the worker's, as far as it was measured: its start, its end,
        and a push's way there and back; a machine's coming, too, where it has one chunk."""
        kind = record.measured.kind
        costs = self.measures.costs(kind, many=self._many)
        if costs is None:
            return 0.0
        return costs.start_s + costs.end_s + self.measures.travel_s(kind) + (0.0 if self._many else costs.wait_s)

    def step(self, now: float, workers: int, merge_s: float, executor: Executor, events: Events) -> bool:
        """Take the fit under way, or begin one that is due; return whether sizes have changed, which is recorded."""
        if not self._wanted:
            return False
        if self._fit is not None:
            return self._fit.done() and self._take(events)
        lives = self.measures.lives
        seen = SeenLives(lives.deaths, lives.exposure_s(now), now)
        due, because = is_due(seen, self._last, expected=self._settings.expected_lifetime is not None)
        try:
            facts = self._facts(now, workers, merge_s) if due else None
        except (ValueError, ArithmeticError):  # what workers told makes no sense together
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
        except Exception as error:  # sizes are advice: a run goes on without it, whatever a fit stumbles over
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
        """None while no worker has trained anything."""
        measures = self.measures
        kinds = []
        apart = measures.kinds if len(measures.kinds) > 1 else ()
        for name in ("", *apart):
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
        f"and push every {sized.push_every:,} ({span(sized.push_s)}) or oftener"
    )


def _numbers(sized: Size) -> EventFacts:
    return {
        "chunk": sized.chunk,
        "chunk_s": sized.chunk_s,
        "push_every": sized.push_every,
        "push_s": sized.push_s,
    }

"""The sizes of chunks and the push intervals in force, and when they are chosen anew.

The choice is `decisions.sizing`; here it is asked for when there is more to know, away from the master's loop, and
told.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from master.decisions.leasing import Delay
from master.decisions.sizing import (
    Facts,
    KindFacts,
    Seen,
    Size,
    Sizes,
    is_due,
    is_notable,
    push_interval,
    size,
    span,
)
from master.records import WorkerRecord
from master.store.event_facts import EventFacts
from master.store.journal import Events
from master.store.settings import MOST, Settings
from master.telemetry.measures import Measures


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
        self._last: Seen | None = None
        self._fit: Future[tuple[Sizes, str]] | None = None
        self._because = ""  # the last fit was made
        self._refused = ""  # why none can be chosen, once that was told

    @property
    def largest(self) -> int:
        """Vertices that a chunk may have by its bytes."""
        return int(min(MOST, self._settings.chunk_bytes / max(self.measures.copying.vertex_bytes, 1e-9)))

    def chunk(self, record: WorkerRecord) -> tuple[int, str] | None:
        """Vertices of the next chunk for a worker, and why; None while nothing is known."""
        sized, rate = self._of(record), self.rate(record)
        if sized is None or rate is None:
            return None
        return max(1, round(sized.chunk_s * rate)), sized.why

    def push_every(self, record: WorkerRecord, ruled: int, batch: int, live: int, merge_s: float) -> tuple[int, str]:
        """Vertices between two pushes of a worker, given what the merge rule and the push budget want, and why."""
        return push_interval(ruled, self._of(record), self.rate(record) or 0.0, batch, live, merge_s)

    def interval(self, record: WorkerRecord) -> int:
        """Vertices between two pushes of a worker: as asked for, or as it was told last; 0 while it was told none."""
        return self._settings.push_every or record.push_every

    def rate(self, record: WorkerRecord) -> float | None:
        """Vertices per second, as measured; of a worker that has not trained yet, those of its kind. None while nobody
        has."""
        if record.speed is not None:
            return record.speed
        exec_s = self.measures.exec_s(record.kind)
        return None if exec_s is None else 1 / exec_s

    def push_s(self, record: WorkerRecord) -> float | None:
        """What a push keeps a worker from training: its own last one, or its kind's. None while nobody has told."""
        return record.push_s or self.measures.push_s(record.kind)

    def delay(self, record: WorkerRecord) -> Delay:
        """What passes beside training until a lease of the worker is credited."""
        return self.measures.delay(record.kind)

    def around_s(self, record: WorkerRecord) -> float:
        """What passes around the training of a chunk of the worker's, as far as it was measured: its start, its end,
        and a push's way there and back; a machine's coming, too, where it has one chunk."""
        kind = record.kind
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
        seen = Seen(lives.deaths, lives.exposure_s(now), now)
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

    def _facts(self, now: float, workers: int, merge_s: float) -> Facts | None:
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
        return Facts(kinds, *shared, merge_s, grant_s, largest, self._sizes, expected, self._settings.chunk_rule)

    def _of(self, record: WorkerRecord) -> Size | None:
        return self._sizes.get(record.kind) or self._sizes.get("")


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

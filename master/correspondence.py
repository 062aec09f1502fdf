"""What the master remembers of its workers between their syncs: what each has, and on which versions it may stand.

None of it is needed for correctness: a master that starts again knows nothing of it, sends more than is needed, and
refuses a push whose base is not kept any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from gridml.messages import Sync
from gridml.names import job_of
from master.replica import Touched


@dataclass
class Correspondent:
    """One worker, since it was first heard."""

    number: int = -1  # of its last letter
    base: int = -1  # the version it says it holds
    sent: set[int] = field(default_factory=set)  # the versions that answers to its last letter told it of
    holding: dict[int, Touched] = field(default_factory=dict)  # by lease: what came with the answer that granted it
    heard_s: float = 0.0
    rate: float = 0.0  # vertices per second of training
    push_s: float = 0.0
    bytes_down: int = 0  # of answers to it that the ledger does not know of yet


class Correspondence:
    """All of them, those that have ended and may be started again, and those of an earlier master."""

    def __init__(self) -> None:
        self.workers: dict[str, Correspondent] = {}
        self.left: set[str] = set()  # workers that took their leave
        self._bases: dict[str, tuple[set[int], float]] = {}  # by job: what its last life may stand on, and until when
        self._inherited: set[int] = set()  # versions that workers of an earlier master may stand on,
        self._awaited: set[str] = set()  # while these have not spoken

    def hear(self, sync: Sync, number: int, now: float) -> Correspondent:
        """A worker has spoken, in its letter `number`."""
        known = self.workers.setdefault(sync.worker, Correspondent())
        self._awaited.discard(sync.worker)
        self._bases.pop(job_of(sync.worker), None)
        if number != known.number:
            known.number, known.sent = number, set()
        known.heard_s = now
        known.base = sync.have
        known.rate = sync.trained / sync.train_s if sync.train_s > 0 else 0.0
        known.push_s = sync.push_s
        return known

    def heard_at(self, now: float) -> set[str]:
        """The workers that were heard at this very time."""
        return {name for name, known in self.workers.items() if known.heard_s >= now}

    def await_survivors(self, workers: Collection[str], versions: Collection[int]) -> None:
        """`workers` go on from an earlier master's time, and stand on some of `versions`."""
        self._awaited = set(workers)
        self._inherited = set(versions)

    def end(self, worker: str, heir_until_s: float | None = None) -> None:
        """A worker has ended. One that is started again may bring what stands on an old version, until then."""
        known = self.workers.pop(worker, None)
        self._awaited.discard(worker)
        if heir_until_s is not None:
            bases = self._inherited if known is None else {known.base, *known.sent}
            self._bases[job_of(worker)] = bases, heir_until_s

    def forget(self, workers: Iterable[str]) -> None:
        """Nothing more is to be expected of these, though they were just heard; they hold no lease."""
        for worker in workers:
            self.workers.pop(worker, None)

    def forget_others(self, workers: Collection[str]) -> None:
        """Nobody but these is there any more."""
        self.forget(set(self.workers).difference(workers))

    def standing(self, now: float) -> set[int]:
        """The versions that somebody may name as the base of a push."""
        self._bases = {job: found for job, found in self._bases.items() if found[1] > now}
        named = [{known.base, *known.sent} for known in self.workers.values()]
        named += [bases for bases, _ in self._bases.values()]
        return set().union(*named, self._inherited if self._awaited else ())

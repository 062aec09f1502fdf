"""What the master remembers of its workers between their syncs: what each has, and on which versions it may stand.

None of it is needed for correctness: a master that starts again knows nothing of it, sends more than is needed, and
refuses a push whose base is not kept any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from gridml.protocol.attempts import job_of
from gridml.protocol.messages import Sync
from master.store.replica import Touched


@dataclass
class Correspondent:
    """One worker, since it was first heard."""

    number: int = -1  # of its last message
    base: int = -1  # the version it says it holds
    sent: list[int] = field(default_factory=list)  # the versions that answers to its last message told it of
    holding: dict[int, Touched] = field(default_factory=dict)  # by lease: what came with the answer that granted it
    rate: float = 0.0  # vertices per second of training
    push_s: float = 0.0
    bytes_down: int = 0  # of answers to it that the ledger does not know of yet


class Correspondence:
    """All of them, those that have ended and may be started again, and those of an earlier master."""

    def __init__(self) -> None:
        self.workers: dict[str, Correspondent] = {}
        self.left: set[str] = set()  # workers that took their leave
        self._heard: list[str] = []
        self._stood_on: Counter[int] = Counter()  # versions, by how many workers may stand on each
        self._bases: dict[str, tuple[list[int], float]] = {}  # by job: what its last life may stand on, and until when
        self._inherited: list[int] = []  # versions that workers of an earlier master may stand on,
        self._awaited: set[str] = set()  # while these have not spoken

    def hear(self, sync: Sync, number: int) -> Correspondent:
        """A worker has spoken, in its message `number`."""
        known = self.workers.setdefault(sync.worker, Correspondent())
        self._awaited.discard(sync.worker)
        self._bases.pop(job_of(sync.worker), None)
        self._heard.append(sync.worker)
        if number != known.number:
            self._leave(known.sent)
            known.number, known.sent = number, []
        if sync.have != known.base:
            self._leave([known.base])
            self._stood_on[sync.have] += 1
        known.base = sync.have
        known.rate = sync.trained / sync.train_s if sync.train_s > 0 else 0.0
        known.push_s = sync.push_s
        return known

    def told(self, known: Correspondent, version: int) -> None:
        """An answer that names a version is on its way to a worker."""
        known.sent.append(version)
        self._stood_on[version] += 1

    def heard(self) -> list[str]:
        """The workers that were heard since this was last asked, and are there still."""
        found, self._heard = self._heard, []
        return [worker for worker in found if worker in self.workers]  # not those who only brought something home

    def await_survivors(self, workers: Collection[str], versions: Collection[int]) -> None:
        """`workers` go on from an earlier master's time, and stand on some of `versions`."""
        self._awaited = set(workers)
        self._inherited = list(versions)

    def end(self, worker: str, heir_until_s: float | None = None) -> None:
        """A worker has ended. One that is started again may bring what stands on an old version, until then."""
        known = self._forget(worker)
        self._awaited.discard(worker)
        if heir_until_s is not None:
            bases = self._inherited if known is None else [known.base, *known.sent]
            self._bases[job_of(worker)] = bases, heir_until_s

    def forget(self, workers: Iterable[str]) -> None:
        """Nothing more is to be expected of these, though they were just heard; they hold no lease."""
        for worker in workers:
            self._forget(worker)

    def forget_others(self, workers: Collection[str]) -> None:
        """Nobody but these is there any more."""
        self.forget(set(self.workers).difference(workers))

    def stands_on(self, version: int, now: float) -> bool:
        """Whether somebody may name a version as the base of a push."""
        if self._stood_on[version] > 0:
            return True
        self._bases = {job: found for job, found in self._bases.items() if found[1] > now}
        heirs = any(version in bases for bases, _ in self._bases.values())
        return heirs or (bool(self._awaited) and version in self._inherited)

    def _forget(self, worker: str) -> Correspondent | None:
        known = self.workers.pop(worker, None)
        if known is not None:
            self._leave([known.base, *known.sent])
        return known

    def _leave(self, versions: Iterable[int]) -> None:
        """One worker less stands on each of these."""
        for version in versions:
            self._stood_on[version] -= 1
            if self._stood_on[version] <= 0:
                del self._stood_on[version]

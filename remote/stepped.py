"""A real worker, driven by somebody else's clock: it trains, and its training takes as long as it is told.

For simulations: session, courier, engine and f are the real ones, so replicas come out as they would on machines; what
a vertex, a chunk and a push cost is set beforehand, and the time that passes is a virtual clock's.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Engine, Snapshot
from gridml.model.chunk import Chunk
from gridml.model.program import Program, load
from remote.courier import StepCourier
from remote.session import Session, Waiting, Work

PATIENT_S = 1.0  # between two looks for a reply, which wakes who waits for it


class Prices(Protocol):
    """What things cost, in seconds of a machine of speed 1."""

    @property
    def exec_s(self) -> float: ...  # to train a vertex
    @property
    def copy_s(self) -> float: ...  # to copy one,
    @property
    def start_s(self) -> float: ...  # and to begin a chunk,
    @property
    def end_s(self) -> float: ...  # and to end it
    @property
    def push_s(self) -> float | None: ...  # to push
    @property
    def boot_s(self) -> float: ...  # to come up


class Dice:
    """Random numbers that f draws from Python, numpy and torch: each worker has its own, whoever draws in between."""

    def __init__(self, seed: str, *, torch: bool) -> None:
        number = zlib.crc32(seed.encode())  # as a worker process seeds torch
        outside = self._taken(torch=torch)
        random.seed(number)
        np.random.seed(number)
        if torch:
            import torch as library

            library.manual_seed(number)
        self._torch = torch
        self._own = self._taken(torch=torch)
        self._put(outside)

    def swap(self) -> None:
        """The worker's for those of the process; the second time back again."""
        other = self._taken(torch=self._torch)
        self._put(self._own)
        self._own = other

    @staticmethod
    def _taken(*, torch: bool) -> tuple[Any, Any, Any]:
        state = None
        if torch:
            import torch as library

            state = library.get_rng_state()
        return random.getstate(), np.random.get_state(), state

    @staticmethod
    def _put(states: tuple[Any, Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if states[2] is not None:
            import torch as library

            library.set_rng_state(states[2])


class Watch:
    """A worker's time: that of the clock, and what it spent since it last let that go on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent_s = 0.0

    def __call__(self) -> float:
        return self._clock() + self._spent_s

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def settle(self) -> float:
        """What was spent, which the clock must now catch up with."""
        spent, self._spent_s = self._spent_s, 0.0
        return spent


class PricedEngine(Engine):
    """An engine whose work takes as long as `prices` say, by `watch`; the machine trains `speed` times as fast."""

    def __init__(self, program: Program, prices: Prices, speed: float, watch: Watch, dice: Dice) -> None:
        super().__init__(program)
        self._prices = prices
        self._speed = speed
        self._watch = watch
        self._dice = dice

    def begin(self, chunk: Chunk) -> None:
        super().begin(chunk)
        self._watch.spend(self._prices.start_s + chunk.count * self._prices.copy_s)

    def train(self, start: int, stop: int, factor: float) -> None:
        self._watch.spend((stop - start) * self._prices.exec_s / self._speed)
        self._dice.swap()
        try:
            super().train(start, stop, factor)
        finally:
            self._dice.swap()

    def snapshot(self) -> Snapshot:
        self._watch.spend(self._prices.push_s or 0.0)
        return super().snapshot()

    def end(self) -> None:
        """A chunk is trained to its end."""
        self._watch.spend(self._prices.end_s)


@final
class SteppedSession(Session):
    """A session that lets time pass where it was spent: what a batch leads to happens after it, not before."""

    _engine: PricedEngine

    def _train(self, work: Work) -> Waiting[None]:
        yield from super()._train(work)
        yield 0.0

    def _finish(self, work: Work) -> Waiting[None]:
        yield from super()._finish(work)
        if self._work is None:
            self._engine.end()  # while the last push travels
            yield 0.0


@final
class Stepped:
    """The life of a worker as a simulation plays it (`master.backends.simulated.Player`)."""

    def __init__(
        self,
        worker: str,
        program: Program,
        source: Path,
        end: WorkerMailbox,
        clock: Callable[[], float],
        prices: Prices,
        speed: float = 1.0,
        chunks: int | None = None,
        kind: str = "",
        seed: int = 0,
    ) -> None:
        self.interruptible = False
        self.woken: Callable[[], None] = lambda: None
        self._evicted = False
        self._boot_s = prices.boot_s
        self._watch = Watch(clock)
        self._courier = StepCourier(end, self._watch)
        dice = Dice(f"{seed}/{worker}", torch=program.uses_torch)
        self.session = SteppedSession(
            worker,
            program,
            source,
            end,
            self._courier,
            lambda: self._evicted,
            self._watch,
            chunks,
            engine=PricedEngine(program, prices, speed, self._watch, dice),
            kind=kind,
        )

    def life(self) -> Iterator[float]:
        """Everything it does. Yields the seconds to wait before it goes on."""
        yield self._boot_s
        for seconds in self.session.life():
            spent = self._watch.settle()
            waits = seconds > 0 and not spent
            self.interruptible = waits
            yield spent + (max(seconds, PATIENT_S) if waits and self._courier.busy else seconds)
            self.interruptible = False

    def evict(self) -> None:
        """SIGTERM: push what there is and leave."""
        self._evicted = True
        if self.interruptible:
            self.woken()

    def heard(self) -> None:
        """A reply may have come."""
        if self.interruptible:
            self.woken()


@final
class Trainer:
    """Makes workers that train the program in `source`; `master.simulation.simulate` asks it for them.

    As real workers do, they compute with one thread, so torch is left with one. Raises ProgramError as `load` does.
    """

    def __init__(self, source: Path, prices: Prices, seed: int = 0) -> None:
        self._program = load(source)
        self._source = source
        self._prices = prices
        self._seed = seed
        if self._program.uses_torch:
            import torch

            torch.set_num_threads(1)

    def __call__(
        self, worker: str, end: WorkerMailbox, clock: Callable[[], float], speed: float, chunks: int | None, kind: str
    ) -> Stepped:
        return Stepped(worker, self._program, self._source, end, clock, self._prices, speed, chunks, kind, self._seed)

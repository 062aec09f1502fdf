"""A real worker under a simulation's virtual clock, and a mailbox that repeats heartbeats on a thread.

Session, courier, engine and f are the real ones, so replicas are as they would be on real machines. Only durations are
simulated: prices define the time of a vertex, a chunk and a push.

`HeartbeatMailbox` keeps heartbeats going while f trains a long batch. They stop when the process ends, and also while
an extension holds the GIL; the master cannot distinguish the two.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from gridml.carriers.base import BEGUN, WorkerMailbox
from gridml.engine.devices import Device
from gridml.engine.engine import Engine
from gridml.engine.rng_state import RngState
from gridml.engine.stage_runner import CompiledStage
from gridml.engine.update_runner import BatchFailed
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol.payload import Arrived, Payload, Piece
from gridml.protocol.worker_actions import Prices, Train, Wait, busy_seconds
from gridml.protocol.worker_state import WorkerOptions
from remote.courier import StepCourier
from remote.session import Session, SessionOptions

MAX_POLL_S = 1.0  # maximum between two polls; a reply that comes earlier wakes the worker


class SteppedEngine(Engine):
    """An engine that has a random state of its own and counts the rows of a batch."""

    def __init__(
        self,
        program: Program,
        rng_state: RngState,
        device: Device | None = None,
        stages: list[CompiledStage] | None = None,
    ) -> None:
        super().__init__(program, device, stages=stages)
        self._rng_state = rng_state
        self.rows = 0  # of the last batch

    def train(self, start: int, stop: int, factor: float, scale: float = 1.0, others: float = 0.0) -> None:
        self.rows = stop - start
        self._rng_state.swap()
        try:
            super().train(start, stop, factor, scale, others)
        except BatchFailed as failed:
            if isinstance(failed.__cause__, KeyboardInterrupt):  # Ctrl-C, which a real worker process ignores
                raise KeyboardInterrupt from failed
            raise
        finally:
            self._rng_state.swap()


@final
class SteppedWorker:
    """A session whose actions take the time that `prices` give, except that the machine trains `speed` times as fast.
    Implements `master.simulation.simulated.SimulatedWorker`."""

    def __init__(
        self,
        options: SessionOptions,
        engine: SteppedEngine,
        mailbox: WorkerMailbox,
        clock: Callable[[], float],
        prices: Prices,
        speed: float = 1.0,
    ) -> None:
        self.is_interruptible = False
        self.woken: Callable[[], None] = lambda: None
        self._evicted = False
        self._clock = clock
        self._ended_s = math.inf
        self._prices = prices
        self._vertex_s = prices.exec_s / speed
        self._engine = engine
        self._courier = StepCourier(mailbox, clock)
        self._begin: Callable[[], Session] = lambda: Session(
            options, engine, mailbox, self._courier, lambda: self._evicted, clock
        )

    @property
    def lived_s(self) -> float:
        """The time at which the process ended; the present time while it lives."""
        return min(self._clock(), self._ended_s)

    def life(self) -> Iterator[float]:
        """Run the worker. Yields the seconds to wait before the next step."""
        try:
            yield self._prices.boot_s
            yield from self._live()
        finally:  # the driver kills a worker by closing the generator
            self._ended_s = self._clock()

    def _live(self) -> Iterator[float]:
        for action in self._begin().life():
            if isinstance(action, Wait):
                self.is_interruptible = True
                yield min(action.seconds, MAX_POLL_S) if self._courier.busy else action.seconds
                self.is_interruptible = False
            elif isinstance(action, Train):
                yield self._engine.rows * self._vertex_s
            else:
                yield busy_seconds(action, self._prices)

    def evict(self) -> None:
        """Simulate SIGTERM: the worker pushes what it has trained and leaves."""
        self._evicted = True
        if self.is_interruptible:
            self.woken()

    def notice_reply(self) -> None:
        """Poll, because a reply may have come."""
        self._courier.poll()
        if self.is_interruptible:
            self.woken()


@final
class Trainer:
    """Creates workers that train the program in `source`, for `master.simulation.simulate`.

    torch is limited to one thread, as in real workers. All workers train on `device`. Raises ProgramError as `load`
    does.
    """

    def __init__(self, source: Path, prices: Prices, seed: int = 0, *, device: Device | None = None) -> None:
        self._program = load(source)
        self._device = device
        self._source = source
        self._prices = prices
        self._seed = seed
        self._stages: list[CompiledStage] | None = None  # those of the first worker
        if self._program.uses_torch:
            import torch

            torch.set_num_threads(1)

    @property
    def batch(self) -> int:
        """The batch size of the program, in vertices."""
        return self._program.shape.batch or 1

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> SteppedWorker:
        rng_state = RngState(f"{self._seed}/{options.worker}", torch=self._program.uses_torch)
        engine = SteppedEngine(self._program, rng_state, self._device, self._stages)
        self._stages = engine.stages
        chosen = SessionOptions(options.worker, options.kind, options.chunks, options.patience_s, self._source)
        return SteppedWorker(chosen, engine, mailbox, clock, self._prices, speed)


BEAT_S = 0.5  # between two heartbeats: a tenth of the shortest heartbeat timeout that users may set


@final
class HeartbeatMailbox(WorkerMailbox):
    """A worker's mailbox that repeats the last heartbeat every `every_s` seconds on a thread."""

    def __init__(self, mailbox: WorkerMailbox, every_s: float = BEAT_S) -> None:
        self.poll_s = mailbox.poll_s
        self._mailbox = mailbox
        self._every_s = every_s
        self._newest = BEGUN, 0  # the last heartbeat; guarded by `_one_at_a_time`
        self._one_at_a_time = threading.Lock()  # keeps heartbeats in order, as two threads send them
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="beating", daemon=True)
        self._thread.start()

    def send(self, number: int, payload: Payload) -> None:
        self._mailbox.send(number, payload)

    def receive(self, number: int) -> Arrived | None:
        return self._mailbox.receive(number)

    def wait(self, seconds: float, rest: Callable[[float], object]) -> None:
        self._mailbox.wait(seconds, rest)

    def fetch(self, name: str, sha256: str) -> Arrived:
        return self._mailbox.fetch(name, sha256)

    def view(self, name: str, sha256: str) -> Piece:
        return self._mailbox.view(name, sha256)

    def beat(self, lease: int, upto: int) -> None:
        with self._one_at_a_time:
            self._newest = lease, upto
            self._mailbox.beat(lease, upto)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._mailbox.close()

    def _work(self) -> None:
        while True:
            with self._one_at_a_time:
                self._mailbox.beat(*self._newest)
            if self._closed.wait(self._every_s):
                return

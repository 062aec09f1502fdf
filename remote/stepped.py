"""A real worker under the clock of a simulation: it trains, and its training takes as long as its prices say.

For simulations: session, courier, engine and f are the real ones, so replicas come out as they would on machines.
The cost of a vertex, a chunk and a push is set beforehand, and the time that passes is that of a virtual clock.

The heartbeat goes on while its process lives, however long f takes for a batch. It stops with the process, and when
an extension holds Python's lock: to the master that is silence, too.
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
from gridml.engine.update_runner import BatchFailed
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol.payload import Arrived, Payload, Piece
from gridml.protocol.worker_actions import Prices, Train, Wait, busy_seconds
from gridml.protocol.worker_state import WorkerOptions
from remote.courier import StepCourier
from remote.session import Session, SessionOptions

MAX_POLL_S = 1.0  # between two looks for a reply, which wakes who waits for it


class SteppedEngine(Engine):
    """An engine with random numbers of its own that counts the rows it trains."""

    def __init__(self, program: Program, rng_state: RngState, device: Device | None = None) -> None:
        super().__init__(program, device)
        self._rng_state = rng_state
        self.rows = 0  # of the last batch

    def train(self, start: int, stop: int, factor: float, share: float = 1.0) -> None:
        self.rows = stop - start
        self._rng_state.swap()
        try:
            super().train(start, stop, factor, share)
        except BatchFailed as failed:
            if isinstance(failed.__cause__, KeyboardInterrupt):  # of a person: no worker process ignores it for them
                raise KeyboardInterrupt from failed
            raise
        finally:
            self._rng_state.swap()


@final
class SteppedWorker:
    """A session whose actions take as long as `prices` say, on a machine that trains `speed` times as fast: a
    `master.simulation.simulated.SimulatedWorker`."""

    def __init__(
        self,
        options: SessionOptions,
        engine: SteppedEngine,
        mailbox: WorkerMailbox,
        clock: Callable[[], float],
        prices: Prices,
        speed: float = 1.0,
    ) -> None:
        self.interruptible = False
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
        """Until when its process has lived, by now."""
        return min(self._clock(), self._ended_s)

    def life(self) -> Iterator[float]:
        """Everything it does. Yields the seconds to wait before it goes on."""
        try:
            yield self._prices.boot_s
            yield from self._live()
        finally:  # whoever ends it closes the generator
            self._ended_s = self._clock()

    def _live(self) -> Iterator[float]:
        for action in self._begin().life():
            if isinstance(action, Wait):
                self.interruptible = True
                yield min(action.seconds, MAX_POLL_S) if self._courier.busy else action.seconds
                self.interruptible = False
            elif isinstance(action, Train):
                yield self._engine.rows * self._vertex_s
            else:
                yield busy_seconds(action, self._prices)

    def evict(self) -> None:
        """SIGTERM: push what there is and leave."""
        self._evicted = True
        if self.interruptible:
            self.woken()

    def notice_reply(self) -> None:
        """A reply may have come."""
        self._courier.poll()
        if self.interruptible:
            self.woken()


@final
class Trainer:
    """Makes workers that train the program in `source`; `master.simulation.simulate` asks it for them.

    As real workers do, they compute with one thread, so torch is left with one; all train on `device`. Raises
    ProgramError as `load` does.
    """

    def __init__(self, source: Path, prices: Prices, seed: int = 0, *, device: Device | None = None) -> None:
        self._program = load(source)
        self._device = device
        self._source = source
        self._prices = prices
        self._seed = seed
        if self._program.uses_torch:
            import torch

            torch.set_num_threads(1)

    @property
    def batch(self) -> int:
        """The vertices of the program's batch."""
        return self._program.update.batch or 1

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> SteppedWorker:
        rng_state = RngState(f"{self._seed}/{options.worker}", torch=self._program.uses_torch)
        engine = SteppedEngine(self._program, rng_state, self._device)
        chosen = SessionOptions(options.worker, options.kind, options.chunks, options.patience_s, self._source)
        return SteppedWorker(chosen, engine, mailbox, clock, self._prices, speed)


BEAT_S = 0.5  # between two heartbeats of one batch: the shortest silence that may be asked for has ten of them


@final
class HeartbeatMailbox(WorkerMailbox):
    """A worker's mailbox that says its last heartbeat again every `every_s` seconds, on a thread of its own."""

    def __init__(self, mailbox: WorkerMailbox, every_s: float = BEAT_S) -> None:
        self.poll_s = mailbox.poll_s
        self._mailbox = mailbox
        self._every_s = every_s
        self._newest = BEGUN, 0
        self._one_at_a_time = threading.Lock()  # an older heartbeat must not come after a newer one
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="beating", daemon=True)
        self._thread.start()

    def send(self, number: int, payload: Payload) -> None:
        self._mailbox.send(number, payload)

    def receive(self, number: int) -> Arrived | None:
        return self._mailbox.receive(number)

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

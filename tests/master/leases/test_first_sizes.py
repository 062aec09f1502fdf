"""Sizes are right from the first chunk on: bounded in bytes and in the time of the master's loop to cut them, and the
first push already shows the costs of pushes and chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gridml.carriers.directory import DirectoryMailbox
from gridml.protocol import bundle
from gridml.protocol.messages import Lease, Push, Reply, Sync, Verdict, reply_from, to_json
from gridml.protocol.push import NOTHING, PushContent, ReplicaPart, RowValues, encode
from master.launch import start
from master.ports.environment import Environment
from master.run import MasterRun
from master.simulation.faulty_network import VirtualClock
from master.state.jobs import Backend, JobEvent, State
from master.store.settings import Settings

PROGRAM = Path(__file__).parents[2] / "programs" / "rows.py"
WORKERS = 6
MAX_BYTES = 300_000  # bytes of a chunk: a share of the epoch has eleven times as many
BATCH = 10


class Idle(Backend):
    """A back end whose workers run at once and act as scripted by the test."""

    name = "idle"

    def __init__(self) -> None:
        self._events: list[JobEvent] = []

    def inherit(self, *, keep: bool) -> list[str]:
        return []

    def submit(self, worker: str) -> None:
        self._events.append(JobEvent(0.0, worker, State.RUNNING, "here"))

    def poll(self) -> list[JobEvent]:
        events, self._events = self._events, []
        return events

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """Not used: there are no jobs."""

    def close(self) -> None:
        """Not used: there are no processes."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[MasterRun]:
    settings = Settings(PROGRAM, workers=WORKERS, steps_each=0, chunk_bytes=MAX_BYTES)
    environment = Environment(lambda settings, directory: Idle(), clock=VirtualClock(1000.0), durable=False)
    with start(settings, tmp_path / "run", environment) as run:
        run._staff()
        run.step()
        yield run


class WorkerLimit:
    """A worker that sends the messages of the test."""

    def __init__(self, root: Path, name: str) -> None:
        self._name = name
        self._mailbox = DirectoryMailbox(root, name)
        self._number = 0

    def ask(self) -> None:
        self.say(Sync(self._name, wants=True))

    def say(self, sync: Sync, content: PushContent = NOTHING) -> None:
        self._number += 1
        self._mailbox.send(self._number, bundle.encode(to_json(sync), encode(content)))

    def hear(self) -> Lease | None:
        """Return the lease in its last answer."""
        return self.reply().lease

    def reply(self) -> Reply:
        return reply_from(bundle.decode(self._mailbox.receive(self._number) or b"")[0])


def test_chunks_are_bounded_in_bytes_from_the_first_one_on(run: MasterRun) -> None:
    root = run.parts.directory.root
    workers = [WorkerLimit(root, f"w{k}") for k in range(1, WORKERS + 1)]
    for worker in workers:
        worker.ask()
        run.step()
    leases = [worker.hear() for worker in workers]
    sizes = [path.stat().st_size for path in (root / "chunks").iterdir()]
    assert len(sizes) == WORKERS
    for lease, size in zip(leases, sizes, strict=True):
        assert lease is not None
        assert lease.stop - lease.start > 20 * BATCH
        assert 0.9 * MAX_BYTES < size < 1.05 * MAX_BYTES
    assert "the limit on the bytes of a chunk" in run.ledger._db.execute("SELECT reason FROM leases").fetchone()[0]


def test_who_asks_while_half_of_what_a_chunk_may_have_was_cut_asks_again(run: MasterRun) -> None:
    root = run.parts.directory.root
    workers = [WorkerLimit(root, f"w{k}") for k in range(1, WORKERS + 1)]
    waiting = workers
    for turn in range(1, WORKERS + 1):
        for worker in waiting:
            worker.ask()
        run.step()
        waiting = [worker for worker in waiting if worker.hear() is None]
        assert len([*(root / "chunks").iterdir()]) == turn
    assert not waiting  # in the end all have a lease


@pytest.mark.parametrize(("cpu_s", "own_s"), [(0.02, None), (0.02, 0.1), (0.0, 0.1)])
def test_the_first_push_sizes_the_next_and_the_chunk_that_comes_with_its_answer(
    tmp_path: Path, cpu_s: float, own_s: float | None
) -> None:
    """Merging takes the master `cpu_s`. The worker has reported the cost of its pushes, or this is its first push: then
    the same cost is assumed."""
    rate, looks = 1_000.0, iter(range(10**6))
    environment = Environment(
        lambda settings, directory: Idle(),
        clock=VirtualClock(1000.0),
        durable=False,
        cpu=lambda: cpu_s * next(looks),  # between two readings
    )
    with start(Settings(PROGRAM, workers=2, steps_each=0), tmp_path / "run", environment) as run:
        run._staff()
        run.step()
        worker = WorkerLimit(tmp_path / "run", "w1")
        worker.ask()
        run.step()
        lease = worker.hear()
        assert lease is not None
        trained = lease.stop - lease.start
        push = Push(lease.id, lease.term, 1, 0, lease.stop, trained)
        costs = {"push_s": own_s or 0.0, "travel_s": 0.0 if own_s is None else 0.2}
        said = Sync("w1", have=0, wants=True, push=push, trained=trained, train_s=trained / rate)
        counted = ReplicaPart(rows={"Total": RowValues(np.array([0]), {"count": np.array([trained])})})
        worker.say(said._replace(**costs), PushContent(counted))
        run.step()
        reply = worker.reply()
    assert reply.verdict is Verdict.MERGED, reply.reason
    cost_s = cpu_s + (cpu_s if own_s is None else own_s)
    assert reply.pace.push_every >= 0.999 * rate * cost_s / run.parts.exchange.pace.sizes.push_budget
    assert reply.lease is not None
    assert reply.lease.stop - reply.lease.start >= reply.pace.push_every


def test_slow_cuts_of_chunks_are_reported_once(tmp_path: Path) -> None:
    looks = iter(range(10**6))
    environment = Environment(
        lambda settings, directory: Idle(), clock=VirtualClock(1000.0), durable=False, cpu=lambda: 3.0 * next(looks)
    )
    with start(Settings(PROGRAM, workers=2, chunk=500), tmp_path / "run", environment) as run:
        run._staff()
        run.step()
        for name in ("w1", "w2"):
            WorkerLimit(tmp_path / "run", name).ask()
            run.step()
        warnings = run.ledger._db.execute("SELECT text FROM events WHERE topic = 'warning'").fetchall()
    assert len(warnings) == 1 and "MB took 3.0 s, in which no message was handled" in warnings[0][0]
    assert "--chunk-bytes" in warnings[0][0]

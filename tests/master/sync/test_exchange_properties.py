"""The protocol under any interleaving of faults, without processes: real masters and real sessions, a faulty carrier,
a clock that jumps, and workers that die, lie and send messages after their death.

After every turn of the master the credited, free and leased ranges must be a partition of the epoch, and replica and
fields must hold exactly the credited work. Finally, without faults, the run must finish.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Engine
from gridml.engine.update_runner import BatchFailed
from gridml.errors import GridmlError, RunError, UserCodeError
from gridml.model.loading import load
from gridml.protocol import bundle, outbox
from gridml.protocol.messages import sync_from, to_json
from gridml.protocol.outbox import UnansweredPush, attempt_of, job_of, worker_name
from gridml.protocol.push import module_key
from gridml.protocol.worker_actions import Wait
from master.launch import resume, start
from master.ports.environment import Environment
from master.run import MasterRun
from master.simulation.faulty_network import FaultyNetwork, VirtualClock, corrupted, truncated
from master.simulation.scenario import POINTS, CrashPoints
from master.state.jobs import Backend, JobEvent, State
from master.store.settings import Settings
from remote.courier import StepCourier
from remote.session import Session, SessionOptions
from tests.support.effort import examples
from tests.support.in_ledger import credits_of, epochs_of

PROGRAMS = Path(__file__).parents[2] / "programs"
LIES = ("nan replica", "nan field", "shape", "dtype", "missing", "beyond", "short", "term", "sequence", "base",
        "foreign ids", "nonsense", "huge")  # fmt: skip
CALM_LIMIT = 3000  # turns in which a run without faults must finish
Arrays = dict[str, NDArray[np.generic]]

DELIVERIES = ("on time", "on time", "on time", "lost", "twice", "late", "twice, once late", "truncated", "corrupted")
Who = st.integers(0, 2)
Fault = st.one_of(
    st.tuples(st.just("nothing"), Who, st.just(0)),
    st.tuples(st.just("work"), Who, st.integers(1, 12)),
    st.tuples(st.just("time"), st.just(0), st.sampled_from([6, 16, 130])),
    st.tuples(st.just("kill"), Who, st.integers(0, 1)),
    st.tuples(st.just("end"), Who, st.integers(0, 2)),
    st.tuples(st.just("die"), st.integers(0, len(POINTS) - 1), st.integers(0, 2)),
    st.tuples(st.just("restart"), Who, st.sampled_from([1, 0, 2])),
    st.tuples(st.just("restart"), Who, st.just(1)),
    st.tuples(st.just("lie"), Who, st.integers(0, len(LIES) - 1)),
)
Action = st.tuples(Fault, st.integers(0, 5))  # (fault, rounds of work and turns after it)

pytestmark = pytest.mark.timeout(900)  # a thousand cases, on a machine that may be busy


class Killed(BaseException):
    """A kill of the master."""


class Liar(WorkerMailbox):
    """A worker's mailbox that falsifies one message."""

    def __init__(self, honest: WorkerMailbox, lies_that_hurt: bool) -> None:
        self._honest = honest
        self._hurts = lies_that_hurt
        self.lie: str | None = None
        self._sent: dict[int, bytes] = {}

    def send(self, number: int, payload: bytes) -> None:
        if self.lie is not None and number not in self._sent:
            altered = lied(payload, self.lie, self._hurts)
            if altered is not None:
                self._sent = {number: altered}
                self.lie = None
        self._honest.send(number, self._sent.get(number, payload))

    def receive(self, number: int) -> bytes | None:
        return self._honest.receive(number)

    def fetch(self, name: str, sha256: str) -> bytes:
        return self._honest.fetch(name, sha256)

    def beat(self, lease: int, upto: int) -> None:
        self._honest.beat(lease, upto)

    def close(self) -> None:
        self._honest.close()


def lied(payload: bytes, lie: str, short_is_seen: bool) -> bytes | None:
    """Return a sync with a false push, None if this lie does not apply to it."""
    message, tensors = bundle.decode(payload)
    sync = sync_from(message)
    push = sync.push
    if push is None:
        return None
    if lie == "nonsense":
        return bundle.encode({"what": "is this"}, tensors)
    altered = {
        "beyond": push._replace(upto=push.upto + 1000, vertices=push.vertices + 1000),
        "term": push._replace(term=push.term + 1),
        "sequence": push._replace(sequence=push.sequence + 1),
        "base": push._replace(base=-7),
        "huge": push._replace(lease=2**70),
    }
    if lie in altered:
        return bundle.encode(to_json(sync._replace(push=altered[lie])), tensors)
    if lie == "short":
        shorter = push._replace(upto=push.upto - 1, vertices=push.vertices - 1)
        return bundle.encode(to_json(sync._replace(push=shorter)), tensors) if short_is_seen else None
    ids = sorted(n for n in tensors if n.startswith("@ids/"))
    values = sorted(n for n, t in tensors.items() if not n.startswith("@") and t.size)
    # LocalFields of local types come with ids, replicated arrays with rows, modules with neither.
    fields = [n for n in values if f"@ids/{n.split('/')[0]}" in tensors]
    replicas = [n for n in values if n not in fields]
    # A missing tensor of a module means that it was not trained, which cannot be distinguished from a lie.
    chosen = {"nan replica": [n for n in replicas if tensors[n].dtype.kind == "f"], "foreign ids": ids,
              "missing": [n for n in values if module_key(n) is None],
              "nan field": [n for n in fields if tensors[n].dtype.kind == "f"]}.get(lie, values)  # fmt: skip
    if not chosen:
        return None
    name = chosen[0]
    if lie == "missing":
        del tensors[name]
    elif lie == "shape":
        tensors[name] = np.stack([tensors[name], tensors[name]])
    elif lie == "dtype":
        tensors[name] = tensors[name].astype(np.int16)
    elif lie == "foreign ids":
        tensors[name] = tensors[name] + 1000
    else:
        tensors[name] = np.full_like(tensors[name], np.nan)
    return bundle.encode(message, tensors)


class Pool(Backend):
    """The back end of the world: its workers are stepped by hand, and events of their ends may be late."""

    name = "stepped"

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[JobEvent] = []
        self.late: list[JobEvent] = []

    def inherit(self, *, keep: bool) -> list[str]:
        """Workers outlive their master. Of three one is inherited, one ends and its push is recovered, and one is a
        zombie."""
        if not keep:
            return []
        orphans = [worker for worker in self._world.workers if worker.pool is not self]
        for worker in orphans[::3]:
            worker.pool = self
            self.say(worker.name, State.RUNNING)
        for worker in orphans[1::3]:
            self._world.workers.remove(worker)
            self._world.bring_home(worker, worker.courier.unanswered)
        return [worker.name for worker in orphans[::3]]

    def submit(self, worker: str) -> None:
        self._world.reached("submit")
        started = Worker(self._world, worker, self)
        started.fail_where(self._world.fails)
        self._world.workers.append(started)
        self.say(worker, State.RUNNING)

    def say(self, worker: str, state: State, *, late: bool = False, exit_code: int | None = None) -> None:
        event = JobEvent(self._world.clock(), worker, state, "here", state.value, exit_code=exit_code)
        (self.late if late else self.events).append(event)

    def poll(self) -> list[JobEvent]:
        events, self.events = self.events, []
        return events

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        for running in [w for w in self._world.workers if w.name == worker and w.pool is self]:
            self._world.end(running, State.EVICTED)

    def close(self) -> None:
        """Do nothing: workers outlive their master."""


class Worker:
    """A session that is stepped by hand; it may deliver the unsent push of an earlier process of its job."""

    def __init__(self, world: World, name: str, pool: Pool, unanswered: UnansweredPush | None = None) -> None:
        self.name = name
        self.pool = pool
        self.evicted = False
        self.carrier = Liar(world.network.worker(name), world.program.consistency.is_bsp or bool(world.mutable))
        number = unanswered.number if unanswered is not None and unanswered.sync.worker == name else 1
        self.courier = StepCourier(self.carrier, world.clock, number, f"process {next(world.processes)}")
        self.engine = Engine(world.program)
        self.session = Session(
            SessionOptions(name, source=world.source, unanswered=unanswered),
            self.engine,
            self.carrier,
            self.courier,
            lambda: self.evicted,
            world.clock,
        )
        self.life = self.session.life()
        self.waits = attempt_of(name) > 0  # for its mailbox, as a restarted job does

    def fail_where(self, fails: Callable[[str, Sequence[int]], bool]) -> None:
        """Let f raise at each batch for which `fails(worker, vertices)` is true."""
        engine, train = self.engine, self.engine.train

        def failing(start: int, stop: int, factor: float, scale: float = 1.0, others: int = 0) -> None:
            assert engine.chunk is not None
            ids = engine.chunk.tables[engine.program.shape.driver.__name__].ids[start:stop].tolist()
            if fails(self.name, ids):
                raise BatchFailed(ids[0], ids[-1]) from ValueError("f failed")
            train(start, stop, factor, scale, others)

        engine.train = failing  # type: ignore[method-assign]

    def fail_once(self) -> None:
        """Let f raise at the next batch."""
        engine = self.engine
        train = engine.train

        def failing(start: int, stop: int, factor: float, scale: float = 1.0, others: int = 0) -> None:
            engine.train = train  # type: ignore[method-assign]
            raise BatchFailed(start, stop) from ValueError("f failed")

        engine.train = failing  # type: ignore[method-assign]


class World:
    """One run with its whole environment."""

    def __init__(self, source: Path, root: Path, chosen: Settings, deliveries: Sequence[str]) -> None:
        self.source = source
        self.root = root
        self.recovered = root / "recovered"
        self.processes = itertools.count()
        self.clock = VirtualClock(1000.0)
        self.deliveries = iter(deliveries)
        self.deadly: tuple[str, int] | None = None
        self.fails: Callable[[str, Sequence[int]], bool] = lambda worker, vertices: False
        self.calm = False
        self.workers: list[Worker] = []
        self.masters: list[MasterRun] = []
        self.deaths = 0
        self.network = FaultyNetwork(self.clock, self.deliver)
        self.program = load(source)
        self.mutable = [name for kind in self.program.types().values() for name in kind.mutable]
        self.environment = Environment(
            lambda settings, directory: Pool(self),
            clock=self.clock,
            rest=self.rest,
            hook=self.reached,
            mailboxes=lambda settings, directory: CrashPoints(self.network.master(), self.reached),
            durable=False,
        )
        self.run = start(chosen, root, self.environment)
        self.module: ModuleType = sys.modules[f"gridml_program_{source.stem}"]
        self.first = {n: t.copy() for n, t in self.run.parts.store.replica.state.tensors()}
        self.newest = 0
        self.rests = 0

    def deliver(self, payload: bytes) -> list[tuple[float, bytes]]:
        chosen = "on time" if self.calm else next(self.deliveries, "on time")
        return {
            "on time": [(0.0, payload)],
            "lost": [],
            "twice": [(0.0, payload), (0.0, payload)],
            "late": [(5.0, payload)],
            "twice, once late": [(0.0, payload), (20.0, payload)],
            "truncated": [(0.0, truncated(payload, 0.5))],
            "corrupted": [(0.0, corrupted(payload, 999))],
        }[chosen]

    def reached(self, point: str) -> None:
        if self.deadly is None or self.deadly[0] != point or self.calm:
            return
        if self.deadly[1] == 0:
            self.deadly = None
            raise Killed
        self.deadly = (point, self.deadly[1] - 1)

    # --- actions

    def act(self, kind: str, which: int, much: int) -> None:
        worker = self.workers[which % len(self.workers)] if self.workers else None
        if kind == "time":
            self.clock.sleep(much)
            self.tell_late_news()
        elif kind == "die":
            self.deadly = (POINTS[which], much)
        elif worker is None:
            return
        elif kind == "work":
            self.step(worker, much)
        elif kind == "kill":
            self.end(worker, State.EVICTED, late=bool(much))
        elif kind == "end" and much == 0:
            worker.evicted = True
        elif kind == "end" and much == 1:
            worker.fail_once()
        elif kind == "end":
            self.end(worker, State.LOST, exit_code=1)
        elif kind == "restart":
            self.restart(worker, saved=much > 0, same_life=much == 2)
        elif kind == "lie":
            worker.carrier.lie = LIES[much]

    def round(self) -> None:
        """Let every worker train a little, and the master take a turn."""
        self.clock.sleep(4)
        for worker in list(self.workers):
            self.step(worker, 3)
        self.turn()

    def step(self, worker: Worker, steps: int) -> None:
        for _ in range(steps):
            if worker not in self.workers or (worker.waits and worker.name not in self.network.mailboxes):
                return  # a restarted one waits until the master has opened its mailbox
            worker.waits = False
            try:
                if isinstance(next(worker.life), Wait):
                    return  # it waits for an answer
            except StopIteration:
                self.end(worker, State.EVICTED if worker.evicted else State.FINISHED)

    def restart(self, worker: Worker, *, saved: bool, same_life: bool) -> None:
        """Restart a worker: the back end starts it again on another machine, or it saves a checkpoint and restarts in
        place."""
        before = worker.courier.unanswered
        for _ in range(8 if saved else 0):  # until a push is under way that the master has not read
            if worker.courier.unanswered in (None, before):
                self.step(worker, 1)
        if worker not in self.workers:
            return
        unanswered, pool = worker.courier.unanswered if saved else None, worker.pool
        if pool is not self.run.parts.backend or (same_life and unanswered is None):
            return
        if not same_life and worker.name in self.network.mailboxes:
            self.network.mailboxes[worker.name].syncs.clear()  # the reason why it was saved
        self.workers.remove(worker)
        name = worker.name if same_life else worker_name(job_of(worker.name), attempt_of(worker.name) + 1)
        if not same_life:
            pool.events.append(
                JobEvent(self.clock(), worker.name, State.EVICTED, "here", graceful=None, next_attempt=name)
            )
            pool.say(name, State.QUEUED)
            pool.say(name, State.RUNNING)
        self.workers.append(Worker(self, name, pool, unanswered))

    def end(self, worker: Worker, state: State, *, late: bool = False, exit_code: int | None = None) -> None:
        self.workers.remove(worker)
        if state is not State.EVICTED:
            self.bring_home(worker, worker.courier.unanswered if state is State.FINISHED else None)
        worker.pool.say(worker.name, state, late=late, exit_code=exit_code)

    def bring_home(self, worker: Worker, kept: UnansweredPush | None) -> None:
        """Recover at a job's end the pushes that it could not send, or deliver for an earlier life."""
        kept = kept or worker.session.undelivered
        if kept is not None:
            self.recovered.mkdir(exist_ok=True)
            outbox.write(self.recovered / job_of(worker.name), kept)

    def tell_late_news(self) -> None:
        pool = self.run.parts.backend
        assert isinstance(pool, Pool)
        pool.events, pool.late = pool.events + pool.late, []

    def turn(self) -> None:
        try:
            self.run.step()
        except (Killed, UserCodeError, RunError) as error:
            self.again(error)
        self.check()

    def again(self, error: BaseException) -> None:
        """Continue with another master, from the disk."""
        self.deaths += 1
        self.run.__exit__(None, None, None)
        while True:
            try:
                self.run = resume(self.root, self.environment)
                break
            except Killed:
                pass  # it died on startup
        if isinstance(error, GridmlError):
            self.deadly = None

    def finish(self) -> None:
        """Stop the faults, and run to the end."""
        self.calm, self.deadly = True, None
        for _ in range(8):  # earlier failures may still stop it a few times
            self.tell_late_news()
            try:
                self.run.finish()
                self.check()
                return
            except (UserCodeError, RunError) as error:
                self.again(error)
                stopped = error
        raise AssertionError("the run stops again and again") from stopped

    def rest(self, seconds: float) -> None:
        """Let the workers work while the master rests."""
        self.rests += 1
        assert self.rests < CALM_LIMIT, "the run does not come to an end"
        self.tell_late_news()
        before = sum(w.session.state.trained for w in self.workers)
        for worker in list(self.workers):
            self.step(worker, 8)
        idle = sum(w.session.state.trained for w in self.workers) == before
        self.clock.sleep(max(seconds, 2.0 if idle else 0.1))

    # --- invariants

    def check(self) -> None:
        ledger, epochs = self.run.ledger, self.run.parts.leases.epochs
        count = epochs.vertex_count
        credits = list(credits_of(ledger))
        trained = np.zeros(count, np.int64)
        for row in epochs_of(ledger):
            epoch = row["epoch"]
            parts = [("credited", start, stop) for e, start, stop in credits if e == epoch]
            assert sum(stop - start for _, start, stop in parts) == row["credited"]
            trained[np.concatenate([trained[:0], *(epochs.vertices(epoch, a, b) for _, a, b in parts)])] += 1
            parts += [("free", s.start, s.stop) for s in ledger.spans if s.epoch == epoch]
            parts += [("leased", r.upto, r.stop) for r in ledger.leases if r.epoch == epoch]
            ranges = sorted((start, stop) for _, start, stop in parts if start < stop)
            assert ranges[0][0] == 0 and ranges[-1][1] == count, parts
            assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges)), parts
        ends = [row["version"] for row in epochs_of(ledger) if row["closed_s"] is not None]
        assert [epoch for epoch, _ in ledger.epoch_ends()] == list(range(len(ends))), "epochs close in order"
        assert ends == sorted(ends)
        assert ledger.credited == sum(stop - start for _, start, stop in credits)
        assert self.run.parts.store.replica.version >= self.newest
        self.newest = self.run.parts.store.replica.version
        for name, tensor in self.run.parts.store.replica.state.tensors():
            assert tensor.dtype.kind != "f" or np.isfinite(tensor).all(), name
        self.check_values(trained)

    def check_values(self, trained: NDArray[np.int64]) -> None:
        """Check that replica and fields hold exactly the credited work."""
        if self.program.consistency.is_bsp:
            closed = sum(row["closed_s"] is not None for row in epochs_of(self.run.ledger))
            np.testing.assert_array_equal(
                self.run.parts.spec.graph.tables["Cell"].columns["value"], self.module.after(closed)
            )
            return
        tensors = dict(self.run.parts.store.replica.state.tensors())
        for name, expected in self.module.counted(trained).items():
            if name in tensors:
                np.testing.assert_array_equal(tensors[name] - self.first[name], expected, name)
            else:
                kind, field = name.split("/")
                np.testing.assert_array_equal(self.run.parts.spec.graph.tables[kind].columns[field], expected, name)

    def close(self) -> None:
        self.run.__exit__(None, None, None)


@dataclass(frozen=True)
class Case:
    """The random choices of a case."""

    actions: list[tuple[tuple[str, int, int], int]]
    deliveries: list[str]
    workers: int
    chunk: int | None
    push_every: int


Cases = st.builds(
    Case,
    st.lists(Action, min_size=6, max_size=25),
    st.lists(st.sampled_from(DELIVERIES), min_size=20, max_size=60),
    st.integers(1, 3),
    st.sampled_from([None, 4, 6]),
    st.sampled_from([1, 2, 4]),
)


def play(program: str, case: Case) -> None:
    root = Path(tempfile.mkdtemp(prefix="exchange"))
    source = PROGRAMS / f"{program}.py"
    chosen = Settings(source, workers=case.workers, chunk=case.chunk, push_every=case.push_every)
    try:
        world = World(source, root / "run", chosen, case.deliveries)
        try:
            world.turn()
            for fault, rounds in case.actions:
                if world.run.parts.leases.epochs.is_finished():
                    break
                world.act(*fault)
                for _ in range(rounds):
                    world.round()
            world.finish()
        finally:
            world.close()
    finally:
        shutil.rmtree(root)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no machine dies here, so written data survives."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(np.memmap, "flush", lambda column: None)


def quick(whole: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return settings for this many cases in `make verify`, where `test_many_more` also plays thousands per program,
    and for fewer in `make test`."""
    return settings(
        max_examples=examples(whole),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def test_a_quiet_run_finishes() -> None:
    for program in ("tally", "books", "ring", "twins", "crumbs", "overlapping", "in_turn", "in_turn_modules"):
        play(program, Case([], [], 2, None, 2))


def undisturbed(
    program: str, workers: int, chunk: int | None, fails: Callable[[str, Sequence[int]], bool]
) -> dict[str, int]:
    """Play a run whose only faults are the given failures of f; return the failures by worker."""
    root, source = Path(tempfile.mkdtemp(prefix="exchange")), PROGRAMS / f"{program}.py"
    try:
        world = World(source, root / "run", Settings(source, workers=workers, chunk=chunk, push_every=2), [])
        try:
            world.calm, world.fails = True, fails
            world.run.finish()
            world.check()
            return dict(world.run.ledger._db.execute("SELECT worker, count(*) FROM failures GROUP BY worker"))
        finally:
            world.close()
    finally:
        shutil.rmtree(root)


@quick(40)
@given(st.sampled_from(["tally", "books", "ring"]), st.integers(2, 5), st.integers(0, 4), st.sampled_from([None, 4, 6]))
def test_one_bad_worker_never_stops_a_run(program: str, workers: int, bad: int, chunk: int | None) -> None:
    name = f"w{bad % workers + 1}"
    failures = undisturbed(program, workers, chunk, lambda worker, vertices: worker == name)
    assert set(failures) <= {name}
    assert sum(failures.values()) <= 20, "it is avoided"


@quick(40)
@given(st.sampled_from(["tally", "books", "ring"]), st.integers(1, 5), st.integers(0, 7), st.sampled_from([None, 4, 6]))
def test_a_vertex_on_which_all_workers_fail_stops_the_run(
    program: str, workers: int, vertex: int, chunk: int | None
) -> None:
    with pytest.raises(UserCodeError, match=r"chunk .* failed 3 times.*f failed"):
        undisturbed(program, workers, chunk, lambda worker, vertices: vertex in vertices)


@quick(100)
@given(Cases)
def test_counts_and_visits_are_exact(case: Case) -> None:
    play("tally", case)


@quick(100)
@given(Cases)
def test_components_are_never_cut(case: Case) -> None:
    play("books", case)


@quick(70)
@given(Cases)
def test_supersteps_see_only_the_one_before(case: Case) -> None:
    play("ring", case)


@quick(25)  # torch takes five times as long
@given(Cases)
def test_module_vertices_come_from_the_master(case: Case) -> None:
    play("twins", case)


@quick(70)
@given(Cases)
def test_no_batch_is_smaller_than_it_may_be(case: Case) -> None:
    play("crumbs", case)


@quick(60)
@given(Cases)
def test_an_epoch_that_waits_for_the_one_before_sees_all_of_its_sums(case: Case) -> None:
    play("in_turn", case)


@quick(70)
@given(Cases)
def test_epochs_that_overlap_close_in_order(case: Case) -> None:
    play("overlapping", case)


@quick(15)
@given(Cases)
def test_it_sees_what_rules_have_held_back_too(case: Case) -> None:
    play("in_turn_modules", case)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "program", ["tally", "books", "ring", "twins", "crumbs", "overlapping", "in_turn", "in_turn_modules"]
)
@settings(
    max_examples=5000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(case=Cases)
def test_many_more(program: str, case: Case) -> None:
    play(program, case)

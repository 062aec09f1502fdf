"""A run, as a story: open the directory, make or load the replica, lease chunks to workers, merge what they push,
judge.

The master is one loop over events: what the back end says, what workers say. Everything it must remember is in the
ledger; it may be killed at any instant and go on with `resume`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from gridml.carriers.base import MasterMailboxes, Message
from gridml.carriers.directory import DirectoryMailboxes
from gridml.errors import GridmlError, LedgerError, RunError, StorageError
from gridml.model.graph import Graph
from gridml.model.program import Metrics, Program
from gridml.protocol import bundle
from gridml.protocol.attempts import is_attempt, job_of
from gridml.protocol.codec import BundleCodec, Codec
from gridml.protocol.outbox import read as read_outbox
from master.backends.base import Backend
from master.fleet import Fleet
from master.leases.leases import Grants
from master.store.ledger import Ledger
from master.store.local_fields import LocalFields
from master.store.replica import Replica, Versions
from master.store.rundir import MasterLock, RunDirectory, command
from master.store.settings import Settings
from master.sync.evaluation import evaluate, flops_per_vertex
from master.sync.exchange import HOPE_S, Exchange
from master.sync.merger import Merger

IDLE_S = (0.005, 0.02)  # how long the loop rests when nothing happened: at first, and at most
FAREWELL_S = 3.0  # how long workers may take to hear that the run has ended
Hook = Callable[[str], None]
Told = Callable[[str, str], None]


@dataclass(frozen=True)
class Environment:
    """What a run gets from outside: where workers come from, the time, and who is told. Tests put their own here."""

    backend: Callable[[Settings, RunDirectory], Backend]
    clock: Callable[[], float] = time.time
    rest: Callable[[float], None] = time.sleep
    told: Told = lambda kind, text: None
    hook: Hook = lambda point: None
    tick: Callable[[], None] = lambda: None  # called once a turn; it may raise to end the run between two turns
    mailboxes: Callable[[Path], MasterMailboxes] = DirectoryMailboxes
    unattended: bool = False  # started by a schedd, and not by a person
    durable: bool = True  # without, a simulation need not wait for the disk
    codec: Codec = field(default_factory=BundleCodec)
    cpu: Callable[[], float] = time.thread_time  # seconds that the master's thread has computed
    executor: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "evaluate")


class Run:
    """One master's hold on a run. Use `start` or `resume`, then `finish` inside `with`."""

    def __init__(
        self,
        directory: RunDirectory,
        settings: Settings,
        program: Program,
        graph: Graph,
        lock: MasterLock,
        environment: Environment,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.program = program
        self.graph = graph
        self.environment = environment
        self._lock = lock
        network = directory.on_network_disk()
        self.ledger = Ledger(directory.ledger, shared_disk=network is not None, durable=environment.durable)
        if self.ledger.get("fingerprint") != graph.fingerprint():
            raise LedgerError(
                f"the graph of {settings.program} is not the one that {directory.root} was begun with: "
                f"{graph.fingerprint()} against {self.ledger.get('fingerprint')}. Start a new run for it."
            )
        version, sha256 = self.ledger.newest_version()
        self.versions = Versions(directory.versions, durable=environment.durable)
        self.replica = Replica(graph, self.versions)
        self.replica.load(version, sha256)
        self.mailboxes = environment.mailboxes(directory.root)
        self.fields = LocalFields(graph, directory.fields, bsp=program.bsp, durable=environment.durable)
        self.fields.recover(self.ledger.patches())
        self.grants = Grants(program, graph, settings, self.ledger, self.mailboxes)
        self.merger = Merger(graph, self.replica)
        self.exchange = Exchange(
            settings,
            self.ledger,
            self.replica,
            self.merger,
            self.fields,
            self.grants,
            self.mailboxes,
            environment.clock,
            environment.hook,
            environment.codec,
            environment.cpu,
        )
        self.backend = environment.backend(settings, directory)
        self.fleet = Fleet(
            settings,
            directory,
            self.ledger,
            self.mailboxes,
            self.exchange,
            self.backend,
            self.grants.sizing.measures,
            self._event,
        )
        self._executor = environment.executor()
        self._evaluating: tuple[int, Future[Metrics]] | None = None
        self._events = directory.events.open("a", buffering=1)
        self._leaving = False
        self._backed_up = 0  # epochs closed at the last copy of the ledger
        if network is not None:
            self._tell(
                "warning", f"{directory.root} lies on {network}: a rollback journal is used, slower but safe there"
            )
        try:
            with self._explained():
                self._begin_life()
        except BaseException:
            self.backend.leave()
            self._close_events()
            raise

    def _begin_life(self) -> None:
        """Take over from an earlier master: hear what its workers sent since, keep the leases of those that live on,
        and fence the others, which may be alive still: their pushes are refused."""
        now = self.environment.clock()
        masters = self.ledger.get("masters", 0)
        self.ledger.term = max(1, int(now))
        program = bundle.digest(self.settings.program.read_bytes())
        # What was leased under a ledger since undone, or with another f, has nothing to do with this one.
        alike = not self.ledger.get("copied", False) and self.ledger.get("program", program) == program
        if not alike:
            self.directory.keep_program(self.settings.program)
        survivors = self.backend.inherit(keep=alike)
        # A master that is killed leaves no word: it lived until the last thing that it wrote down.
        until = min(now, self.ledger.last_sign())
        if masters and alike:
            leased = {job_of(row.worker) for row in self.ledger.leases.values()}
            standing = [worker for worker in survivors if job_of(worker) in leased]
            self.exchange.known.await_survivors(standing, self.ledger.kept_versions)
            self._hear_what_came_meanwhile(survivors)
        heirs = {job_of(worker) for worker in survivors}
        with self.ledger.transaction():
            for row in [row for row in self.ledger.leases.values() if row.worker not in survivors]:
                self.grants.end(row, now, "the master ended")
                if job_of(row.worker) in heirs:
                    self.grants.hope(row, now + HOPE_S)
            if masters:
                self.ledger.orphan_workers(until, but=survivors)
                self.ledger.set("gaps", [*self.ledger.get("gaps", []), [until, now]])
                kept = f"; {len(survivors)} workers live on" if survivors else ""
                credited = f"{self.ledger.credited:,} of {self.grants.total:,} vertices are credited"
                self._event(now, "resumed", credited + kept)
            self.ledger.set("copied", False)
            self.ledger.set("program", program)
            self.ledger.set("status", "running")
            self.ledger.set("masters", masters + 1)
            for worker in survivors:
                self.fleet.expect(worker, now)
        if not alike:
            self.mailboxes.clear()  # messages of workers that this ledger may not even know
        workers = self.ledger.workers()
        self.grants.sizing.measures.take_up(workers)
        alive = {*survivors}
        for gone in [row["worker"] for row in workers if row["worker"] not in alive]:
            self.mailboxes.close(gone)
        self.exchange.known.forget_others(survivors)
        self._settle_epochs()

    def _hear_what_came_meanwhile(self, survivors: Collection[str]) -> None:
        """Merge what was pushed while no master was there, by workers that have since ended, too."""
        living = {job_of(worker) for worker in survivors}
        ended = (row["worker"] for row in self.ledger.workers() if job_of(row["worker"]) not in living)
        recovered = self._recovered(ended)
        messages = [*recovered.values(), *self.mailboxes.collect()]
        speaking = {message.worker for message in messages}.union(survivors)
        for row in list(self.ledger.leases.values()):
            if row.worker in speaking:
                self.grants.take_over(row)
        self.exchange.handle(messages, granting=False)
        for path in recovered:
            path.unlink()

    def _recovered(self, workers: Iterable[str]) -> dict[Path, Message]:
        """What jobs that have ended could not send, and brought home, by the files that hold it."""
        messages: dict[Path, Message] = {}
        if not self.directory.recovered.is_dir():
            return messages
        for path in dict.fromkeys(self.directory.recovered / job_of(worker) for worker in workers):
            found = read_outbox(path)
            if found is not None and is_attempt(found.sync.worker, path.name):  # nobody speaks for another job
                last = replace(found, sync=found.sync._replace(wants=False))  # who wrote it is gone
                messages[path] = Message(last.sync.worker, last.number, last.payload)
            else:
                path.unlink(missing_ok=True)
        return messages

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._leaving:
            self.backend.leave()
        else:
            self.backend.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.ledger.close()
        self._close_events()
        self._lock.release()

    def leave(self) -> None:
        """Let the workers live on when this master ends, for the next one."""
        self._leaving = True

    def finish(self) -> None:
        """Drive the run to its end.

        Raises UserCodeError when the user's code failed too often, StorageError on a full disk, RunError when no
        worker can start or it was cancelled; the run can then be resumed once the cause is mended.
        """
        idle = IDLE_S[0]
        try:
            with self._explained():
                self.fleet.staff(self.environment.clock(), work_left=not self.grants.finished())
                self.step()  # the first workers are asked for,
                self.merger.prepare()  # and start meanwhile
                while not self._done():
                    self.environment.tick()
                    if self.step():
                        idle = IDLE_S[0]
                    else:
                        self.environment.rest(idle)
                        idle = min(IDLE_S[1], idle * 1.5)
        except GridmlError as error:
            self._give_up(error)
            raise
        self._conclude()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What a disk refuses, as an error meant for a person."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.ledger.explain(error) from error
        except OSError as error:
            raise StorageError(
                f"{self.directory.root} cannot be written: {error}. Nothing that was credited is lost: make room on "
                f"its disk, then {command('resume', self.directory.root)}"
            ) from error

    def step(self) -> bool:
        """One turn of the loop; returns whether anything happened."""
        events = self.backend.poll()  # before the messages: a worker that has ended can have sent its last one before
        recovered = self._recovered(event.worker for event in events if event.state.ended)
        messages = [*recovered.values(), *self.mailboxes.collect()]
        now = self.environment.clock()
        merged = self.exchange.handle(messages)
        for path in recovered:
            path.unlink()
        self.exchange.known.forget(message.worker for message in recovered.values())
        self.fleet.spoke(self.exchange.known.heard(), now)  # a message that makes no sense is no sign of life
        self.fleet.hear(events, now)
        for kind, text in self.exchange.news:
            self._tell(kind, text)
        self.exchange.news.clear()
        for text in self.backend.news():
            with self.ledger.transaction():
                self._event(now, "warning", text)
        if self.exchange.stop_because is not None:
            raise self.exchange.stop_because
        self.fleet.give_up_silent(now)
        self.fleet.staff(now, work_left=not self.grants.finished())
        self._settle_epochs()
        judged = self._evaluate()
        self._size(now)
        if (self.directory.root / "cancel").exists():
            (self.directory.root / "cancel").unlink()
            raise RunError(
                f"{self.directory.root} was cancelled. It stands at its last credit; go on with gridml resume."
            )
        return bool(events or messages or merged or judged)

    def _done(self) -> bool:
        return self.grants.finished() and not self.grants.unevaluated() and not self.ledger.patches()

    def _settle_epochs(self) -> None:
        """Bring the changed fields of finished epochs into their files, and keep a copy of the ledger at that point."""
        newest, closed = self.ledger.newest_epoch()
        finished = [p for p in self.ledger.patches() if p[1] < newest or closed]
        if finished:
            self.fields.settle(finished)
            with self.ledger.transaction():
                self.ledger.drop_patches(finished)
            self.fields.remove(finished)
        if self.ledger.epochs_closed() > self._backed_up:
            self._backed_up = self.ledger.epochs_closed()
            self.ledger.backup()

    def _size(self, now: float) -> None:
        """Choose the sizes of chunks anew when there is more to know of the workers, beside the run as it goes on."""

        def say(what: str, why: str) -> None:
            with self.ledger.transaction():
                self.ledger.event(now, "sizing", f"{what}. {why}")
            self._tell("sizing", what)

        workers = max(self.exchange.live(), self.settings.workers)
        self.grants.sizing.turn(now, workers, self.exchange.push_s, self.exchange.grant_s, self._executor, say)

    def _evaluate(self) -> bool:
        """Judge the oldest epoch that is not judged yet, on a thread of its own while the run goes on."""
        if self._evaluating is not None:
            epoch, future = self._evaluating
            if not future.done():
                return False
            self._evaluating = None
            metrics = future.result()
            now = self.environment.clock()
            with self.ledger.transaction():
                self.ledger.set_metrics(epoch, metrics)
                self._event(now, "metrics", f"epoch {epoch + 1}: {describe_metrics(metrics)}")
            return True
        waiting = self.ledger.unevaluated() if self.program.evaluate is not None else []
        if waiting:
            epoch, version = waiting[0]
            sha256 = self.ledger.sha256_of(version)
            self._evaluating = epoch, self._executor.submit(self._metrics, version, sha256)
        return False

    def _metrics(self, version: int, sha256: str | None) -> Metrics:
        tensors, _ = self.versions.read(version, sha256)
        return evaluate(self.program, self.graph, tensors, self.settings.program)

    def _conclude(self) -> None:
        """The run is credited in full: keep the trained replica, let the workers go."""
        values = {n: t for n, t in self.replica.tensors.items() if "#" not in n}
        if values:
            bundle.write_atomic(self.directory.final, bundle.encode({"version": self.replica.version}, values))
        until = self.environment.clock() + FAREWELL_S
        while self.fleet.alive and self.environment.clock() < until:
            self.environment.tick()
            if not self.step():
                self.environment.rest(IDLE_S[1])
        flops = flops_per_vertex(self.program, self.graph, self.replica.tensors)
        with self.ledger.transaction():
            self.ledger.set("flops_per_vertex", flops)
            self.ledger.set("status", "finished")
            self.ledger.set("ended_s", self.environment.clock())
        self._tell("finished", f"every vertex of {self.grants.total:,} is credited once")

    def _give_up(self, error: GridmlError) -> None:
        """Leave word of why the run stopped; it stands at its last credit."""
        with contextlib.suppress(StorageError), self.ledger.transaction():
            self.ledger.set("status", "cancelled" if isinstance(error, RunError) else "failed")
            self.ledger.set("stopped_because", str(error))

    def _event(self, now: float, kind: str, text: str) -> None:
        self.ledger.event(now, kind, text)
        self._tell(kind, text)

    def _tell(self, kind: str, text: str) -> None:
        self._events.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {kind:9} {text}\n")
        self.environment.told(kind, text)

    def _close_events(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was told of when it was written to
            self._events.close()


def describe_metrics(metrics: Metrics) -> str:
    """Metrics in one line: numbers to four digits, lists by their range."""
    return ", ".join(
        f"{name} {_number(value)}"
        if not isinstance(value, list)
        else f"{name} {_number(min(value))} to {_number(max(value))}"
        for name, value in metrics.items()
        if not isinstance(value, list) or value
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

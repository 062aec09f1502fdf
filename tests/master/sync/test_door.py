"""Arbitrary messages of a worker: they end no run, change no result, and do not affect other workers.

There are a master, an honest worker that really trains, and one that only writes the bytes of the test into its
mailbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.carriers.base import MAX_MAILBOX_FILES, Message
from gridml.carriers.directory import DirectoryMailbox
from gridml.engine.engine import Engine
from gridml.errors import UserCodeError
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol import bundle, outbox
from gridml.protocol.foreign import remove
from gridml.protocol.messages import Failure, Lease, Push, Reply, Sync, Verdict, reply_from, to_json
from gridml.protocol.worker_actions import Wait
from master.launch import resume, start
from master.ports.environment import Environment
from master.ports.mailboxes import run_mailboxes
from master.simulation.faulty_network import VirtualClock
from master.state.jobs import Backend, JobEvent, State
from master.state.worker_records import WorkerRecord
from master.store.settings import Settings
from master.sync.exchange import MAX_NOTES
from master.sync.pushes import MAX_DAMAGED, MAX_MALFORMED
from master.views.report import report
from master.views.terminal import print_status
from remote.courier import StepCourier
from remote.session import Session, SessionOptions

PROGRAM = Path(__file__).parents[2] / "programs" / "tally.py"
TURNS = 3000  # limit for the end of a run
Tensors = dict[str, Any]


class Pool(Backend):
    """A back end whose workers run immediately, and end when they are cancelled."""

    name = "pool"

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.alive: list[str] = []
        self.cancelled: list[str] = []

    def inherit(self, *, keep: bool) -> list[str]:
        for worker in self.alive:
            self.say(worker, State.RUNNING)
        return [*self.alive]

    def submit(self, worker: str) -> None:
        self.alive.append(worker)
        self.say(worker, State.RUNNING)

    def say(self, worker: str, state: State, **more: Any) -> None:
        if state.ended:
            self.alive.remove(worker)
        self.events.append(JobEvent(0.0, worker, state, "here", **{"detail": state.value, **more}))

    def poll(self) -> list[JobEvent]:
        events, self.events = self.events, []
        return events

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        self.cancelled.append(worker)
        if worker in self.alive:
            self.say(worker, State.EVICTED, cancelled=True)

    def close(self) -> None:
        """Not used: there are no processes."""


class Unhurried(Engine):
    """It trains twenty vertices in a second."""

    def __init__(self, program: Program, clock: VirtualClock) -> None:
        super().__init__(program)
        self._time = clock

    def train(self, start: int, stop: int, factor: float, scale: float = 1.0, others: int = 0) -> None:
        self._time.sleep(0.05 * (stop - start))
        super().train(start, stop, factor, scale, others)


class Scene:
    """A run of two workers: `w1` is hostile, `w2` is honest."""

    @property
    def record(self) -> WorkerRecord:
        """The master's record of `w1`."""
        return self.run.parts.workers.of("w1")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock(1000.0)
        self.backend = Pool()
        self.reports: list[str] = []
        self.environment = Environment(
            lambda settings, directory: self.backend,
            clock=self.clock,
            rest=self.rest,
            report=lambda topic, text, facts: self.reports.append(f"{topic}: {text}"),
            mailboxes=run_mailboxes,
            durable=False,
        )
        self.run = start(Settings(PROGRAM, workers=2, chunk=4, push_every=2), root, self.environment)
        self.turns = self.number = 0
        self.run._staff()
        self.run.step()
        self.folder = root / "mail" / "w1"
        self.mailbox = DirectoryMailbox(root, "w1")
        self.honest = DirectoryMailbox(root, "w2")
        courier = StepCourier(self.honest, self.clock)
        engine = Unhurried(load(PROGRAM), self.clock)
        session = Session(SessionOptions("w2", source=PROGRAM), engine, self.honest, courier, lambda: False, self.clock)
        self.life = session.life()
        self.beside: Callable[[], None] = lambda: None  # called while the master rests

    def rest(self, seconds: float) -> None:
        """Let the honest worker train while the master rests."""
        self.turns += 1
        assert self.turns < TURNS, "the run does not end"
        self.clock.sleep(max(seconds, 0.1))
        self.beside()
        for action in self.life:
            if isinstance(action, Wait):
                return

    # --- the hostile worker

    def write(self, payload: bytes) -> int:
        """Send raw bytes as the next message."""
        self.number += 1
        self.mailbox.send(self.number, payload)
        return self.number

    def say(self, tensors: Tensors | None = None, **fields: Any) -> int:
        """Send a sync with changed fields."""
        return self.write(bundle.encode({**to_json(Sync("w1")), **fields}, tensors or {}))

    def lease(self) -> Lease:
        """Request a lease honestly, and return it."""
        number = self.say(wants=True)
        self.run.step()
        lease = self.reply(number).lease
        assert lease is not None
        return lease

    def reply(self, number: int) -> Reply:
        return reply_from(bundle.decode(self.mailbox.receive(number) or b"")[0])

    def push(self, lease: Lease, tensors: Tensors, **fields: Any) -> int:
        push = Push(lease.id, lease.term, 1, 0, lease.start + 1, 1)._asdict()
        return self.say(tensors, holds=[lease.id], push={**push, **fields})

    def fail(self, lease: Lease, **fields: Any) -> int:
        failure = {**Failure(lease.id, lease.term, "no", "", -1, -1).__dict__, **fields}
        return self.say(holds=[lease.id], failure=failure)

    # --- invariants

    @property
    def events(self) -> str:
        return (self.root / "events.log").read_text()

    def finish(self) -> None:
        """Run to the end, and check that every count is exact."""
        self.run.finish()
        module = load(PROGRAM).graph.__globals__
        trained = np.full(module["COUNT"], module["EPOCHS"], np.int64)
        values = {name: t for name, t in self.run.parts.store.replica.state.tensors()}
        for name, expected in module["counted"](trained).items():
            kind, field = name.split("/")
            local = self.run.parts.spec.graph.tables[kind].columns[field]
            np.testing.assert_array_equal(values.get(name, local), expected, name)
        for line in [*self.reports, self.events]:
            assert all(c.isprintable() or c in "\n\t" for c in line), line
        assert len(self.events) < 50_000 + 1_000 * self.number
        assert (self.root / "ledger.db").stat().st_size < 1_000_000

    def resume(self) -> None:
        self.run.__exit__(None, None, None)
        self.run = resume(self.root, self.environment)

    def close(self) -> None:
        self.mailbox.close()
        self.honest.close()
        self.run.__exit__(None, None, None)
        remove(self.root)  # pytest cannot remove such deep folders


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "run")
    yield scene
    scene.close()


# --- texts


TEXTS = {
    "a lone surrogate": os.fsdecode(b"caf\xe9.txt"),
    "terminal escapes": "\x1b]0;owned\x07\x1b[2J\x1b[31mgone\r\x9b6n\u202egnp.exe",
    "lines that look like ours": "no\n2026-01-01 00:00:00 finished  every vertex of 13 is credited once",
    "nothing but NUL": "\0" * 50,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("field", ["message", "traceback"])
def test_what_f_says_is_printable_everywhere(scene: Scene, field: str, text: str) -> None:
    scene.fail(scene.lease(), **{field: text})
    scene.run.step()
    row = scene.run.ledger._db.execute("SELECT message, traceback FROM failures").fetchone()
    assert all(c.isprintable() or c in "\n\t" for c in row[0] + row[1])
    scene.finish()
    assert [line.split()[2] for line in scene.events.splitlines()].count("finished") == 1
    assert scene.events.count("\n") == len(scene.reports)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("field", ["kind", "process"])
def test_what_a_worker_says_of_itself_is_printable(scene: Scene, field: str, text: str) -> None:
    scene.say(**{field: text})
    scene.run.step()
    scene.finish()


def test_each_note_of_a_worker_is_shown_once_and_no_more_than_a_few(scene: Scene) -> None:
    for note in ("no room for moments", "no room for moments", "the cache is full\nno room for moments", " \n"):
        scene.say(note=note)
        scene.run.step()
    lines = [line for line in scene.reports if "w1: " in line]
    assert lines == ["warning: w1: no room for moments", "warning: w1: the cache is full"]
    for number in range(3 * MAX_NOTES):
        scene.say(note=f"note {number}\nanother {number}")
        scene.run.step()
    lines = [line for line in scene.reports if line.startswith("warning: w1: ")]
    assert len(lines) == MAX_NOTES
    assert lines[-1].endswith("further notes are not shown")
    scene.finish()


def test_thirty_megabytes_reach_neither_ledger_nor_terminal(scene: Scene) -> None:
    scene.fail(scene.lease(), message="x" * 30_000_000)
    scene.run.step()
    scene.finish()


# --- numbers


NUMBERS = [-1, -2, 2**53, 2**63, 2**70, 10**400, 1e308, -1e308, 1e-320, 5e-324, float("nan"), float("inf"), -0.0, True]
OTHERS = [None, "3", "", [], {}, [1], {"a": 1}, [[[]]], "\ud800", 1.5]
FIELDS = [name for name, value in to_json(Sync("w1")).items() if name not in ("worker",)]


@pytest.mark.parametrize("field", FIELDS)
def test_any_value_of_any_field_ends_no_run(scene: Scene, field: str) -> None:
    for value in [*NUMBERS, *OTHERS]:
        scene.number += 1
        message = {**to_json(Sync("w1")), "trained": 1, "train_s": 1.0, "begun": 1, "begun_vertices": 1, field: value}
        scene.run.parts.exchange.handle([Message("w1", scene.number, bundle.encode(message, {}))])
    scene.finish()


@pytest.mark.parametrize("part", ["push", "failure"])
def test_any_value_of_any_field_of_a_part_ends_no_run(scene: Scene, part: str) -> None:
    lease = scene.lease()
    push = Push(lease.id, lease.term, 1, 0, lease.start + 1, 1)._asdict()
    honest = {"push": push, "failure": Failure(lease.id, lease.term, "no", "", -1, -1).__dict__}[part]
    for field in honest:
        for value in [*NUMBERS, *OTHERS]:
            scene.number += 1
            message = {**to_json(Sync("w1")), "holds": [lease.id], part: {**honest, field: value}}
            scene.run.parts.exchange.handle([Message("w1", scene.number, bundle.encode(message, {}))])
        assert scene.run.parts.exchange.failures.stop_because is None
    scene.finish()


def test_a_time_that_no_clock_can_measure_is_none(scene: Scene) -> None:
    scene.say(trained=1, train_s=1e-320)
    scene.run.step()
    assert [row["train_s"] for row in scene.run.ledger.workers() if row["worker"] == "w1"] == [0.0]
    scene.finish()


# --- files in a mailbox


def name_of(number: int) -> str:
    return f"sync-{number:08d}-{'0' * 64}.safetensors"


def a_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 * 2**40)


def a_deep_folder(path: Path) -> None:
    path.mkdir()
    before, handle = Path.cwd(), os.open(path, os.O_RDONLY)
    try:
        os.fchdir(handle)
        for _ in range(1500):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.close(handle)
        os.chdir(before)


def a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # addresses are short
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("s")
        Path("s").rename(path.name)
    finally:
        os.chdir(here)


THINGS: dict[str, Callable[[Path], Any]] = {
    "a sparse file of 2 TB": a_sparse_file,
    "a FIFO": os.mkfifo,
    "a folder": lambda path: (path / "in it").mkdir(parents=True),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a deep folder": a_deep_folder,
    "a socket": a_socket,
    "an empty file": lambda path: path.write_bytes(b""),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_what_lies_in_place_of_a_message_ends_no_run(scene: Scene, thing: Callable[[Path], Any]) -> None:
    scene.lease()
    thing(scene.folder / name_of(7))
    scene.run.step()
    scene.resume()
    scene.finish()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_what_lies_in_place_of_a_heartbeat_ends_no_run(scene: Scene, thing: Callable[[Path], Any]) -> None:
    scene.lease()
    (scene.folder / "progress").unlink()
    thing(scene.folder / "progress")
    for _ in range(40):  # it is silent, and checked
        scene.rest(4.0)
        scene.run.step()
    with scene.run.ledger.transaction():
        scene.run.parts.exchange.failures.fail_lease(scene.record, "status 1", "", scene.clock())
    scene.finish()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_what_lies_in_place_of_a_mailbox_ends_no_run(scene: Scene, thing: Callable[[Path], Any]) -> None:
    scene.folder.rename(scene.root / "away")
    thing(scene.folder)
    scene.run.step()
    scene.resume()
    scene.finish()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_a_wrong_file_in_place_of_an_outbox_ends_no_run(scene: Scene, thing: Callable[[Path], Any]) -> None:
    (scene.root / "recovered").mkdir()
    thing(scene.root / "recovered" / "w1")
    scene.backend.say("w1", State.LOST, exit_code=1)
    scene.run.step()
    scene.finish()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_what_lies_in_place_of_a_log_ends_no_run(scene: Scene, thing: Callable[[Path], Any]) -> None:
    scene.lease()
    thing(scene.root / "logs" / "w1.log")
    scene.mailbox.beat(1, 1)
    scene.backend.say("w1", State.LOST, exit_code=1, detail="\x1b[2Jstatus 1")
    scene.run.step()
    scene.finish()


def test_the_end_of_a_log_is_printable(scene: Scene) -> None:
    lease = scene.lease()
    (scene.root / "logs" / "w1.log").write_bytes(b"\x1b]0;owned\x07" + b"x" * 1_000_000 + b"the end\xe9\x1b[31m")
    scene.mailbox.beat(lease.id, 1)
    scene.backend.say("w1", State.LOST, exit_code=1)
    scene.run.step()
    (words,) = scene.run.ledger._db.execute("SELECT traceback FROM failures").fetchone()
    assert words.endswith("the end\ufffd\\x1b[31m") and len(words) <= 2000
    scene.finish()


@pytest.mark.parametrize("number", [0, -1, 10**400, True, "1", 1.5, None])
def test_an_outbox_with_another_number_is_none(scene: Scene, number: object) -> None:
    lease = scene.lease()
    push = Push(lease.id, lease.term, 1, 0, lease.start + 1, 1)
    (scene.root / "recovered").mkdir()
    path = scene.root / "recovered" / "w1"
    path.write_bytes(bundle.encode({"number": number, "sync": to_json(Sync("w1", push=push))}, {}))
    assert outbox.read(path) is None
    scene.backend.say("w1", State.LOST, exit_code=1)
    scene.run.step()
    scene.finish()


def test_a_flooded_mailbox_is_cleared_of_all_but_the_newest(scene: Scene) -> None:
    for i in range(MAX_MAILBOX_FILES + 100):
        (scene.folder / f"junk-{i}").write_bytes(b"")
        (scene.folder / name_of(i)).write_bytes(b"")
    (scene.folder / "junk folder").mkdir()
    number = scene.number = 10 * MAX_MAILBOX_FILES
    scene.mailbox.send(number, bundle.encode(to_json(Sync("w1")), {}))
    scene.run.step()
    assert scene.reply(number).version == 0  # it was answered,
    assert {path.name for path in scene.folder.iterdir()} <= {"progress"}
    assert sum("its mailbox" in line for line in scene.reports) == 1
    scene.finish()


# --- content of a message


def header(text: str | bytes, data: bytes = b"") -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return len(raw).to_bytes(8, "little") + raw + data


def described_tensors(message: str = "{}", **tensors: Any) -> bytes:
    return header(json.dumps({"__metadata__": {"gridml": message}, **tensors}), bytes(64))


def tensor(shape: list[int], size: int = 64, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


SYNC = json.dumps(to_json(Sync("w1")))
PAYLOADS = {
    "nothing": b"",
    "a length alone": (2**63).to_bytes(8, "little"),
    "a header of 2**64 - 1 bytes": b"\xff" * 8 + b"{}",
    "a header of 100 MB": header(b" " * 100_000_000),
    "a deep header": header("[" * 500_000),
    "a deep message": described_tensors("[" * 500_000),
    "a deep field": described_tensors(SYNC.replace("[]", "[" * 400 + "]" * 400)),
    "a name twice": described_tensors(SYNC[:-1] + ', "have": 3}'),
    "NaN": described_tensors(SYNC.replace("0.0", "NaN")),
    "Infinity": described_tensors(SYNC.replace("0.0", "-Infinity")),
    "a number of 5,000 digits": described_tensors(SYNC.replace(": -1", ": " + "9" * 5000)),
    "a list": described_tensors("[1, 2]"),
    "text that is none": header(b'{"__metadata__": {"gridml": "\xff"}}'),
    "a size that overflows": described_tensors(
        SYNC, x={"dtype": "U8", "shape": [0, 2**64 - 1], "data_offsets": [0, 0]}
    ),
    "overlapping tensors": described_tensors(
        SYNC, **{n: {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]} for n in "ab"}
    ),
    "a negative size": described_tensors(SYNC, x={"dtype": "U8", "shape": [-64, -1], "data_offsets": [0, 64]}),
    "more than there is": described_tensors(SYNC, x={"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}),
    "a hundred dimensions": described_tensors(
        SYNC, x={"dtype": "U8", "shape": [1] * 99 + [64], "data_offsets": [0, 64]}
    ),
    **{
        f"dtype {dtype}": described_tensors(SYNC, x={"dtype": dtype, "shape": [64 // size], "data_offsets": [0, 64]})
        for dtype, size in {"F8_E4M3": 1, "F8_E5M2": 1, "BF16": 2, "C64": 8, "F4": 1, "<f8": 8}.items()
    },
    "a hundred thousand tensors": header(
        json.dumps({str(i): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)})
    ),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_an_invalid_message_is_kept_as_a_dead_letter_and_counted(scene: Scene, payload: bytes) -> None:
    lease = scene.lease()
    scene.write(payload)
    scene.run.step()
    assert scene.run.ledger.leases.get(lease.id) is None  # its range is free for others
    read = payload if len(payload) <= scene.run.parts.exchange.inbox.limits.payload else b""
    assert (scene.root / "set-aside" / "00.message").read_bytes() == read
    assert "message 2 of w1" in (scene.root / "set-aside" / "00.txt").read_text()
    scene.resume()  # and does not read it again
    assert scene.run.parts.mailboxes.collect() == []
    scene.finish()


NAMES = ["Level/٣/x/y", "Level/" + "9" * 5000 + "/x/y", "\x1b[2J/x", "x" * 5000 + "/y", "@rows/Nothing", "@ids/Word",
         "Word/count", "", "/", "//", "a/b/c/d", "Word/-1/count/x", "@int8/Level/0/x/y", "@int4/Word/count",
         "@int8/" + "9" * 5000 + "/x/y/z", "@int3/Level/0/x/y", "@/Level/0/x/y", "@",
         "@changed/counts/Word/count", "@changed/" + "x" * 500 + "/Word/count", "@changed/", "@older/Word"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_tensor_is_refused_and_printable(scene: Scene, name: str) -> None:
    number = scene.push(scene.lease(), {name: np.zeros(1, np.int64)})
    scene.run.step()
    reply = scene.reply(number)
    assert reply.verdict is Verdict.REFUSED
    assert reply.reason.isprintable() and len(reply.reason) < 2000
    scene.finish()


@pytest.mark.parametrize("prefix", ["@rows/", "@ids/"])
def test_rows_that_are_named_twice_are_refused(scene: Scene, prefix: str) -> None:
    twice = {f"{prefix}Word": np.array([1, 1], np.int64), "Word/count": np.array([1, 2], np.int64)}
    number = scene.push(scene.lease(), twice)
    before = scene.run.ledger.credited
    scene.run.step()
    reply = scene.reply(number)
    assert reply.verdict is Verdict.REFUSED and "name a row twice" in reply.reason
    assert scene.run.ledger.credited == before
    scene.finish()


@pytest.mark.parametrize("error", [ZeroDivisionError("\x1b[2J" + "x" * 10_000), UserCodeError("g fails: \udce9")])
def test_a_push_that_cannot_be_handled_is_refused_and_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    merger, theirs = scene.run.parts.merger, scene.lease()
    merge = type(merger).merge

    def failing(self: Any, part: Any, base: Any, how: Any, *who: Any) -> Any:
        if who[0] == "w1":
            raise error
        return merge(self, part, base, how, *who)

    monkeypatch.setattr(type(merger), "merge", failing)
    scene.rest(0)
    scene.run.step()
    scene.rest(0)
    fields = {"@ids/Document": scene.run.parts.leases.epochs.vertices(theirs.epoch, theirs.start, theirs.start + 1)}
    fields |= {"Document/visits": np.ones(1, np.int64), "Document/mood": np.zeros(1, np.float32)}
    number = scene.push(theirs, fields)
    before = scene.run.ledger.credited
    assert scene.run.step()
    assert scene.run.ledger.credited == before + 2  # the honest worker's push came in the same turn
    reply = scene.reply(number)
    assert reply.verdict is Verdict.REFUSED and str(error)[:4] in reply.reason.replace("\\x1b", "\x1b")
    assert (scene.root / "set-aside" / "00.message").exists() == isinstance(error, ZeroDivisionError)
    scene.finish()


def test_nonsense_that_came_while_no_master_was_there_ends_none(scene: Scene) -> None:
    lease = scene.lease()
    scene.write(b"nonsense")
    os.mkfifo(scene.folder / name_of(9))
    for _ in range(2):
        scene.resume()
    assert scene.run.ledger.leases.get(lease.id) is None
    assert not [path for path in scene.folder.iterdir() if path.name.startswith("sync")]
    scene.finish()


def test_a_worker_that_keeps_sending_invalid_messages_is_given_up(scene: Scene) -> None:
    for i in range(MAX_MALFORMED):
        assert scene.folder.exists(), f"after {i} messages"
        scene.write(b"nonsense")
        scene.run.step()
    assert not scene.folder.exists()
    assert scene.backend.cancelled == ["w1"]
    assert any(line.startswith("given up: w1") for line in scene.reports)
    scene.finish()


def flood(scene: Scene, count: int) -> None:
    """Let w1 link one file under the names of many messages, all with wrong digests."""
    (scene.root / "one").write_bytes(bytes(1000))
    for number in range(1, count + 1):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(scene.root / "one", scene.folder / name_of(number))


def test_a_worker_that_floods_its_mailbox_with_damaged_messages_is_given_up(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: all were read at every poll, and no worker was blamed as long as this went on."""
    scene.beside = lambda: flood(scene, 60)
    scene.finish()
    assert scene.backend.cancelled == ["w1"] and not scene.folder.exists()
    assert f"given up: w1: {MAX_DAMAGED} of its {MAX_DAMAGED} messages came damaged" in "\n".join(scene.reports)
    assert scene.events.count("sent a damaged message") == 2  # the first, and the one too many
    print_status(scene.root, as_json=False)
    assert f"{MAX_DAMAGED} messages came damaged or malformed" in capsys.readouterr().out
    unreadable = {each.worker: each.unreadable for each in report(scene.root).altered_pushes}
    assert unreadable["w1"] == MAX_DAMAGED and not unreadable.get("w2")


def test_a_damaged_message_costs_no_lease_and_is_heard_when_it_comes_again(scene: Scene) -> None:
    """A torn upload is its sender's misfortune, once in a while."""
    lease = scene.lease()
    number = scene.say(holds=[lease.id])
    (torn,) = scene.folder.glob(f"sync-{number:08d}-*")
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-1])
    scene.run.step()
    assert scene.run.ledger.leases.get(lease.id) is not None and scene.record.contact.damaged == 1
    scene.mailbox.send(number, whole)
    scene.run.step()
    assert scene.reply(number).verdict is None and scene.run.ledger.leases.get(lease.id) is not None
    scene.finish()


def test_a_tree_for_a_message_costs_its_sender(scene: Scene) -> None:
    def plant() -> None:
        with contextlib.suppress(FileExistsError):
            for number in range(50 * scene.folder.exists()):
                (scene.folder / name_of(1) / f"{number}" / "deeper").mkdir(parents=True)

    scene.beside = plant
    scene.finish()
    assert scene.backend.cancelled == ["w1"] and not scene.folder.exists()


def test_a_sender_that_is_no_worker_gets_no_lease(scene: Scene) -> None:
    (scene.root / "mail" / "ghost").mkdir()
    ghost = DirectoryMailbox(scene.root, "ghost")
    ghost.send(1, bundle.encode(to_json(Sync("ghost", wants=True)), {}))
    scene.run.step()
    ghost.close()
    assert not scene.run.ledger.leases.of("ghost")
    scene.finish()


CLAIMS: dict[str, Callable[[int], dict[str, Any]]] = {
    "nothing": lambda turn: {},
    "to train a billion vertices a second": lambda turn: {"trained": turn * 10**6, "train_s": turn * 1e-3},
    "to take years to begin": lambda turn: {
        "trained": turn, "train_s": 1.0 * turn, "begun": turn, "begun_vertices": 1, "begin_s": 1e9, "end_s": 1e9
    },
    "that its pushes travel for years": lambda turn: {"travel_s": 1e9, "push_s": 1e9, "kind": "of its own"},
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_worker_that_only_claims_to_work_does_not_block_others(
    scene: Scene, claim: Callable[[int], dict[str, Any]]
) -> None:
    held = [scene.lease().id]

    def talk() -> None:
        if scene.folder.exists():
            answer = scene.mailbox.receive(scene.number)
            lease = None if answer is None else reply_from(bundle.decode(answer)[0]).lease
            held.extend([] if lease is None else [lease.id])
            scene.say(holds=held, wants=True, **claim(scene.turns))

    scene.beside = talk
    scene.finish()


# --- arbitrary input


class Held:
    """One run for all cases of a property."""

    scene: Scene


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    held = Held()
    held.scene = Scene(tmp_path_factory.mktemp("held") / "run")
    yield held
    try:
        held.scene.finish()
    finally:
        held.scene.close()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)
relaxed = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def hear(scene: Scene, payload: bytes) -> None:
    """Check that nothing is credited, and nothing raises."""
    scene.number += 1
    exchange, ledger = scene.run.parts.exchange, scene.run.ledger
    exchange.handle([Message("w1", scene.number, payload)])
    scene.run.parts.workers.take_lost()
    assert exchange.failures.stop_because is None
    assert ledger.credited == 0 and scene.run.parts.store.replica.version == 0


@relaxed
@given(payload=st.binary(max_size=300))
def test_any_bytes_raise_nothing(held: Held, payload: bytes) -> None:
    hear(held.scene, payload)


@relaxed
@given(header=st.dictionaries(st.text(st.characters(codec="utf-8")), anything, max_size=4), message=anything)
def test_any_header_raises_nothing(held: Held, header: dict[str, Any], message: Any) -> None:
    text = json.dumps({**header, "__metadata__": {"gridml": json.dumps(message)}}).encode()
    hear(held.scene, len(text).to_bytes(8, "little") + text)


@relaxed
@given(fields=st.dictionaries(st.sampled_from([*to_json(Sync("w1")), "colour"]), anything, min_size=1, max_size=4))
def test_any_fields_raise_nothing(held: Held, fields: dict[str, Any]) -> None:
    hear(held.scene, bundle.encode({**to_json(Sync("w1")), **fields}, {}))


@relaxed
@given(
    part=st.sampled_from(["push", "failure"]),
    fields=st.dictionaries(st.sampled_from([*Push._fields, "message", "traceback", "first", "last"]), anything),
)
def test_any_part_raises_nothing(held: Held, part: str, fields: dict[str, Any]) -> None:
    hear(held.scene, bundle.encode({**to_json(Sync("w1")), part: fields}, {}))


@relaxed
@given(data=st.data())
def test_any_tensors_raise_nothing(held: Held, data: st.DataObject) -> None:
    names = st.sampled_from(
        ["@rows/Word", "@ids/Document", "Word/count", "Document/mood", "Level/value", "@rows/Level"]
    )
    tensor = st.builds(
        lambda dtype, shape: np.ones(shape, dtype),
        st.sampled_from(["int64", "float32", "bool", "uint8", "float64"]),
        st.lists(st.integers(0, 3), max_size=3),
    )
    tensors = data.draw(st.dictionaries(names | st.text(st.characters(codec="utf-8"), min_size=1), tensor, max_size=5))
    tensors.pop("__metadata__", None)
    scene = held.scene
    with scene.run.ledger.transaction():
        held_leases = scene.run.ledger.leases.of("w1")
        scene.run.ledger.clear_failures()  # of the previous case
        scene.record.faults.avoided_until_s = 0.0
    if not held_leases:
        scene.number += 1
        message = bundle.encode(to_json(Sync("w1", wants=True)), {})
        scene.run.parts.exchange.handle([Message("w1", scene.number, message)])
    lease = next(iter(scene.run.ledger.leases.of("w1").values()))
    push = Push(lease.id, lease.term, 1, 0, lease.start + 1, 1)
    payload = safetensors.numpy.save(tensors, {"gridml": json.dumps(to_json(Sync("w1", holds=(lease.id,), push=push)))})
    scene.number += 1
    scene.run.parts.exchange.handle([Message("w1", scene.number, payload)])
    scene.run.parts.exchange.failures.stop_because = None  # here the same range always fails
    scene.run.parts.workers.take_lost()
    assert scene.run.ledger.credited == 0

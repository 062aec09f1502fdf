"""Our own files, damaged at random: each is read as it was written, counts as missing, or is refused by one clear
error.

A new reader joins `READERS` with one line. `make test` tries some hundred damages of each, `make verify` 100,000. What
needs a whole run on its disk, with the advice followed, is in `benchmarks/disks.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gridml
from chunk_model.goodput import Costs
from gridml.caching.chunk_cache import ChunkCache
from gridml.carriers.enrolment import new_key
from gridml.carriers.sftp import Credential
from gridml.datasets.map_style import MANIFEST, from_torch
from gridml.datasets.pinned import Pin, digest, load, store
from gridml.errors import DamagedError, GridmlError
from gridml.model.chunk import Borrowed, Chunk, cut
from gridml.model.graph import Graph
from gridml.model.ragged import block_digests
from gridml.protocol import bundle, outbox
from gridml.protocol.messages import Push, Sync, to_json
from gridml.protocol.push import BundleCodec, PushContent, ReplicaPart, RowValues, decode, encode
from master.backends.ec2.provisioning import master_endpoint
from master.backends.registry import read_settings
from master.backends.script import Steady
from master.caching.known_rows import CarriedFiles
from master.launch import start
from master.sftp.roster import Enrolment, FleetFacts, Instance, Roster
from master.sftp.server import MailServer
from master.sftp.spending import save_prices, saved_prices
from master.simulation.scenario import Scenario
from master.simulation.world import World
from master.store.diagnosis import explain, translate_errors
from master.store.ledger import Ledger
from master.store.local_fields import LocalFields, copy_base, create
from master.store.reader import holder
from master.store.rundir import MasterLock, RunDirectory, base_name, patch_name, superseded
from master.store.saved_replica import read_replica, read_saved_file
from master.store.settings import Settings
from master.store.spec import read_saved, save
from master.store.version_chain import Parent
from master.store.versions import Changes, ReplicaState, Versions
from master.sync.moments import MomentsFile
from master.telemetry.loggers.base import LOGGED, METRICS, Point
from master.telemetry.loggers.files import csv_plugin, json_plugin
from master.telemetry.run_loggers import _opened as open_logger
from master.views.report import report
from remote.stepped import Trainer
from tests.support.damaged import VALUES, WORDS, damaged
from tests.support.in_ledger import epochs_of

MAX_MESSAGE_CHARS = 4_000
SOME, MANY = 200, 100_000  # damages of each file in `make test`, in `make verify`
MAX_S = 5.0  # for one file of some kB
COSTS = Costs(exec_s=1.0, copy_s=0.01, start_s=1.0, push_s=0.1, boot_s=2.0)


@dataclass(frozen=True)
class Reader:
    """A reader of one of our files, called as its caller does it."""

    name: str
    #: writes a valid file in a new folder; returns it, and a function that reads it
    make: Callable[[Path], tuple[Path, Callable[[], object]]]
    #: a digest holds the file: what is read is what was written, or one of `missing`
    held: bool = True
    missing: tuple[object, ...] = ()
    is_slow: bool = False  #: `make test` tries a tenth of the damages
    damage: Callable[[bytes, Random], bytes] = damaged


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    title = gridml.string()
    factor = gridml.array("float32", (2,))
    visits = gridml.array("int64", mutable=True)
    words = gridml.edge(Word)


COUNT = 40


def graph() -> Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(7, np.int64))
    titles, factors = [f"title {at}" for at in range(COUNT)], np.ones((COUNT, 2), np.float32)
    words = np.arange(COUNT * 2).reshape(COUNT, 2) % 7
    g.add(Document, title=titles, factor=factors, visits=np.zeros(COUNT, np.int64), words=words)
    return g


GRAPH = graph()
IDS = np.array([1, 4, 9])
PUSHED = decode({"@ids/Document": IDS, "Document/visits": np.full(3, 7)})
STATE = ReplicaState({}, {"Word": {"count": np.arange(50)}}, {"Word": np.zeros(50, np.int64)})


def base(folder: Path) -> tuple[Path, Callable[[], object]]:
    values, path = np.arange(COUNT), folder / base_name("Document.visits", 3)
    create(path, values.dtype, values.shape)[:] = values

    def read() -> object:
        copy_base(path, target := np.zeros(COUNT, np.int64), block_digests(values))
        return target

    return path, read


def patch(folder: Path) -> tuple[Path, Callable[[], object]]:
    fields = LocalFields(graph(), folder, bsp=False, durable=False)
    folder.mkdir(exist_ok=True)
    sha256 = fields.write_patch(5, [PUSHED.fields, PUSHED.fields])
    return folder / patch_name(5), lambda: fields._read_patch((5, 0, sha256))


def version(folder: Path, *, rows: bool = False) -> tuple[Path, Callable[[], object]]:
    versions = Versions(folder, durable=False)
    sha256 = versions.write(3, STATE)
    if rows:
        sha256 = versions.write(4, STATE, changes=Changes(Parent(3, sha256), {"Word": IDS}))
    number = 4 if rows else 3

    def read() -> object:
        fresh = Versions(folder, durable=False)
        fresh.newest_file(), fresh.credited_in(number)
        fresh.mapped(number, sha256).rows("Word", IDS)
        return fresh.read(number, sha256)

    return versions.path(number), read


def placement(folder: Path) -> tuple[Path, Callable[[], object]]:
    path, labels = folder / "placement.safetensors", np.arange(COUNT, dtype=np.int32) % 3
    saved = save(path, labels, np.zeros(COUNT, np.int32), np.ones((3, 3), np.int64), durable=False)
    return path, lambda: read_saved(path, {"sha256": saved.sha256})


def final(folder: Path, *, held: bool = True) -> tuple[Path, Callable[[], object]]:
    path, payload = folder / "final.safetensors", bundle.encode({"version": 3}, dict(STATE.tensors()))
    path.write_bytes(payload)
    return path, lambda: read_saved_file(path, bundle.digest(payload) if held else None)


def moments(folder: Path) -> tuple[Path, Callable[[], object]]:
    file = MomentsFile(folder)
    file.write({"exp_avg_sq/Network/0/model/weight": np.arange(40, dtype=np.uint16)})
    return next(folder.iterdir()), file.read


def carried(folder: Path) -> tuple[Path, Callable[[], object]]:
    files = CarriedFiles(folder)
    files.write("0" * 64, {"Document": IDS}, {"Document": ("factor",)})
    return next(folder.iterdir()), lambda: [*files.read()]


def chunk_cache(folder: Path) -> tuple[Path, Callable[[], object]]:
    lender = cut(GRAPH, "Document", np.arange(20), None, None, bsp=False)
    payload = lender.encode()
    sha256 = bundle.digest(payload)

    def held(type_name: str, ids: Any) -> Borrowed:
        return Borrowed((sha256,), np.zeros(len(ids), np.uint8), ids.astype(np.int32))

    borrower = cut(GRAPH, "Document", np.arange(5), None, None, bsp=False, held=held)
    ChunkCache(folder, 1 << 20).put(sha256, payload, lender)

    def read() -> object:
        cache = ChunkCache(folder, 1 << 20)
        cache.names()
        try:
            return cache.with_borrowed_rows(borrower)
        except ValueError:  # the worker's: it asks again, without the payload
            assert sha256[:16] not in "".join(cache.names())
            return None

    return folder / f"{sha256}.chunk", read


def chunk(folder: Path) -> tuple[Path, Callable[[], object]]:
    (folder / "chunk").write_bytes(cut(GRAPH, "Document", np.arange(20), None, None, bsp=False).encode())
    return folder / "chunk", lambda: value_errors(lambda: Chunk.decode((folder / "chunk").read_bytes()))


def value_errors(read: Callable[[], object]) -> object:
    """Call a reader whose contract is ValueError."""
    try:
        return read()
    except ValueError:
        return None


def unanswered(folder: Path) -> tuple[Path, Callable[[], object]]:
    rows = ReplicaPart(rows={"Word": RowValues(IDS, {"count": np.arange(3)})})
    push = Push(lease=3, term=1, sequence=1, base=2, upto=9, vertices=3)
    outbox.write(folder / "w2", outbox.UnansweredPush(7, Sync("w2.1", have=5, push=push), PushContent(rows)))
    return folder / "w2", lambda: outbox.read(folder / "w2", 1 << 20)


def roster(folder: Path, record: str) -> tuple[Path, Callable[[], object]]:
    kept = Roster(folder)
    kept.create(FleetFacts("run-1", "0" * 64, "123", "eu-central-1", "ami-1", "PEM"))
    kept.keep(Instance("i-1", "w1", "c5.large", "eu-central-1a", 1.5e9))
    kept.keep(Enrolment("i-1", "AAAA", "10.0.0.1", 1.5e9))
    read: dict[str, Callable[[], object]] = {
        "fleet.json": lambda: kept.facts,
        "i-1.instance.json": lambda: kept.instance("i-1"),
        "i-1.enrolled.json": lambda: kept.enrolment("i-1"),
    }
    return folder / "fleet" / record, read[record]


def prices(folder: Path) -> tuple[Path, Callable[[], object]]:
    (folder / "fleet").mkdir()
    save_prices(folder, {"c5.large/eu-central-1a": [(1.5e9, 0.04), (1.6e9, 0.05)]})
    return next((folder / "fleet").iterdir()), lambda: saved_prices(folder)


def credential(folder: Path) -> tuple[Path, Callable[[], object]]:
    (folder / "w1").write_text(Credential("host", 22, "AAAA", "w1", "KEY").to_json())
    return folder / "w1", lambda: value_errors(lambda: Credential.read(folder / "w1"))


def own_key(folder: Path) -> tuple[Path, Callable[[], object]]:
    (folder / "sftp").mkdir()
    path = folder / "sftp" / "server.json"
    path.write_text(json.dumps({"private_key": new_key(), "port": 2222}))
    server = object.__new__(MailServer)
    server._folder = path.parent

    def read() -> object:
        server._kept()
        return master_endpoint(folder, "localhost:22")

    return path, read


def lock(folder: Path) -> tuple[Path, Callable[[], object]]:
    """The master's lock, held by another process, as three readers see it."""
    path = folder / "master.lock"
    path.write_text("pid 12 on host\n")

    def read() -> object:
        with path.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            superseded(folder)
            with contextlib.suppress(GridmlError):
                MasterLock(RunDirectory(folder)).release()
            return holder(folder)

    return path, read


def pinned(folder: Path) -> tuple[Path, Callable[[], object]]:
    values = np.arange(COUNT, dtype="<i4")
    pin = Pin("it", (COUNT,), "<i4", digest(values))
    store(folder, pin, values)
    return folder / "it.npy", lambda: load(folder, [pin], lambda text: None)


class Text(gridml.Vertex):
    words = gridml.ragged("int32")
    label = gridml.array("int64")


def mapped(folder: Path, file: str) -> tuple[Path, Callable[[], object]]:
    """Fields of a data set; they are written again where they cannot be read."""
    items = [{"words": np.arange(at % 4, dtype=np.int32), "label": np.int64(at)} for at in range(20)]

    def read() -> object:
        fields = from_torch(items, Text, folder=folder, progress=lambda text: None)
        g = gridml.Graph()
        g.add(Text, **fields)
        return g.tables["Text"].ragged["words"].take(np.arange(20)), fields["label"]

    read()
    return next(folder.glob(f"*/{file}")), read


def message(folder: Path) -> tuple[Path, Callable[[], object]]:
    push, part = Push(lease=3, term=1, sequence=1, base=2, upto=9, vertices=3), PUSHED
    (folder / "sync").write_bytes(bundle.encode(to_json(Sync("w2.1", have=5, push=push)), encode(part)))
    return folder / "sync", lambda: value_errors(lambda: BundleCodec().read((folder / "sync").read_bytes()))


def metrics(folder: Path, kind: Callable[[], Any], name: str) -> tuple[Path, Callable[[], object]]:
    logger = kind().open(folder)
    points = [
        Point(LOGGED if at % 3 else METRICS, 64 * at, 1, 1.5e9, {"loss": 0.5, "ä": float("nan")}) for at in range(6)
    ]
    logger.write(points)
    return folder / name, lambda: open_logger(kind(), folder).last()


PROGRAM = """
import numpy as np
import gridml

class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()

class Document(gridml.Vertex):
    visits = gridml.array("int64", mutable=True)
    words = gridml.edge(Word)

@gridml.update(batch=1)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:
    documents.visits += 1
    np.add.at(words.count, documents.words.index, 1)
    gridml.log(loss=0.5)

def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(9, np.int64))
    g.add(Document, visits=np.zeros(12, np.int64), words=np.arange(24).reshape(12, 2) % 7)
    return g

def evaluate(words: gridml.Batch[Word]) -> dict[str, float]:
    return {"loss": 1 / float(words.count.sum())}

program = gridml.Program(graph, train, evaluate, epochs=2, keep="best:loss")
"""
RUN: dict[str, bytes] = {}  # the files of a finished run, by path; made once


def run(folder: Path) -> Path:
    """Write a finished run."""
    if not RUN:
        source = folder / "tally.py"
        source.write_text(PROGRAM)
        settings = Settings(source, backend="simulated", workers=2, chunk=6, push_every=3)
        world = World(settings, Scenario(Steady(2), COSTS), Trainer(source, COSTS))
        with start(settings, folder / "made", world.environment(lambda topic, text, facts: None)) as master:
            world.drive(master)
            master.finish()
        made = folder / "made"
        RUN.update({str(p.relative_to(made)): p.read_bytes() for p in made.rglob("*") if p.is_file()})
    for name, content in RUN.items():
        (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "run" / name).write_bytes(content)
    return folder / "run"


def of_a_run(file: str, read: Callable[[Path], object], folder: Path) -> tuple[Path, Callable[[], object]]:
    root = run(folder)
    return root / file, lambda: read(root)


def as_master(root: Path) -> object:
    """Read a ledger as the next master does, and as advice does."""
    for side in ("-wal", "-shm", "-journal"):
        (root / f"ledger.db{side}").unlink(missing_ok=True)
    # A text that is no UTF-8 is found when its row is read, in which masters translate errors, too.
    with translate_errors(root), closing(Ledger.of(RunDirectory(root), durable=False)) as ledger:
        (
            ledger.rollback_points(),
            epochs_of(ledger),
            ledger.workers(),
            ledger.evaluations(),
            ledger.base(),
            ledger.machines(),
        )
        return ledger.count_credits()


def as_reader(root: Path) -> object:
    """Read a ledger as views do."""
    return report(root) and None


CELLS = [value for value in (*VALUES, *WORDS) if isinstance(value, str | float) or value in (True, 0, -1, 2**53 + 1)]


def damaged_ledger(content: bytes, random: Random) -> bytes:
    """Return a ledger with other bytes anywhere, or with another value in a cell."""
    if random.random() < 0.4:
        return damaged(content, random)
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(content[:18] + b"\1\1" + content[20:])  # a database in memory has no write-ahead log
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: [row for (row,) in db.execute(f"SELECT rowid FROM {name}")] for name in names}
        table = random.choice([name for name in names if rows[name]])
        column = random.choice([column for _, column, *_ in db.execute(f"PRAGMA table_info({table})")])
        value, row = random.choice(CELLS), random.choice(rows[table])
        if isinstance(value, str) and (random.random() < 0.2 or not value.isprintable()):
            value = value.encode(errors="surrogatepass")
        with contextlib.suppress(sqlite3.IntegrityError), db:
            db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
        changed = db.serialize()
        return changed[:18] + b"\2\2" + changed[20:]


def settings(root: Path) -> object:
    sha256 = bundle.digest(RUN["settings.json"])
    return read_settings(root, sha256)


def edited_settings(root: Path) -> object:
    """Settings of which a person has edited both copies."""
    (root / "settings.backup.json").write_bytes((root / "settings.json").read_bytes())
    read_settings(root, None)
    return gridml.Run(root).settings()


READERS = (
    Reader("a field's base", base),
    Reader("a patch of fields", patch),
    Reader("a version", version),
    Reader("rows of a version", partial(version, rows=True)),
    Reader("a placement", placement),
    Reader("the trained replica", final),
    Reader("the trained replica without a digest", partial(final, held=False), held=False),
    Reader(
        "the best replica", partial(of_a_run, "best.safetensors", lambda root: read_replica(root, "best")), is_slow=True
    ),
    Reader("moments", moments, missing=({},)),
    Reader("rows that workers have", carried, missing=([],)),
    Reader("a worker's cache", chunk_cache, missing=(None,)),
    Reader("a chunk", chunk, held=False),
    Reader("an outbox", unanswered, held=False),
    Reader("settings", partial(of_a_run, "settings.json", settings)),
    Reader("settings that were edited", partial(of_a_run, "settings.json", edited_settings), held=False, is_slow=True),
    Reader(
        "a ledger, as its master reads it",
        partial(of_a_run, "ledger.db", as_master),
        held=False,
        is_slow=True,
        damage=damaged_ledger,
    ),
    Reader(
        "a ledger, as views read it",
        partial(of_a_run, "ledger.db", as_reader),
        held=False,
        is_slow=True,
        damage=damaged_ledger,
    ),
    Reader("the master's lock", lock, held=False),
    Reader("the fleet", partial(roster, record="fleet.json"), held=False),
    Reader("an instance", partial(roster, record="i-1.instance.json"), held=False),
    Reader("an enrolment", partial(roster, record="i-1.enrolled.json"), held=False),
    Reader("prices", prices, held=False),
    Reader("a job's credential", credential, held=False),
    Reader("the server's key", own_key, held=False),
    Reader("a pinned data set", pinned, missing=(None,)),
    Reader("fields of a data set", partial(mapped, file=MANIFEST), is_slow=True),
    Reader("offsets of a data set", partial(mapped, file="words.offsets"), held=False, is_slow=True),
    Reader("a message", message, held=False),
    Reader("metrics.csv", partial(metrics, kind=csv_plugin, name="metrics.csv"), held=False),
    Reader("metrics.jsonl", partial(metrics, kind=json_plugin, name="metrics.jsonl"), held=False),
)


def plain(value: object) -> object:
    """Return a value that compares by content."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("count", [SOME, pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(7_200)])])
@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_a_damaged_file_is_refused_in_words(reader: Reader, count: int, tmp_path: Path) -> None:
    folder = tmp_path / "valid"
    folder.mkdir()
    path, read = reader.make(folder)
    valid, began_s = path.read_bytes(), time.monotonic()
    written = plain(read())
    outcomes: Counter[str] = Counter()
    for number in range(SOME // 10 if reader.is_slow and count == SOME else count):
        content = reader.damage(valid, Random(f"{reader.name} {number}"))
        path.write_bytes(content)
        at_s = time.monotonic()
        try:
            found = plain(read())
        except DamagedError as error:  # its callers add the advice
            said, outcome = str(explain(error, folder)), "refused"
            assert str(folder) in str(error), error
        except GridmlError as error:
            said, outcome = str(error), "refused"
        except Exception as error:
            error.add_note(f"{reader.name}, damage {number}: {content[:300]!r}")
            raise
        else:
            right = found == written
            said, outcome = (
                "",
                "as written" if right else "missing" if found in [plain(m) for m in reader.missing] else "other",
            )
            assert not reader.held or outcome != "other", f"damage {number}: {content[:300]!r}: {found}"
        assert len(said) <= MAX_MESSAGE_CHARS and "Traceback" not in said, said
        assert time.monotonic() - at_s < MAX_S, f"damage {number}"
        outcomes[outcome] += 1
    print(f"{reader.name}: {sum(outcomes.values()):,} damages in {time.monotonic() - began_s:.0f} s: {dict(outcomes)}")

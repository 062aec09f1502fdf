"""Damage to the files of a run, by a disk, a mistake or a second master, is never silent: the run ends exact, or is
refused with advice that works."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.errors import LedgerError, SupersededError, UsageError
from gridml.protocol import bundle
from master.backends.script import Steady
from master.launch import resume, start
from master.run import MasterRun
from master.simulation.scenario import Scenario
from master.simulation.world import World
from master.store import replica
from master.store.credits import rollback_points
from master.store.reader import opened
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer

COSTS = Costs(exec_s=1.0, copy_s=0.01, start_s=1.0, push_s=0.1, boot_s=2.0)
COUNT, EPOCHS = 60, 3
WORDS = 400  # most are in no document, so that versions are files of the rows that changed
PROGRAM = f"""
import numpy as np
import gridml

COUNT, WORDS, EPOCHS = {COUNT}, {WORDS}, {EPOCHS}

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

def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Document, visits=np.zeros(COUNT, np.int64), words=np.arange(COUNT * 2).reshape(COUNT, 2) % 7)
    return g

def evaluate(words: gridml.Batch[Word]) -> dict[str, float]:
    return {{"counted": int(words.count.sum())}}

program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)
"""


class Stop(BaseException):
    """Raised to kill the master."""


@dataclass
class Killed:
    """A run whose workers outlive its masters; a test decides when a master is killed."""

    root: Path
    world: World
    said: list[str] = field(default_factory=list)

    @staticmethod
    def begin(folder: Path) -> Killed:
        source = folder / "tally_again.py"
        source.write_text(PROGRAM)
        settings = Settings(source, backend="simulated", workers=3, chunk=6, push_every=2)
        return Killed(folder / "run", World(settings, Scenario(Steady(3), COSTS), Trainer(source, COSTS)))

    def master(self, after_a_turn: Callable[[], None], *, with_changes: bool = False) -> MasterRun:
        """Return the next master. The test's action runs after each of its turns, while it rests."""
        began = (self.root / "ledger.db").exists()
        environment = self.world.environment(lambda topic, text, facts: self.said.append(f"{topic}: {text}"))
        rest = environment.rest

        def rest_and_do(seconds: float) -> None:
            rest(seconds)
            after_a_turn()

        environment = replace(environment, rest=rest_and_do)
        run = (
            resume(self.root, environment, with_changes=with_changes)
            if began
            else start(self.world.settings, self.root, environment)
        )
        self.world.drive(run)
        return run

    def drive(self, until: Callable[[], bool], *, with_changes: bool = False) -> bool:
        """Run the next master until a condition holds after one of its turns, or until the run's end."""

        files: dict[str, bytes] = {}

        def die() -> None:
            if until():
                self.world.crashed = True  # a back end that is crashed leaves its workers alone
                files.update(kept(self.root))
                raise Stop

        run = self.master(die, with_changes=with_changes)
        try:
            with run:
                run.finish()
        except Stop:
            restore(self.root, files)  # as SIGKILL leaves them: the journal is not yet in the ledger
            return True
        return False

    def until_credited(self, vertices: int) -> bool:
        return self.drive(lambda: self.credited() >= vertices)

    def finish(self, *, with_changes: bool = False) -> None:
        assert not self.drive(lambda: False, with_changes=with_changes)

    def credited(self) -> int:
        with closing(sqlite3.connect(self.root / "ledger.db")) as db:
            return int(db.execute("SELECT coalesce(sum(stop - start), 0) FROM credits").fetchone()[0])

    def assert_exact(self) -> None:
        _, trained = bundle.decode((self.root / "final.safetensors").read_bytes())
        words = np.bincount(np.arange(COUNT * 2) % 7, minlength=WORDS)
        np.testing.assert_array_equal(trained["Word/count"], EPOCHS * words)
        np.testing.assert_array_equal(np.load(self.root / "fields" / "Document.visits.npy"), np.full(COUNT, EPOCHS))
        assert self.credited() == COUNT * EPOCHS


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed.begin(tmp_path)


def follow(advice: str) -> None:
    """Follow the advice of a message, except for the resume itself."""
    commands = re.search(r"(rm -f .*?) && gridml resume", advice, re.DOTALL)
    assert commands is not None, advice
    subprocess.run(commands[1], shell=True, check=True)


def kept(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.glob("ledger.db*") if not path.name.endswith("-shm")}


def restore(root: Path, files: dict[str, bytes]) -> None:
    for path in root.glob("ledger.db*"):
        path.unlink()
    for name, content in files.items():
        (root / name).write_bytes(content)


def test_a_run_that_is_killed_now_and_then_is_exact(killed: Killed) -> None:
    for vertices in (10, 50, 70, 130, 179):
        killed.until_credited(vertices)
    killed.finish()
    killed.assert_exact()


@pytest.mark.parametrize(("then", "later"), [(20, 22), (20, 40), (50, 70), (70, 100), (20, 150)])
def test_a_ledger_that_was_rolled_back_is_exact_or_refused(killed: Killed, then: int, later: int) -> None:
    """By one commit or many, within an epoch or beyond its end, with workers that have trained what is undone."""
    killed.until_credited(then)
    before, credited = kept(killed.root), killed.credited()
    killed.until_credited(later)
    lost = killed.credited() - credited
    restore(killed.root, before)
    killed.said.clear()
    try:
        killed.finish()
    except LedgerError as error:
        assert (then - 1) // COUNT < (later - 1) // COUNT, "within an epoch nothing is missing"
        follow(str(error))
        killed.finish()
    else:
        again = [text for text in killed.said if f" {lost:,} vertices are trained again" in text]
        assert len(again) == (lost > 2), killed.said
    killed.assert_exact()


@pytest.mark.parametrize("credited", [70, 100, 150])
def test_restoring_the_copy_is_exact(killed: Killed, credited: int) -> None:
    killed.until_credited(credited)
    ledger = killed.root / "ledger.db"
    for side in ("-wal", "-shm"):
        (killed.root / f"ledger.db{side}").unlink(missing_ok=True)
    ledger.write_bytes(os.urandom(8192))
    with pytest.raises(LedgerError, match="cannot be read") as refused:
        killed.finish()
    follow(str(refused.value))
    killed.finish()
    killed.assert_exact()


def test_no_number_is_given_twice(killed: Killed) -> None:
    killed.until_credited(20)
    before = kept(killed.root)
    killed.until_credited(40)
    newest = max(path.name for path in (killed.root / "versions").iterdir())
    restore(killed.root, before)
    killed.until_credited(killed.credited() + 1)
    with closing(sqlite3.connect(killed.root / "ledger.db")) as db:
        (version,) = db.execute("SELECT max(version) FROM versions").fetchone()
    assert version > int(newest[1:9])
    killed.finish()
    killed.assert_exact()


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.97])
@pytest.mark.parametrize("file", ["ledger.db", "ledger.db-wal", "ledger.backup.db"])
def test_one_bit_of_the_ledger_is_wrong(killed: Killed, file: str, share: float) -> None:
    """In the journal it rolls the ledger back, as far as to the frame that it is in."""
    killed.until_credited(100)
    path = killed.root / file
    raw = bytearray(path.read_bytes())
    raw[int(share * len(raw))] ^= 1 << 6
    path.write_bytes(raw)
    try:
        killed.finish()
    except LedgerError as error:
        follow(str(error))
        killed.finish()
    killed.assert_exact()


@pytest.mark.parametrize("turns", [0, 1, 30])
def test_a_master_that_was_superseded_ends_at_once_and_writes_nothing(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Two masters at once, where locks do not work."""
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    others: list[MasterRun] = []
    left: dict[str, bytes] = {}

    def another() -> None:
        if not others and killed.credited() >= 20:
            others.append(killed.master(lambda: None))
            for _ in range(turns):
                others[0].step()
                killed.world.clock.advance(killed.world.clock.now_s + 1.0)
            left.update(content(killed.root))

    with killed.master(another) as run, pytest.raises(SupersededError, match=r"taken .* over .*gridml watch"):
        run.finish()
    assert content(killed.root) == left
    with others[0]:
        others[0].finish()
    killed.assert_exact()


def content(root: Path) -> dict[str, bytes]:
    """Return the files of a run, without the shared memory of an open ledger."""
    files = {path for path in root.rglob("*") if path.is_file() and not path.name.endswith("-shm")}
    return {str(path): path.read_bytes() for path in files}


ALTERED = {
    "DELETE FROM credits WHERE rowid = 3": "not at all",
    "UPDATE credits SET start = start - 1 WHERE rowid = 5": "twice|is credited, free or leased|are",
    "UPDATE credits SET stop = stop + 1 WHERE rowid = 5": "twice",
    "INSERT INTO credits SELECT * FROM credits WHERE rowid = 2": "twice",
    "UPDATE credits SET epoch = 7 WHERE rowid = 2": "epoch, start and stop of a range are",
    "UPDATE credits SET start = 'none' WHERE rowid = 2": "",
    "UPDATE spans SET stop = stop + 3 WHERE rowid = (SELECT max(rowid) FROM spans)": "twice",
    "UPDATE epochs SET credited = credited + 1 WHERE epoch = 0": "their rows sum to",
    "UPDATE epochs SET vertices = vertices + 1 WHERE epoch = 0": "",
    "UPDATE versions SET credited = credited + 1 WHERE version = 2": "version 2 claims",
}


@pytest.mark.parametrize("statement", ALTERED)
def test_rows_that_were_altered_are_refused(killed: Killed, statement: str) -> None:
    killed.until_credited(70)
    alter(killed.root, statement)
    said = f"(?s)ledger.db (is damaged|cannot be read): .*({ALTERED[statement]})"
    with pytest.raises(LedgerError, match=said) as refused:
        killed.finish()
    follow(str(refused.value))
    killed.finish()
    killed.assert_exact()


def alter(root: Path, statement: str) -> None:
    with closing(sqlite3.connect(root / "ledger.db")) as db, db:
        assert db.execute(statement).rowcount == 1


def test_the_final_count_is_made_from_the_rows(killed: Killed) -> None:
    altered: list[bool] = []

    def alter_once() -> None:
        if not altered and killed.credited() > 2 * COUNT:
            alter(killed.root, "DELETE FROM credits WHERE rowid = 3")
            altered.append(True)

    with killed.master(alter_once) as run, pytest.raises(LedgerError, match=r"not at all.*of no use either"):
        run.finish()
    assert not any("is credited once" in text for text in killed.said)
    facts = report(killed.root)
    assert facts.status == "failed" and "not at all" in str(facts.stopped_because)


OTHER_DATA = {
    ("2) % 7)", "2) % 6)"): "Document.words holds other values",
    ("visits=np.zeros(COUNT, np.int64)", "visits=np.ones(COUNT, np.int64)"): "Document.visits holds other values",
    ("visits = gridml.array", "kept = gridml.array('int64')\n    visits = gridml.array"): "Document.kept",
    ("COUNT, WORDS, EPOCHS = 60", "COUNT, WORDS, EPOCHS = 61"): "Document.count was 60, and is 61",
    ("epochs=EPOCHS)", "epochs=EPOCHS, shuffle='all')"): "shuffle was block, and is all",
    ("epochs=EPOCHS)", "epochs=1)"): "1 epochs are to be trained, and 2 have begun",
}


@pytest.mark.parametrize("change", OTHER_DATA)
def test_other_data_are_refused_and_nothing_is_lost(killed: Killed, change: tuple[str, str]) -> None:
    killed.until_credited(70)
    source = killed.world.settings.program
    text = source.read_text()
    before = {name: raw for name, raw in content(killed.root).items() if "ledger.db" not in name}
    assert change[0] in text
    changed = text.replace(*change)
    if "kept" in change[1]:
        changed = changed.replace("g.add(Document,", "g.add(Document, kept=np.zeros(COUNT, np.int64),")
    source.write_text(changed)
    with pytest.raises(LedgerError, match=OTHER_DATA[change]):
        killed.finish(with_changes=True)
    after = content(killed.root)
    assert {name: after[name] for name in after if "ledger.db" not in name} == before  # but for the journal's place
    source.write_text(text)
    killed.finish()
    killed.assert_exact()


def test_fewer_epochs_than_have_begun_are_refused_in_words_about_epochs(killed: Killed) -> None:
    killed.until_credited(70)
    change_settings(killed.root, epochs=1)
    with pytest.raises(UsageError, match=r"epochs is 1, and 2 of .* have begun; expected 2 or more\. .* --to e1"):
        killed.finish()
    change_settings(killed.root, epochs=None)
    killed.finish()
    killed.assert_exact()


def change_settings(root: Path, **values: object) -> None:
    """Change the settings of a run and their copy, as a person does."""
    text = json.dumps({**json.loads((root / "settings.json").read_text()), **values})
    for name in ("settings.json", "settings.backup.json"):
        (root / name).write_text(text)


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_older_version_that_is_damaged_costs_the_pushes_that_stand_on_it(
    killed: Killed, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push based on it cannot be merged, and its worker starts from the newest version; the run goes on. A version in
    memory needs no file."""
    if not in_memory:
        monkeypatch.setattr(replica, "MAX_BASES_BYTES", 0)
    damaged: set[Path] = set()

    def damage() -> None:
        for path in sorted((killed.root / "versions").glob("v*"))[:-1]:
            if path not in damaged:
                path.write_bytes(bytes(path.stat().st_size))
                damaged.add(path)

    with killed.master(damage) as run:
        run.finish()
    killed.assert_exact()
    warned = [said for said in killed.said if "is not kept any more" in said]
    assert bool(warned) != in_memory and len(warned) == len(set(warned))
    with opened(killed.root) as ledger:
        offered = [point.version for point in rollback_points(ledger)]
    assert not any(f"version {version} is not kept" in said for said in warned for version in offered)


def test_another_seed_is_refused(killed: Killed) -> None:
    killed.until_credited(70)
    change_settings(killed.root, seed=1)
    with pytest.raises(LedgerError, match="seed was 0, and is 1"):
        killed.finish()
    change_settings(killed.root, seed=0)
    killed.finish()
    killed.assert_exact()


def test_what_may_change_does(killed: Killed) -> None:
    killed.until_credited(70)
    change_settings(killed.root, chunk=9, push_every=3, workers=2, silent_s=99.0)
    killed.finish()
    killed.assert_exact()


def damaged(pattern: str) -> Callable[[Path], list[Path]]:
    def files(root: Path) -> list[Path]:
        return sorted(root.glob(pattern))

    return files


@pytest.mark.parametrize("harm", ["flip", "truncate", "zeros", "remove"])
@pytest.mark.parametrize("pattern", ["fields/*.npy", "fields/*@*.npy", "fields/patch-*", "versions/*"])
def test_a_damaged_file_is_of_no_account_or_refused(killed: Killed, pattern: str, harm: str) -> None:
    killed.until_credited(100)
    for path in damaged(pattern)(killed.root)[-1:]:
        content = bytearray(path.read_bytes())
        if harm == "remove":
            path.unlink()
            continue
        if harm == "flip":
            content[len(content) // 2] ^= 4
        elif harm == "zeros":
            content[:] = bytes(len(content))
        path.write_bytes(content[: len(content) // 2] if harm == "truncate" else content)
    try:
        killed.finish()
    except LedgerError as error:
        if "of no use either" in str(error):
            return
        follow(str(error))
        killed.finish()
    killed.assert_exact()

"""Damaged run directories: the error names the file and the remedy."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.cli import main
from master.store.schema import encode_checksummed

PROGRAM = Path(__file__).parents[2] / "programs" / "counts.py"
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, on real workers."""
    root = tmp_path_factory.mktemp("finished") / "r"
    with pytest.raises(SystemExit) as ended:
        main.main(["run", str(PROGRAM), "--epochs", "1", "--run-dir", str(root), "--json"])
    assert ended.value.code == 0
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "r"))


def bare(run: Path, name: str) -> Path:
    """A path in the run where nothing exists."""
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def written(name: str, content: bytes) -> Damage:
    return lambda run: (run / name).write_bytes(content)


def asked(content: bytes) -> Damage:
    """Settings and their copy, edited by hand."""
    return lambda run: [(run / name).write_bytes(content) for name in ("settings.json", "settings.backup.json")]


def folder(name: str) -> Damage:
    return lambda run: (bare(run, name) / "x").mkdir(parents=True)


def fifo(name: str) -> Damage:
    return lambda run: os.mkfifo(bare(run, name))


def loop(name: str) -> Damage:
    return lambda run: (path := bare(run, name)).symlink_to(path)


def file(name: str) -> Damage:
    return lambda run: bare(run, name).write_text("x")


def setting(**values: Any) -> Damage:
    def damage(run: Path) -> None:
        asked(json.dumps({**json.loads((run / "settings.json").read_text()), **values}).encode())(run)

    return damage


def without(name: str) -> Damage:
    def damage(run: Path) -> None:
        values = json.loads((run / "settings.json").read_text())
        asked(json.dumps({n: v for n, v in values.items() if n != name}).encode())(run)

    return damage


def sql(query: str) -> Damage:
    def damage(run: Path) -> None:
        with sqlite3.connect(run / "ledger.db") as db:
            db.execute(query)
        db.close()

    return damage


def fact(key: str, value: Any) -> Damage:
    return sql(f"UPDATE run SET (value, crc32) = {tuple(encode_checksummed(value))} WHERE key = '{key}'")


def metrics(value: Any) -> Damage:
    return sql(f"UPDATE epochs SET (metrics, metrics_crc32) = {tuple(encode_checksummed(value))}")


def field(change: Callable[[Path], Any]) -> Damage:
    return lambda run: [change(path) for path in (run / "fields").glob("*.npy")]


def version(change: Callable[[Path], Any]) -> Damage:
    return lambda run: [change(path) for path in (run / "versions").glob("v*")]


SETTINGS: list[tuple[Damage, str]] = [
    (asked(b""), "cannot be read: Expecting value"),
    (asked(b'{"backend":'), "cannot be read: Expecting value"),
    (asked(b"[]"), "cannot be read"),
    (asked(b"null"), "cannot be read"),
    (asked(b"{}"), "it has no 'backend'"),
    (asked(b"\x00\xff\xfe"), "cannot be read"),
    (asked(b"[" * 200_000), "cannot be read"),
    (asked(b"9" * 10_000), "cannot be read"),
    (asked(b" " * (2 << 20)), "expected at most"),
    (folder("settings.json"), "no regular file"),
    (fifo("settings.json"), "no regular file"),
    (loop("settings.json"), "cannot be opened"),
    (lambda run: bare(run, "settings.json"), "No such file"),
    (without("backend"), "it has no 'backend'"),
    (without("program"), "program"),
    (without("local"), "it has no 'local'"),
    (setting(backend=5), "there is no back end 5"),
    (setting(backend=[]), "cannot be read"),
    (setting(backend="\x1b[31m"), r"there is no back end '\x1b[31m'"),
    (setting(local=5), "got 5 for LocalOptions, expected an object"),
    (setting(local=None), "got None for LocalOptions, expected an object"),
    (setting(local={"colour": 1}), "colour"),
    (setting(local={"threads": 0}), "--threads is 0"),
    (setting(workers="2"), "workers is '2', expected int"),
    (setting(workers=True), "workers is True, expected int"),
    (setting(workers=-1), "--workers is -1; expected at least 1"),
    (setting(seed="x"), "seed is 'x', expected int"),
    (setting(seed=-1), "--seed is -1; expected a whole number"),
    (setting(silent_s=float("nan")), "nan"),
    (setting(silent_s="x"), "silent_s is 'x', expected float"),
    (setting(program=5), "program is 5, expected Path"),
    (setting(carrier=5), "carrier is 5, expected str"),
    (setting(carrier="x"), "--carrier is 'x'; expected directory"),
    (setting(colour="red"), "colour"),
]


@pytest.mark.parametrize("command", ["report", "resume"])
@pytest.mark.parametrize(("damage", "said"), SETTINGS)
def test_damaged_settings(mistake: Callable[..., str], run: Path, damage: Damage, said: str, command: str) -> None:
    damage(run)
    mistake([command, "r"], 7, "r/settings.json cannot be read", said, "put it back as it was, or begin again")


PROGRAMS: list[tuple[Damage, str]] = [
    (setting(program="/nothing.py"), "no such file: /nothing.py"),
    (setting(program="/tmp"), "/tmp is a folder"),
    (setting(program="a\0b"), "embedded null byte"),
]


@pytest.mark.parametrize(("damage", "said"), PROGRAMS)
def test_a_program_that_is_gone(mistake: Callable[..., str], run: Path, damage: Damage, said: str) -> None:
    damage(run)
    mistake(["resume", "r"], 2, said)


DAMAGED_SETTINGS = [
    lambda run: written("settings.json", (run / "settings.json").read_bytes().replace(b"counts.py", b"countr.py"))(run),
    lambda run: written("settings.json", (run / "settings.json").read_bytes().replace(b"120.0", b"121.0"))(run),
    written("settings.json", b""),
    folder("settings.json"),
    fifo("settings.json"),
    loop("settings.json"),
    lambda run: bare(run, "settings.json"),
]


@pytest.mark.parametrize("damage", DAMAGED_SETTINGS)
def test_settings_are_used_only_as_they_were_written(mistake: Callable[..., str], run: Path, damage: Damage) -> None:
    """A file with a flipped bit may be valid JSON, and even name an existing program."""
    before = (run / "settings.json").read_bytes()
    damage(run)
    mistake(["report", "r"], 7, "r/settings.json cannot be read")
    said = mistake(["resume", "r"], 7, "r/settings.json cannot be read", "Restore it: rm -rf")
    for line in said.partition("Restore it: ")[2].split(" && ")[:-1]:
        subprocess.run(["sh", "-c", line], check=True)
    assert (run / "settings.json").read_bytes() == before
    with pytest.raises(SystemExit) as ended:
        main.main(["resume", "r", "--json"])
    assert ended.value.code == 0


def test_a_damaged_copy_of_the_settings_is_of_no_account(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    (run / "settings.backup.json").write_bytes(b"damaged")
    with pytest.raises(SystemExit) as ended:
        main.main(["resume", "r", "--json"])
    assert ended.value.code == 0
    assert (run / "settings.backup.json").read_bytes() == (run / "settings.json").read_bytes()


def test_settings_and_copy_that_are_both_damaged_have_no_copy_to_restore(
    mistake: Callable[..., str], run: Path
) -> None:
    for name in ("settings.json", "settings.backup.json"):
        (run / name).write_text(name)
    assert "Restore it" not in mistake(["resume", "r"], 7, "put it back as it was, or begin again")


READ: list[tuple[Damage, str]] = [
    (sql("PRAGMA user_version=2"), "schema 2"),
    (sql("PRAGMA user_version=99"), "schema 99"),
    (sql("DROP TABLE epochs"), "no such table: epochs"),
    (sql("DROP TABLE run"), "no such table: run"),
    (fact("status", "bogus"), "'bogus' is not a valid RunStatus"),
    (sql("UPDATE run SET value='{' WHERE key='status'"), "is not what was written"),
    (fact("total", "x"), "what no master of gridml writes"),
    (fact("started_s", None), "what no master of gridml writes"),
    (sql("UPDATE epochs SET metrics='{'"), "is not what was written"),
    (metrics([1]), "the metrics of an epoch are list, expected an object"),
    (sql("UPDATE workers SET started_s='x'"), "what no master of gridml writes"),
    (sql("DELETE FROM epochs"), "what no master of gridml writes"),
    (written("ledger.db", b""), "ledger.db"),
    (written("ledger.db", b"hello" * 1000), "file is not a database"),
    (written("ledger.db", bytes(8192)), "ledger.db"),
    (folder("ledger.db"), "is not a run: it has no ledger.db"),
    (fifo("ledger.db"), "is not a run: it has no ledger.db"),
    (loop("ledger.db"), "is not a run: it has no ledger.db"),
]


@pytest.mark.parametrize(("damage", "said"), READ)
def test_a_damaged_ledger_is_no_traceback_to_who_reads(
    mistake: Callable[..., str], run: Path, damage: Damage, said: str
) -> None:
    damage(run)
    mistake(["report", "r"], 7, "ledger.db", said)


def test_a_schema_that_is_no_text_is_damage(mistake: Callable[..., str], run: Path) -> None:
    """A damaged table name in SQLite's error, which Python cannot decode."""
    ledger = run / "ledger.db"
    content = ledger.read_bytes()
    assert content.count(b"TABLE epochs (epoch") == 1
    ledger.write_bytes(content.replace(b"TABLE epochs (epoch", b"TABLE epochs \xa8epoch"))
    mistake(["report", "r"], 7, "ledger.db")
    mistake(["resume", "r"], 7, "ledger.db cannot be read", "Restore it: rm -f")


def test_a_format_to_come_is_damage(mistake: Callable[..., str], run: Path) -> None:
    """A file format after version 2, the current one: SQLite reads it, but does not write."""
    ledger = run / "ledger.db"
    content = bytearray(ledger.read_bytes())
    assert content[18:20] == b"\x02\x02"
    content[18] ^= 8
    ledger.write_bytes(content)
    mistake(["resume", "r"], 7, "ledger.db cannot be read", "Restore it: rm -f")


@pytest.mark.parametrize("damage", [(b"sha256 TEXT", b"sha257 TEXT"), (b"credited INTEGER", b"creditee INTEGER")])
def test_a_column_of_another_name_is_damage(
    mistake: Callable[..., str], run: Path, damage: tuple[bytes, bytes]
) -> None:
    ledger = run / "ledger.db"
    content = ledger.read_bytes()
    assert damage[0] in content
    ledger.write_bytes(content.replace(*damage))
    mistake(["resume", "r"], 7, "ledger.db cannot be read", "Restore it: rm -f")


IMPOSSIBLE = [
    "UPDATE leases SET opened_s = 'x'",
    "UPDATE versions SET at_s = 'noon'",
    "UPDATE events SET at_s = x'00ff'",
    "UPDATE workers SET submitted_s = 1e300",
    "UPDATE epochs SET opened_s = -1",
    "UPDATE epochs SET version = NULL",
    "INSERT INTO spans VALUES (0, 0, 1, 'x')",
    "INSERT INTO spans VALUES (0, 0, 1, '-1')",
    "DELETE FROM epochs",
    "DELETE FROM epochs; DELETE FROM credits; DELETE FROM leases; DELETE FROM spans",
]


@pytest.mark.parametrize("query", IMPOSSIBLE)
def test_what_no_master_writes_is_damage(mistake: Callable[..., str], run: Path, query: str) -> None:
    with closing(sqlite3.connect(run / "ledger.db")) as db:
        db.executescript(query)
    for command in ("status", "report", "rollback"):
        with pytest.raises(SystemExit) as ended:
            main.main([command, str(run), "--json"])
        assert ended.value.code in (0, 7)
    said = mistake(["resume", "r"], 7, "ledger.db", "Restore it: rm -f")
    for line in said.partition("Restore it: ")[2].split(" && ")[:-1]:
        subprocess.run(["sh", "-c", line], check=True)
    with pytest.raises(SystemExit) as ended:
        main.main(["resume", "r", "--json"])
    assert ended.value.code == 0


LOCKS = [folder("master.lock"), fifo("master.lock"), loop("master.lock")]


@pytest.mark.parametrize("command", ["status", "report", "watch", "resume"])
@pytest.mark.parametrize("damage", LOCKS)
def test_what_is_in_the_place_of_the_lock(mistake: Callable[..., str], run: Path, damage: Damage, command: str) -> None:
    damage(run)
    mistake([command, "r"], 8, "r/master.lock cannot be opened", "or remove it")


PLACES = [
    (folder("events.log"), "events.log"),
    (fifo("events.log"), "events.log"),
    (loop("events.log"), "events.log"),
    (folder("final.safetensors"), "final.safetensors"),
    (file("versions"), "versions"),
    (file("fields"), "fields"),
    (file("mail"), "mail"),
    (file("chunks"), "chunks"),
]


@pytest.mark.parametrize(("damage", "said"), PLACES)
def test_a_master_that_cannot_use_a_file(mistake: Callable[..., str], run: Path, damage: Damage, said: str) -> None:
    damage(run)
    mistake(["resume", "r"], 6, said)


def objects(path: Path) -> None:
    """A field that would run code when NumPy reads it."""
    np.save(path, np.array([os.getcwd], object), allow_pickle=True)


NO_ARRAY: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"hello\n"),
    "a pickle": lambda path: path.write_bytes(pickle.dumps([os.getcwd])),
    "objects": objects,
    "a header alone": lambda path: path.write_bytes(path.read_bytes()[:128]),
    "a header that is none": lambda path: path.write_bytes(path.read_bytes().replace(b"descr", b"dexcr")),
    "a shape beyond memory": lambda path: path.write_bytes(path.read_bytes().replace(b"(3000,)", b"(9**9,)")),
}


@pytest.mark.parametrize("damage", NO_ARRAY.values(), ids=NO_ARRAY)
def test_a_field_that_is_no_array(mistake: Callable[..., str], run: Path, damage: Callable[[Path], Any]) -> None:
    """Damaged inputs of the fields are rejected; derived files are rebuilt."""
    made, bases = run / "fields" / "Document.visits.npy", [*(run / "fields").glob("*@*.npy")]
    before = made.read_bytes()
    damage(made)
    with pytest.raises(SystemExit) as ended:
        main.main(["resume", str(run), "--json"])
    assert ended.value.code == 0 and made.read_bytes() == before
    assert bases
    for base in bases:
        damage(base)
    mistake(["resume", "r"], 7, "@", ".npy", "gridml run")


STATE: list[Damage] = [
    field(lambda path: np.save(path, np.zeros(3000))),
    field(lambda path: np.save(path, np.zeros(3, int))),
    version(lambda path: path.write_bytes(b"")),
    version(lambda path: path.write_bytes(path.read_bytes()[:-1])),
    version(lambda path: path.unlink()),
]


@pytest.mark.parametrize("damage", STATE)
def test_state_that_is_damaged_is_refused(mistake: Callable[..., str], run: Path, damage: Damage) -> None:
    """A trained replica is rebuilt if the ledger names its version; the run is then finished as before."""
    damage(run)
    with pytest.raises(SystemExit) as ended:
        main.main(["resume", "r", "--json"])
    assert ended.value.code in (0, 7)


NOT_A_RUN = ["", "nothing", "n" * 300, "a/" * 3000, "\udcff", "[bold]", "/dev/null", "/proc/self", "a\nb", "\x1b[31m"]


@pytest.mark.parametrize("command", ["status", "report", "watch", "resume", "cancel"])
@pytest.mark.parametrize("name", NOT_A_RUN)
def test_what_is_no_run(mistake: Callable[..., str], command: str, name: str) -> None:
    mistake([command, name], 7, "is not a run", "gridml run")


@pytest.mark.parametrize("command", [["report", "r"], ["status", "r"], ["watch", "r"]])
def test_what_the_ledger_holds_of_others_prints_as_text(
    run: Path, command: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of metrics and machines, and texts of workers, are shown without markup and terminal escapes."""
    monkeypatch.chdir(run.parent)
    evil = "[/]\x1b[31m[bold]x"
    with sqlite3.connect(run / "ledger.db") as db:
        values = encode_checksummed({evil: 1.5, "[bold]y[/bold]": float("nan")})
        db.execute("UPDATE epochs SET metrics = ?, metrics_crc32 = ?", values)
        db.execute("UPDATE workers SET machine = ?, detail = ?, state = 'evicted'", (evil, evil))
        db.execute("INSERT INTO failures VALUES (1e9, 'w1', ?, 1, 0, 0, 1, ?, '', 1, 2, '')", (evil, evil))
        db.execute("INSERT INTO events (at_s, topic, text) VALUES (1e9, 'warning', ?)", (evil,))
    db.close()
    with pytest.raises(SystemExit) as ended:
        main.main(command)
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    assert "[bold]y[/bold]" in out.replace("\n", "") and r"\x1b[31m[bold]x" in out and "\x1b" not in out


def test_metrics_that_are_no_numbers_are_json_all_the_same(
    run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    metrics({"loss": math.nan, "each": [1.0, math.inf]})(run)
    for command in (["report", "r", "--json"], ["status", "r", "--json"]):
        with pytest.raises(SystemExit):
            main.main(command)
        found = json.loads(capfd.readouterr().out, parse_constant=pytest.fail)
        shown = found["metrics"] if "metrics" in found else found["epochs"][0]["metrics"]
        assert shown == {"loss": None, "each": [1.0, None]}

"""One bad machine, one bad vertex, an f that ends its process or never returns, with real workers."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from master.views.report import report
from tests.support.effort import first

pytestmark = pytest.mark.real
LIMIT_S = 100
GRIDML = shutil.which("gridml", path=str(Path(sys.executable).parent)) or "gridml"
COUNTS = (Path(__file__).parent / "programs" / "counts.py").read_text()
LINE = "    documents.visits += 1\n"
# Workers in slot-1 are on the bad machine.
BAD_MACHINE = """    import os, sqlite3, sys, time
    if not hasattr(sys, "machine"):
        given = dict(option.split("=", 1) for option in sys.argv[1:])
        with sqlite3.connect(given["--directory"] + "/ledger.db", timeout=30) as ledger:
            query = "SELECT machine FROM workers WHERE worker = ?"
            sys.machine = ledger.execute(query, (given["--name"],)).fetchone()[0]
    if sys.machine == "slot-1":
        {bad}
    time.sleep(0.01)
"""


def gridml(*arguments: str | Path, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GRIDML, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def program(folder: Path, before: str, text: str = COUNTS) -> Path:
    """Return a program that counts, with additional lines in f before it."""
    path = folder / "program.py"
    assert text.count(LINE) == 1
    text = text.replace("mutable=True)\n", 'mutable=True)\n    score = gridml.array("float64", mutable=True)\n')
    text = text.replace("np.int64), words=", "np.int64), score=np.zeros(COUNT), words=")
    path.write_text(text.replace(LINE, before + LINE))
    return path


def exact(root: Path) -> None:
    epochs = report(root).epochs
    assert epochs and {(epoch.credited, epoch.duplicated, epoch.lost) for epoch in epochs} == {(3000, 0, 0)}


def rows(root: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(root / "ledger.db") as ledger:
        return ledger.execute(query).fetchall()


@pytest.mark.parametrize(
    "bad",
    first(
        3,  # it raises, it lies, it ends
        [
            "raise OSError('no such device')",
            "documents.score[:] = np.nan",
            "os.kill(os.getpid(), 11)",
            "sys.exit(0)",
            "os._exit(0)",
        ],
    ),
)
def test_one_bad_worker_of_four_does_not_end_a_run(tmp_path: Path, bad: str) -> None:
    root = tmp_path / "run"
    source = program(tmp_path, BAD_MACHINE.format(bad=bad))
    done = gridml("run", source, "--workers", "4", "--epochs", "1", "--chunk", "300", "--run-dir", root)
    assert done.returncode == 0, done.stdout + done.stderr
    exact(root)
    assert len(rows(root, "SELECT DISTINCT machine FROM failures")) == 1
    assert len(rows(root, "SELECT at_s FROM failures")) <= 12, "it is avoided, and may try again"
    assert len(rows(root, "SELECT worker FROM workers")) <= 12


@pytest.mark.parametrize(
    ("bad", "workers"),
    [
        *(("raise ValueError('nonsense')", workers) for workers in ("1", "4")),
        ("import sys; sys.exit(0)", "4"),
        ("raise KeyboardInterrupt", "1"),
    ],
)
def test_an_f_that_always_fails_stops_the_run_without_replacements(tmp_path: Path, bad: str, workers: str) -> None:
    done = gridml("run", program(tmp_path, f"    {bad}\n"), "--workers", workers, "--run-dir", tmp_path / "run")
    assert done.returncode == 4 and "failed 3 times" in done.stderr, done.stdout + done.stderr
    assert done.stderr.count("Traceback") == 1 and "in train" in done.stderr
    assert bad.partition("(")[0].split()[-1].removeprefix("sys.").replace("exit", "SystemExit") in done.stderr
    assert rows(tmp_path / "run", "SELECT count(*) FROM workers")[0][0] == int(workers), "no worker had to be replaced"


@pytest.mark.parametrize("status", ["0", "7"])
def test_an_f_that_ends_its_process_stops_the_run_after_a_few_lives(tmp_path: Path, status: str) -> None:
    done = gridml("run", program(tmp_path, f"    import os; os._exit({status})\n"), "--run-dir", tmp_path / "run")
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"exit status {status}" in done.stderr and "failed 3 times" in done.stderr
    assert rows(tmp_path / "run", "SELECT count(*) FROM workers")[0][0] <= 8  # type: ignore[operator]


def test_one_bad_vertex_stops_the_run_with_its_place(tmp_path: Path) -> None:
    bad = "    if 1234 in documents.ids:\n        raise ValueError('vertex 1234 is odd')\n"
    done = gridml("run", program(tmp_path, bad), "--workers", "4", "--run-dir", tmp_path / "run")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "failed 3 times, by 3 workers" in done.stderr and "vertex 1234 is odd" in done.stderr
    assert "Document" in done.stderr and "chunk [" in done.stderr and done.stderr.count("Traceback") == 1
    assert len(rows(tmp_path / "run", "SELECT DISTINCT worker FROM failures")) == 3


def test_a_batch_may_last_longer_than_the_silence(tmp_path: Path) -> None:
    root = tmp_path / "run"
    slow = "    import time\n    time.sleep(12 if 1234 in documents.ids else 0)\n"
    done = gridml("run", program(tmp_path, slow), "--silence", "5", "--epochs", "1", "--run-dir", root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not rows(root, "SELECT text FROM events WHERE topic IN ('silent', 'stuck')")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_f_that_holds_pythons_lock_for_longer_than_the_silence_is_borne_at_last(tmp_path: Path) -> None:
    root = tmp_path / "run"
    slow = "    if 1234 in documents.ids:\n        import ctypes\n        ctypes.PyDLL(None).sleep(20)\n"
    source = program(tmp_path, slow)
    done = gridml("run", source, "--silence", "5", "--epochs", "1", "--run-dir", root, limit_s=350)
    assert done.returncode == 0, done.stdout + done.stderr
    silences = [text for (text,) in rows(root, "SELECT text FROM events WHERE topic = 'silent'")]
    assert any("nothing heard for" in str(text) for text in silences)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_f_that_never_comes_back_stops_the_run(tmp_path: Path) -> None:
    root = tmp_path / "run"
    endless = "    import time\n    while 1234 in documents.ids:\n        time.sleep(1)\n"
    source = program(tmp_path, endless)
    done = gridml("run", source, "--silence", "5", "--epochs", "1", "--run-dir", root, limit_s=350)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "its process lives, but it has trained nothing for" in done.stderr and "failed 3 times" in done.stderr


def test_what_keeps_workers_from_starting_on_two_machines_is_the_programs(tmp_path: Path) -> None:
    root, source = tmp_path / "run", tmp_path / "program.py"
    source.write_text(f"import sys\nif 'worker' in sys.argv[0]:\n    import no_such_module\n{COUNTS}")
    done = gridml("run", source, "--workers", "2", "--run-dir", root)
    assert done.returncode == 8, done.stdout + done.stderr
    said = " ".join(done.stderr.split())
    assert "2 machines failed in the same way before any worker had work, so it is not the machines" in said
    assert "No module named 'no_such_module'" in said
    stands = json.loads(gridml("status", root, "--json").stdout)
    assert stands["status"] == "failed", "it was not cancelled"
    assert "2 machines failed in the same way" in stands["stopped_because"]
    assert rows(root, "SELECT count(*) FROM workers WHERE started_s IS NOT NULL")[0][0] <= 4  # type: ignore[operator]

"""Users' mistakes: each has one clear message and its exit status, and loses no work."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from master.views.report import report

pytestmark = pytest.mark.real
LIMIT_S = 120
GRIDML = shutil.which("gridml", path=str(Path(sys.executable).parent)) or "gridml"
Command = Callable[..., subprocess.CompletedProcess[str]]
HEAD = "import numpy as np\nimport gridml\n"
COUNTS = (Path(__file__).parent / "programs" / "counts.py").read_text()
PERCEPTRON = (Path(__file__).parent / "programs" / "perceptron.py").read_text()


def gridml(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GRIDML, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "COLUMNS": "200", **(environment or {})},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(text)
    return path


def assert_said(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    said = " ".join(done.stderr.split())
    assert done.returncode == status, done.stdout + done.stderr
    for word in words:
        assert word in said, said
    assert "master/" not in said and "gridml/cli/main.py" not in said, said  # no traceback of gridml's own


def exact(root: Path) -> None:
    """Check that every epoch of the finished run is credited in full, and nothing twice."""
    epochs = report(root).epochs
    assert epochs and {(epoch.credited, epoch.duplicated, epoch.lost) for epoch in epochs} == {(3000, 0, 0)}


def test_no_such_file(tmp_path: Path, command: Command) -> None:
    assert_said(command("run", tmp_path / "nothing.py"), 2, "no such file", "nothing.py")


def test_a_file_without_a_program(tmp_path: Path, command: Command) -> None:
    assert_said(command("run", write(tmp_path, "x = 1\n")), 3, "exactly one gridml.Program", "found none")


def test_a_file_with_two_programs(tmp_path: Path, command: Command) -> None:
    text = COUNTS + "\nother = gridml.Program(graph, train)\n"
    assert_said(command("run", write(tmp_path, text)), 3, "exactly one gridml.Program", "found 2 (program, other)")


def test_arrays_of_unequal_length(tmp_path: Path, root: Path, command: Command) -> None:
    text = COUNTS.replace("visits=np.zeros(COUNT, np.int64)", "visits=np.zeros(COUNT - 1, np.int64)")
    assert_said(command("run", write(tmp_path, text), "--run-dir", root), 3, "unequal length", "2,999", "3,000")
    assert not root.exists()


def test_edges_to_missing_vertices(tmp_path: Path, root: Path, command: Command) -> None:
    text = COUNTS.replace(".integers(0, WORDS,", ".integers(0, WORDS + 1,")
    assert_said(command("run", write(tmp_path, text), "--run-dir", root), 3, "edge to Word 50", "there are 50 Word")
    assert not root.exists()


def test_f_that_raises_stops_the_run_and_can_be_mended(tmp_path: Path, root: Path, command: Command) -> None:
    bad = "    if 1234 in documents.ids:\n        raise ValueError('vertex 1234 is odd')\n"
    source = write(tmp_path, COUNTS.replace("    documents.visits += 1\n", bad + "    documents.visits += 1\n"))
    done = command("run", source, "--run-dir", root)
    assert_said(done, 4, "vertex 1234 is odd", "Document", "chunk [", "failed 3 times", f"gridml resume {root}")
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "program.py" in done.stderr and "in train" in done.stderr
    write(tmp_path, COUNTS)
    done = command("resume", root, "--with-changes")
    assert done.returncode == 0, done.stderr
    exact(root)


def test_f_that_kills_its_process_stops_the_run(tmp_path: Path, root: Path) -> None:
    bad = "    if 1234 in documents.ids:\n        import os\n        os._exit(7)\n"
    source = write(tmp_path, COUNTS.replace("    documents.visits += 1\n", bad + "    documents.visits += 1\n"))
    assert_said(gridml("run", source, "--run-dir", root), 4, "exit status 7", "chunk [", "failed 3 times")


def test_an_aggregate_that_returns_the_wrong_shape(tmp_path: Path, root: Path, command: Command) -> None:
    wrong = "self.model[0].weight = torch.nn.Parameter(torch.zeros(2, 2))"
    own = f"    def aggregate(self, replica, merge):\n        {wrong}\n"
    text = PERCEPTRON.replace("momentum=0.9))\n", "momentum=0.9))\n\n" + own, 1)
    done = command("run", write(tmp_path, text), "--workers", "1", "--run-dir", root)
    assert_said(done, 4, "Network.aggregate made float32 (2, 2) of Network/0/model/0.weight", "expected float32")


def test_an_aggregate_that_raises(tmp_path: Path, root: Path, command: Command) -> None:
    own = "    def aggregate(self, replica, merge):\n        raise KeyError('g is unwell')\n"
    text = PERCEPTRON.replace("momentum=0.9))\n", "momentum=0.9))\n\n" + own, 1)
    done = command("run", write(tmp_path, text), "--workers", "1", "--run-dir", root)
    assert_said(done, 4, "Network.aggregate failed", "g is unwell", "in aggregate")
    assert done.stderr.count("Traceback (most recent call last)") == 1


def test_a_loss_that_is_not_a_number(tmp_path: Path, root: Path, command: Command) -> None:
    text = PERCEPTRON.replace("F.cross_entropy(model(values), label)", "F.cross_entropy(model(values), label) * np.nan")
    done = command("run", write(tmp_path, text), "--workers", "1", "--run-dir", root)
    assert_said(done, 4, "the loss is nan", "Lower the learning rate", "failed 3 times", "Point")


def test_an_evaluate_that_raises_keeps_the_training(tmp_path: Path, root: Path, command: Command) -> None:
    text = COUNTS.replace('return {"counted"', 'raise OSError("no judge")\n    return {"counted"')
    assert_said(command("run", write(tmp_path, text), "--run-dir", root), 4, "evaluate failed", "no judge")
    write(tmp_path, COUNTS)
    assert command("resume", root, "--with-changes").returncode == 0
    exact(root)


def test_a_damaged_ledger(programs: Path, root: Path) -> None:
    assert gridml("run", programs / "counts.py", "--run-dir", root).returncode == 0
    ledger = root / "ledger.db"
    for side in ("-wal", "-shm"):
        (root / f"ledger.db{side}").unlink(missing_ok=True)
    content = bytearray(ledger.read_bytes())
    content[4096:12288] = os.urandom(8192)
    ledger.write_bytes(content)
    assert_said(gridml("resume", root), 7, "ledger.db cannot be read", "ledger.backup.db", "gridml resume")
    shutil.copy(root / "ledger.backup.db", ledger)
    assert gridml("resume", root).returncode == 0
    exact(root)


def test_not_a_run(tmp_path: Path, command: Command) -> None:
    assert_said(command("resume", tmp_path), 7, "is not a run", "gridml run PROGRAM")


def test_a_run_directory_that_holds_a_run(programs: Path, root: Path, command: Command) -> None:
    assert command("run", programs / "counts.py", "--run-dir", root).returncode == 0
    assert_said(command("run", programs / "counts.py", "--run-dir", root), 2, "holds a run already", "gridml resume")


def test_a_second_master_is_refused(programs: Path, root: Path) -> None:
    from master.store.rundir import MasterLock, RunDirectory

    assert gridml("run", programs / "counts.py", "--run-dir", root).returncode == 0
    lock = MasterLock(RunDirectory(root))
    try:
        assert_said(gridml("resume", root), 8, "another master holds", f"pid {os.getpid()}", "gridml watch")
    finally:
        lock.release()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(point)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_full_disk(programs: Path, small_disk: Path) -> None:
    root = small_disk / "run"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(24_500_000))
    done = gridml("run", programs / "counts.py", "--run-dir", root, "--chunk", "200")
    assert_said(done, 6, "cannot be written", "room")
    ballast.unlink()
    done = (
        gridml("resume", root)
        if (root / "ledger.db").exists()
        else gridml("run", programs / "counts.py", "--run-dir", root)
    )
    assert done.returncode == 0, done.stderr
    exact(root)


def test_a_full_disk_under_fields(tmp_path: Path, small_disk: Path) -> None:
    """Fields are memory-mapped: a hole that cannot be filled would kill the master without a message."""
    root, ballast = small_disk / "run", small_disk / "ballast"
    source = write(tmp_path, COUNTS.replace("= 3000, 50, 3", "= 100_000, 50, 1"))
    ballast.write_bytes(bytes(24_600_000))
    assert_said(gridml("run", source, "--run-dir", root), 6, "No space left", "make room on its disk", "gridml resume")
    ballast.unlink()
    done = gridml("resume", root)
    assert done.returncode == 0, done.stderr


def test_mnist_not_to_be_had(tmp_path: Path, root: Path) -> None:
    text = COUNTS.replace("def links()", "gridml.datasets.mnist()\n\n\ndef links()")
    nowhere = {
        "GRIDML_CACHE": str(tmp_path / "cache"),
        "GRIDML_DATA": str(tmp_path / "nothing"),
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_TIMEOUT": "2",
    }
    done = gridml("run", write(tmp_path, text), "--run-dir", root, environment=nowhere)
    assert_said(done, 5, "MNIST", "GRIDML_DATA")


def test_the_ledger_uses_no_wal_on_a_network_disk(tmp_path: Path) -> None:
    from master.store.ledger import Ledger

    ledger = Ledger(tmp_path / "ledger.db", shared_disk=True, create=True)
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as found:
        assert found.execute("PRAGMA journal_mode").fetchone()[0] == "delete"

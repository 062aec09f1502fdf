"""A full disk when a master writes to a mailbox, publishes a chunk or writes its journal ends the run with a message;
the run resumes exactly when there is space again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.loop_disks import NoDisks, small_disk
from master.views.report import report

pytestmark = pytest.mark.real
LIMIT_S = 120
FILLING = """
import sys
from pathlib import Path
from unittest.mock import patch
from benchmarks.disks import fill
from gridml.cli import main as cli
from {module} import {cls}
filler, nth, write, calls = Path(sys.argv[1]), int(sys.argv[2]), {cls}.{method}, 0

def fill_and_write(*arguments):
    global calls
    calls += 1
    if calls == nth:
        fill(filler)
    return write(*arguments)

with patch.object({cls}, "{method}", fill_and_write):
    cli.main(sys.argv[3:])
"""
WRITES = {  # the patched call, and the time for which the disk is full
    "a mailbox that is made": ("gridml.carriers.directory", "DirectoryMailboxes", "open", 2),
    "an answer": ("gridml.carriers.directory", "DirectoryMailboxes", "answer", 4),
    "a chunk": ("gridml.carriers.directory", "DirectoryMailboxes", "publish", 3),
    "the journal": ("master.store.journal", "Events", "_notify", 4),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(24, tmp_path / "disk") as place:
            yield place
    except NoDisks as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_is_said_and_loses_nothing(place: Path, programs: Path, what: str) -> None:
    module, cls, method, nth = WRITES[what]
    root, filler = place / "run", place / "filler"
    filling = FILLING.format(module=module, cls=cls, method=method)
    asked = ["run", str(programs / "counts.py"), "--run-dir", str(root), "--chunk", "200", "--push-every", "50"]
    stopped = python(filling, str(filler), str(nth), *asked)
    said = " ".join(stopped.stderr.split())
    assert stopped.returncode == 6 and ("No space left" in said or "database or disk is full" in said), stopped.stderr
    assert "make room on its disk" in said and "gridml resume" in said and "Traceback" not in said
    filler.unlink()
    resumed = python("from gridml.cli import main as cli; cli.main()", "resume", str(root))
    assert resumed.returncode == 0, resumed.stderr
    epochs = report(root).epochs
    assert epochs and {(epoch.credited, epoch.duplicated, epoch.lost) for epoch in epochs} == {(3000, 0, 0)}


def python(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, env=path, capture_output=True, text=True, timeout=LIMIT_S, check=False)

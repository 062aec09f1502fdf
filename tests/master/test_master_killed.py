"""The master is killed at every commit point; a resumed run ends with exact credits."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gridml.protocol import bundle

pytestmark = pytest.mark.real
HERE = Path(__file__).parent
LIMIT_S = 120
MASTER = (HERE.parent.parent / "master").rglob("*.py")
POINTS = sorted({point for file in MASTER for point in re.findall(r"\b_?hook\(\"([a-z-]+)\"\)", file.read_text())})


def drive(program: Path, root: Path, point: str = "", nth: int = 0) -> int:
    """Run a master in a process of its own until that ends. Return the exit status."""
    command = [sys.executable, str(HERE / "dying_master.py"), str(program), str(root), point, str(nth)]
    return subprocess.run(command, timeout=LIMIT_S, check=False).returncode


def assert_exact(root: Path, programs: Path) -> None:
    """Every vertex of every epoch is credited once, counted once and visited once."""
    ledger = sqlite3.connect(f"file:{root / 'ledger.db'}?mode=ro", uri=True)
    rows = np.array(ledger.execute("SELECT epoch, start, stop FROM credits ORDER BY epoch, start").fetchall())
    ledger.close()
    for epoch in range(3):
        mine = rows[rows[:, 0] == epoch]
        assert mine[0, 1] == 0 and mine[-1, 2] == 3000
        np.testing.assert_array_equal(mine[1:, 1], mine[:-1, 2])
    _, trained = bundle.decode((root / "final.safetensors").read_bytes())
    links = np.random.default_rng(3).integers(0, 50, (3000, 4))
    np.testing.assert_array_equal(trained["Word/count"], 3 * np.bincount(links.ravel(), minlength=50))
    np.testing.assert_array_equal(np.load(root / "fields" / "Document.visits.npy"), np.full(3000, 3))


def test_the_points_were_found() -> None:
    assert {"before-version", "after-version", "before-commit", "after-commit", "after-answers"} <= set(POINTS)


def once_an_epoch(point: str) -> bool:
    return any(event in point for event in ("base", "backup", "metrics"))


RARE, OFTEN = ([point for point in POINTS if once_an_epoch(point) is rare] for rare in (True, False))


@pytest.mark.parametrize("points", [OFTEN[k::3] + RARE[k::3] for k in range(3)], ids=" ".join)
def test_killed_at_one_commit_point_after_another(points: list[str], programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for point in points:
        nth = 1 if once_an_epoch(point) else 3
        assert drive(programs / "counts.py", root, point, nth) == -signal.SIGKILL, point
    assert drive(programs / "counts.py", root) == 0
    assert_exact(root, programs)


def test_killed_at_every_commit_point_of_a_tick(programs: Path, tmp_path: Path) -> None:
    """With slack 0 a resumed run ends as one that nothing happened to, bit for bit."""
    program, quiet, root = programs / "slopes.py", tmp_path / "quiet", tmp_path / "run"
    assert drive(program, quiet) == 0
    for number, point in enumerate(OFTEN):
        assert drive(program, root, point, 3 + number % 4) == -signal.SIGKILL, point  # four pushes make a tick
    assert drive(program, root) == 0
    ends = [bundle.decode((each / "final.safetensors").read_bytes())[1] for each in (quiet, root)]
    assert {name: each.tobytes() for name, each in ends[0].items()} == {n: e.tobytes() for n, e in ends[1].items()}


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_commit_point(point: str, programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for nth in (1, 2 if once_an_epoch(point) else 4):
        assert drive(programs / "counts.py", root, point, nth) == -signal.SIGKILL
    assert drive(programs / "counts.py", root) == 0
    assert_exact(root, programs)

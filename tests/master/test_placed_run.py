"""Runs with a placement: exact under kills, and with the same placement under all masters."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from gridml.errors import LedgerError
from gridml.protocol import bundle
from master.backends.script import PlannedLife, Script
from master.launch import resume, start
from master.ports.environment import Environment
from master.store.settings import Settings

COUNT, WORDS, EPOCHS = 3000, 50, 3  # of tests/programs/counts.py
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Killed(Script):
    """Three machines; the first two workers of one of them are killed."""

    slots = 3  # type: ignore[assignment]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 1.0 + k if slot == 0 and k < 2 else None)


def settings_of(programs: Path, *, placement: str = "parsa") -> Settings:
    return Settings(programs / "counts.py", workers=3, chunk=100, push_every=50, placement=placement)


def rows(root: Path, query: str) -> list[tuple]:  # type: ignore[type-arg]
    ledger = sqlite3.connect(f"file:{root / 'ledger.db'}?mode=ro", uri=True)
    try:
        return ledger.execute(query).fetchall()
    finally:
        ledger.close()


def borders(root: Path) -> list[int]:
    """Return the borders of the parts in the saved placement."""
    _, arrays = bundle.decode((root / "placement.safetensors").read_bytes())
    return [0, *np.cumsum(np.bincount(arrays["part"])).tolist()]


def assert_exact(root: Path, parts: int) -> None:
    """Every vertex of every epoch is credited once, counted once and visited once, and no lease is of two parts."""
    for epoch in range(EPOCHS):
        at = 0
        for start_, stop in rows(root, f"SELECT start, stop FROM credits WHERE epoch = {epoch} ORDER BY start"):
            assert start_ == at
            at = stop
        assert at == COUNT
    _, trained = bundle.decode((root / "final.safetensors").read_bytes())
    links = np.random.default_rng(3).integers(0, WORDS, (COUNT, 4))
    np.testing.assert_array_equal(trained["Word/count"], EPOCHS * np.bincount(links.ravel(), minlength=WORDS))
    np.testing.assert_array_equal(np.load(root / "fields" / "Document.visits.npy"), np.full(COUNT, EPOCHS))
    ends = borders(root)
    assert len(ends) == parts + 1
    for first, last in rows(root, "SELECT start, max(start, stop - 1) FROM leases"):
        assert np.searchsorted(ends, first, "right") == np.searchsorted(ends, last, "right")


@pytest.mark.real
def test_a_placed_run_is_exact_though_workers_are_killed(
    programs: Path, tmp_path: Path, pool: Callable[[Script], Environment]
) -> None:
    root = tmp_path / "run"
    with start(settings_of(programs), root, pool(Killed())) as run:
        run.finish()
    assert_exact(root, 3)
    assert rows(root, "SELECT count(*) FROM workers WHERE state = 'evicted'") != [(0,)]
    (facts,) = rows(root, "SELECT facts FROM events WHERE topic = 'placement'")[0]
    assert (json.loads(facts)["method"], json.loads(facts)["parts"]) == ("parsa", 3)
    own = rows(root, "SELECT count(*) FROM leases WHERE reason LIKE '% in its own part %'")[0][0]
    assert own > 0.5 * rows(root, "SELECT count(*) FROM leases")[0][0]


@pytest.mark.real
def test_a_placed_run_is_exact_though_masters_are_killed(programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"

    def drive(point: str = "", nth: int = 0) -> int:
        program = str(programs / "counts.py")
        command = [sys.executable, str(HERE / "dying_master.py"), program, str(root), point, str(nth), "parsa"]
        return subprocess.run(command, timeout=120, check=False).returncode

    assert drive("before-commit", 3) == -signal.SIGKILL
    kept = (root / "placement.safetensors").read_bytes()
    assert drive("after-version", 9) == -signal.SIGKILL
    assert drive() == 0
    assert_exact(root, 2)
    assert (root / "placement.safetensors").read_bytes() == kept
    assert len(rows(root, "SELECT 1 FROM events WHERE topic = 'placement'")) == 1
    ledger_says = json.loads(rows(root, "SELECT value FROM run WHERE key = 'identity'")[0][0])
    assert ledger_says["order"]["placed"] == bundle.digest(kept)


class _Enough(Exception):
    pass


def stopped(settings: Settings, root: Path, environment: Environment) -> None:
    """Start a run that is stopped in its first turn."""

    def tick() -> None:
        raise _Enough

    with pytest.raises(_Enough), start(settings, root, replace(environment, tick=tick)) as run:
        run.finish()


def test_a_run_goes_on_with_the_placement_it_was_begun_with_or_not_at_all(
    programs: Path, tmp_path: Path, pool: Callable[[Script | None], Environment]
) -> None:
    root, placement = tmp_path / "run", tmp_path / "run" / "placement.safetensors"
    stopped(settings_of(programs), root, pool(None))
    kept = placement.read_bytes()
    with resume(root, pool(None)) as run:
        assert run.parts.spec.placement is not None
        assert run.parts.spec.placement.sha256 == bundle.digest(kept)
        assert [span.start for span in run.ledger.spans] == borders(root)[:3]
    placement.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(LedgerError, match=r"placement.safetensors is damaged.*The copy of the ledger is of no use"):
        resume(root, pool(None))
    placement.unlink()
    with pytest.raises(LedgerError, match=r"placement.safetensors, the placement of the vertices, is gone"):
        resume(root, pool(None))
    placement.write_bytes(kept)
    text = (root / "settings.json").read_text().replace('"parsa"', '"refined"')
    for name in ("settings.json", "settings.backup.json"):
        (root / name).write_text(text)
    with pytest.raises(LedgerError, match="placement was parsa, and is refined"):
        resume(root, pool(None))


def test_a_run_without_a_placement_has_no_file_and_says_nothing(
    programs: Path, tmp_path: Path, pool: Callable[[Script | None], Environment]
) -> None:
    root = tmp_path / "run"
    stopped(settings_of(programs, placement="none"), root, pool(None))
    assert not (root / "placement.safetensors").exists()
    assert rows(root, "SELECT * FROM events WHERE topic = 'placement'") == []


def test_nothing_of_placing_is_imported_where_nothing_is_placed(tmp_path: Path) -> None:
    """numba and scipy take most of a second."""
    program = tmp_path / "costs.py"
    program.write_text("from master.simulation.cost_only_worker import program_of\n\nprogram = program_of(500, 1)\n")
    check = (
        "import sys; from pathlib import Path; from master.ports.environment import Environment\n"
        "from master.launch import create; from master.store.settings import Settings\n"
        f"create(Settings(Path({str(program)!r})), Path({str(tmp_path / 'run')!r}), Environment(None))\n"
        "print(*[name for name in sys.modules if name.startswith('gridml.placement')])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []

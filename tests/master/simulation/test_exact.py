"""`verify_credits` finds every error, and names its epoch and range."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from chunk_model.goodput import Costs
from gridml.errors import LedgerError
from master.backends.script import Steady
from master.simulation import cost_only_worker
from master.simulation.result import VerifiedCredits, verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    program = tmp_path / "costs.py"
    program.write_text(cost_only_worker.source(400, 2))
    settings = Settings(program, backend="simulated", workers=3, chunk=50, push_every=20)
    play_scenario(settings, Scenario(Steady(3), Costs(exec_s=1.0)), tmp_path / "run")
    return tmp_path / "run"


def altered(root: Path, *statements: str) -> None:
    with sqlite3.connect(root / "ledger.db") as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_a_finished_run_is_exact(root: Path) -> None:
    exact = verify_credits(root)
    assert exact == VerifiedCredits(800, 2, 2, exact.credits)
    assert exact.credits >= 2 * 400 / 50


FIRST = "(SELECT min(rowid) FROM credits WHERE epoch = 1 AND start = 0)"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (f"DELETE FROM credits WHERE rowid = {FIRST}", r"epoch 2: \[20, \d+\) is credited to lease \d+"),
        ("INSERT INTO spans VALUES (1, 30, 40, 0)", r"epoch 2: \[30, 40\) is .*(free|credited).* and"),
        ("INSERT INTO spans VALUES (7, 30, 40, 0)", r"epoch 8: .* never opened"),
        ("UPDATE epochs SET vertices = 410 WHERE epoch = 0", r"epoch 1: \[400, 410\) is neither"),
        ("UPDATE epochs SET credited = 399 WHERE epoch = 0", "epoch 1 claims 399"),
        (f"UPDATE credits SET stop = start WHERE rowid = {FIRST}", r"epoch 2: \[0, 0\) is credited, but"),
        ("UPDATE versions SET credited = credited + 1 WHERE version = 3", "version 3 claims"),
        ("DELETE FROM versions WHERE version = (SELECT max(version) FROM versions)", "which does not exist"),
    ],
)
def test_what_is_wrong_is_found_and_named(root: Path, statement: str, says: str) -> None:
    altered(root, statement)
    with pytest.raises(LedgerError, match=says):
        verify_credits(root)


def test_a_range_that_is_credited_and_leased_is_found(root: Path) -> None:
    altered(root, "UPDATE leases SET closed_s = NULL, stop = stop + 10 WHERE id = 1")
    with pytest.raises(LedgerError, match=r"epoch 1: \[\d+, \d+\) is (leased to|credited in) .* and"):
        verify_credits(root)


def test_an_epoch_that_is_closed_too_early_is_found(root: Path) -> None:
    altered(
        root,
        "DELETE FROM credits WHERE epoch = 1 AND lease = (SELECT max(lease) FROM credits WHERE epoch = 1)",
        "INSERT INTO spans SELECT 1, start, stop, 0 FROM leases WHERE id = (SELECT max(id) FROM leases)",
        "UPDATE epochs SET credited = (SELECT sum(stop - start) FROM credits WHERE epoch = 1) WHERE epoch = 1",
    )
    with pytest.raises(LedgerError, match=r"epoch 2: closed with \d+ of \[0, 400\) credited"):
        verify_credits(root)


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a run"):
        verify_credits(tmp_path)

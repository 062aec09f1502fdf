"""Strikes against machines: a hostile machine rests longer each time, and in the end for good."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from chunk_model.goodput import Costs
from gridml.errors import RunError
from master.backends.script import Steady
from master.simulation import cost_only_worker
from master.simulation.result import verify_credits
from master.simulation.scenario import Machine, Scenario
from master.simulation.world import play_scenario
from master.state.failures import DISTRUST_STRIKES, MAX_FAILURES
from master.store.reader import opened
from master.store.settings import Settings

COSTS = Costs(exec_s=0.5, start_s=2.0, push_s=0.1, boot_s=1.0)
VERTICES, EPOCHS = 4000, 2
BAD = "slot-1"


@dataclass(frozen=True)
class OneHostile(Scenario):
    """The workers of one machine send hostile messages beside their own, which are credited."""

    def machine(self, slot: int) -> Machine:
        return replace(super().machine(slot), hostile=slot == 0)


def play(folder: Path, scenario: Scenario) -> Path:
    program = folder / "costs.py"
    program.write_text(cost_only_worker.source(VERTICES, EPOCHS))
    settings = Settings(program, backend="simulated", workers=scenario.script.slots, silent_s=60.0)
    play_scenario(settings, scenario, folder / "run")
    return folder / "run"


def workers_of(root: Path) -> Counter[str]:
    """Return the number of workers that each machine had."""
    with opened(root) as ledger:
        rows = ledger.execute("SELECT machine, count(*) FROM workers WHERE started_s IS NOT NULL GROUP BY machine")
        return Counter(dict(rows))


@pytest.mark.parametrize("crash_every_s", [None, 30.0, 60.0])
def test_a_hostile_machine_gets_a_few_workers_and_then_none(tmp_path: Path, crash_every_s: float | None) -> None:
    """Regression: it got a new worker at once for each that was given up, until the end of the run."""
    root = play(tmp_path, OneHostile(Steady(4), COSTS, crash_every_s=crash_every_s))
    assert verify_credits(root).credited == VERTICES * EPOCHS
    workers = workers_of(root)
    assert 2 <= workers[BAD] <= MAX_FAILURES // DISTRUST_STRIKES
    assert all(workers[name] <= 2 for name in ("slot-2", "slot-3", "slot-4"))  # one may come as the run ends
    with opened(root) as ledger:
        (machine,) = ledger.execute("SELECT name, failures, distrusted, reason FROM machines").fetchall()
    assert (machine[0], machine[2]) == (BAD, workers[BAD])
    assert "of its messages made no sense" in machine[3] and "given up for what they sent" in machine[3]


def test_a_run_whose_only_machine_is_hostile_continues_or_ends_with_an_error(tmp_path: Path) -> None:
    try:
        root = play(tmp_path, OneHostile(Steady(1), COSTS))
    except RunError as error:
        assert "no machine does better" in str(error)
        root = tmp_path / "run"
    else:
        assert verify_credits(root).credited == VERTICES * EPOCHS
    assert workers_of(root)[BAD] >= MAX_FAILURES // DISTRUST_STRIKES

"""A run reaches and keeps the requested number of workers, at the default settings of a pool."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.errors import RunError
from gridml.protocol.messages import NO_PUSH
from master.backends.condor.options import CondorOptions
from master.simulation import cost_only_worker
from master.simulation.scenario import ManyLives, Scenario
from master.simulation.simulated import Negotiation
from master.simulation.world import START_S, play_scenario
from master.store.rundir import RunDirectory
from master.store.settings import Settings

WORKERS, LIFE_S = 2600, 2700.0
REACHED_S, END_S = 1200.0, 1800.0
TRAINED_S = 10.0  # a vertex


def running(lives: Sequence[tuple[float, float | None, float | None]], at_s: float) -> int:
    """Return how many of the workers (submitted, started, ended) run at an instant."""
    return sum(
        1 for _, began, ended in lives if began is not None and began <= at_s and (ended is None or ended > at_s)
    )


def test_2600_short_lived_workers_are_reached_and_kept(tmp_path: Path) -> None:
    """The pool matches 300 jobs a minute. What is not of the queue is chosen to send few messages, for the test's
    time: few pushes, so much patience, and chunks of a given size."""
    program = tmp_path / "costs.py"
    program.write_text(cost_only_worker.source(1000 * WORKERS, 1))
    scenario = Scenario(
        ManyLives(2 * WORKERS, Exponential(LIFE_S), seed=1, gap_s=60.0),
        Costs(exec_s=TRAINED_S, start_s=1.0, push_s=0.5),
        turn_s=1.0,
        limit_s=END_S,
        negotiation=Negotiation(every_s=60.0, most=300),
    )
    settings = Settings(
        program,
        backend="simulated",
        workers=WORKERS,
        chunk=100,
        push_every=NO_PUSH,
        silent_s=1e5,
        options=CondorOptions(),
    )
    with pytest.raises(RunError, match="has not finished after"):
        play_scenario(settings, scenario, tmp_path / "run")
    with closing(sqlite3.connect(RunDirectory(tmp_path / "run").ledger)) as ledger:
        lives = ledger.execute("SELECT submitted_s, started_s, ended_s FROM workers").fetchall()
        submissions = ledger.execute("SELECT count(*) FROM events WHERE topic = 'submitted'").fetchone()[0]
    for minute in range(int(REACHED_S / 60), int(END_S / 60)):
        assert running(lives, START_S + 60 * minute + 59) >= 0.95 * WORKERS
    queued = [
        sum(1 for s, began, ended in lives if s <= at_s < (began or ended or START_S + END_S))
        for at_s in (START_S + 10.0 * k for k in range(int(END_S / 10)))
    ]
    assert max(queued) <= CondorOptions().max_idle
    assert submissions <= END_S / 5 + 1  # and not one for each worker

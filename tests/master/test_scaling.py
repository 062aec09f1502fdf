"""A run is scaled up and down while it goes on, by the present master or the next one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from master.backends.registry import read_settings
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.scaling import REQUESTED, TAKEN, request
from master.simulation import cost_only_worker
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.views.report import report

VERTICES, EPOCHS, PLACES = 2000, 4, 20
COSTS = Costs(exec_s=0.5, start_s=1.0, push_s=0.05, boot_s=0.5)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that plays a run of `workers` workers in a pool of `PLACES` places, and calls `heard` with each
    event and the run's directory."""

    def play(
        workers: int,
        heard: Callable[[str, str, Path], None],
        script: Script | None = None,
        killed: Callable[[Path], None] = lambda root: None,
        **scenario: Any,
    ) -> Path:
        program, root = tmp_path / "costs.py", tmp_path / "run"
        program.write_text(cost_only_worker.source(VERTICES, EPOCHS))
        settings = Settings(program, "simulated", workers, chunk=20, options=SimulatedOptions())
        played = Scenario(script or Steady(PLACES), COSTS, turn_s=0.5, limit_s=1e5, **scenario)
        play_scenario(
            settings, played, root, lambda topic, text, facts: heard(topic, text, root), killed=lambda: killed(root)
        )
        return root

    return play


def rows(root: Path, query: str) -> Sequence[tuple[Any, ...]]:
    with closing(sqlite3.connect(RunDirectory(root).ledger)) as ledger:
        return ledger.execute(query).fetchall()


def events(root: Path, topic: str) -> list[tuple[float, str]]:
    return [(at_s, text) for at_s, t, text in rows(root, "SELECT at_s, topic, text FROM events") if t == topic]


def running(root: Path, at_s: float) -> int:
    lives = rows(root, "SELECT started_s, ended_s FROM workers WHERE started_s IS NOT NULL")
    return sum(1 for began, ended in lives if began <= at_s and (ended is None or ended > at_s))


def settings_of(root: Path) -> Settings:
    (facts,) = rows(root, "SELECT value FROM run WHERE key = 'settings'")
    return read_settings(root, json.loads(facts[0]))


def at_epochs(*numbers: int) -> Callable[[str, str, Path], None]:
    """Return a callback that requests these numbers of workers, one after each epoch."""
    left = list(numbers)

    def heard(topic: str, text: str, root: Path) -> None:
        if topic == "epoch" and left:
            asked = request(root, left.pop(0))
            assert asked.master is not None

    return heard


def test_a_run_grows_and_shrinks_as_it_goes_on(play: Callable[..., Path]) -> None:
    root = play(4, at_epochs(12, 3))
    exact = verify_credits(root)
    assert (exact.credited, exact.finished) == (VERTICES * EPOCHS, EPOCHS)
    (grown_s, grown), (shrunk_s, shrunk) = events(root, "scaled")
    assert grown == "workers: 12 instead of 4, as requested by gridml scale"
    assert shrunk == "workers: 3 instead of 12, as requested by gridml scale"
    assert [running(root, at_s) for at_s in (grown_s - 1, grown_s + 5, shrunk_s - 1)] == [4, 12, 12]
    assert running(root, shrunk_s + 10) == 3
    (_, dismissed), *_ = events(root, "dismissed")
    assert dismissed.endswith("and 1 more: 12 are queued or running, wanted: 3")
    assert settings_of(root).workers == report(root).workers == 3
    assert not (root / REQUESTED).exists() and not (root / TAKEN).exists()
    assert report(root).kills == 0 and not events(root, "warning")  # released workers are not counted as kills
    trained, credited = rows(root, "SELECT sum(trained), sum(credited) FROM workers")[0]
    assert trained == credited  # they pushed before they left: nothing is trained twice


def test_workers_that_wait_leave_first_and_count_for_no_failure(play: Callable[..., Path]) -> None:
    """Twenty jobs run and forty wait: withdrawn jobs are no failures of the program."""
    root = play(60, at_epochs(20, 20))
    (_, first), *_ = events(root, "dismissed")
    assert first.startswith("w60, w59, w58, ") and first.endswith("60 are queued or running, wanted: 20")
    assert rows(root, "SELECT count(*) FROM workers WHERE started_s IS NOT NULL")[0][0] == 20
    assert len(events(root, "scaled")) == 1  # what is the same number is no change


def test_the_number_outlives_masters_and_machines(play: Callable[..., Path]) -> None:
    lives = ScriptedLives(PLACES, Exponential(120.0), seed=2, late=0, gap_s=2.0, grace_s=10.0)
    root = play(4, at_epochs(12, 3), lives, crash_every_s=100.0, restart_s=5.0)
    assert verify_credits(root).credited == VERTICES * EPOCHS
    assert report(root).masters > 3
    assert settings_of(root).workers == 3
    (grown_s, _), (shrunk_s, _) = events(root, "scaled")
    began = rows(root, "SELECT worker FROM workers WHERE started_s > 0")
    assert len(began) > 12 and running(root, shrunk_s + 60) <= 3 < running(root, grown_s + 60)


def test_a_request_that_a_master_died_over_is_taken_up_by_the_next(play: Callable[..., Path]) -> None:
    died: list[Path] = []

    def killed(root: Path) -> None:
        if not died:
            died.append(root)
            request(root, 9)
            (root / REQUESTED).rename(root / TAKEN)  # as far as the master came
            request(root, 6)  # and a person has replaced the request

    root = play(4, lambda topic, text, root: None, killed=killed, crash_every_s=60.0, restart_s=5.0)
    assert [text for _, text in events(root, "scaled")] == [
        "workers: 9 instead of 4, as requested by gridml scale",
        "workers: 6 instead of 9, as requested by gridml scale",
    ]
    assert settings_of(root).workers == 6 and not (root / TAKEN).exists()


@pytest.mark.parametrize("content", [b"many", b"", b"0", b"-3", b"9" * 99, b"x" * 1000, b"\xff"])
def test_what_is_no_request_is_removed_with_a_warning(play: Callable[..., Path], content: bytes) -> None:
    def heard(topic: str, text: str, root: Path) -> None:
        if topic == "epoch":
            (root / REQUESTED).write_bytes(content)

    root = play(4, heard)
    assert verify_credits(root).credited == VERTICES * EPOCHS
    warnings = events(root, "warning")
    assert warnings and all(text.startswith("a request to scale was rejected: ") for _, text in warnings)
    assert settings_of(root).workers == 4 and not events(root, "scaled")

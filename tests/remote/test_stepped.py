"""Real workers under a virtual clock: they train the same as on machines, in the simulated time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.protocol import bundle
from gridml.protocol.worker_state import WorkerOptions
from master.backends.script import PlannedLife, Script, ScriptedLives, Steady
from master.launch import resume
from master.simulation.faulty_network import Chances, FaultyNetwork, VirtualClock
from master.simulation.result import dump, verify_credits
from master.simulation.scenario import Absent, MachineSpeeds, Scenario, Storms
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import MAX_POLL_S, Trainer

COSTS = Costs(exec_s=0.5, copy_s=0.01, start_s=1.0, push_s=0.1, boot_s=2.0)
FAULTS = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=3.0)


@pytest.fixture(autouse=True)
def threads() -> object:
    """Trainers leave torch with one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(root: Path) -> dict[str, np.ndarray]:
    return bundle.decode((root / "final.safetensors").read_bytes())[1]


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bad(workers: int, life_s: float, seed: int) -> Scenario:
    script = Storms(
        Absent(ScriptedLives(workers, Exponential(life_s), seed, grace_s=5.0, gap_s=2.0), 0.1), 8 * life_s, 0.5
    )
    speeds = MachineSpeeds(0.2, 4.0, 0.3)
    return Scenario(script, COSTS, speeds, FAULTS, crash_every_s=life_s, turn_s=0.2, limit_s=1e5, seed=seed)


@pytest.mark.parametrize(("chunk", "push_every"), [(None, None), (96, 32), (320, 64)])
def test_one_worker_equals_a_plain_loop_bit_for_bit(
    tmp_path: Path, programs: Path, chunk: int | None, push_every: int | None
) -> None:
    source = programs / "perceptron.py"
    settings = Settings(source, backend="simulated", workers=1, seed=5, chunk=chunk, push_every=push_every)
    play_scenario(settings, Scenario(Steady(1), COSTS), tmp_path / "run", trainer=Trainer(source, COSTS, 5))
    expected = module_at(programs.parent / "master" / "test_one_worker.py").plain_loop(source, 5)
    found = trained(tmp_path / "run")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_run_takes_as_long_as_its_costs_say(tmp_path: Path, programs: Path) -> None:
    source = programs / "perceptron.py"  # 1000 vertices, three times
    settings = Settings(source, backend="simulated", workers=1, chunk=320, push_every=10_000)
    for name, speed in (("one", 1.0), ("four", 4.0)):
        scenario = Scenario(Steady(1), COSTS, MachineSpeeds(1.0, speed))
        world = play_scenario(settings, scenario, tmp_path / name, trainer=Trainer(source, COSTS))
        (chunks,), (pushes,) = rows(tmp_path / name, "leases"), rows(tmp_path / name, "credits")
        least = 3000 * 0.5 / speed + chunks * 1.0 + 3000 * 0.01 + pushes * 0.1 + 2.0
        assert least <= report(tmp_path / name).wall_s <= least + (chunks + pushes) * 0.2
        assert world.pool.tally.lived_s >= least


def rows(root: Path, table: str) -> list[int]:
    return asked(root, f"SELECT count(*) FROM {table}")


def asked(root: Path, query: str) -> list[Any]:
    """Return the first column of a ledger's answer."""
    with contextlib.closing(sqlite3.connect(root / "ledger.db")) as db:
        return [row[0] for row in db.execute(query)]


@pytest.mark.parametrize("seed", [1, 3])
def test_sixteen_workers_converge_under_evictions_faults_and_crashes(tmp_path: Path, programs: Path, seed: int) -> None:
    source = programs / "perceptron.py"
    settings = Settings(source, backend="simulated", workers=16, seed=seed, steps_each=0)
    root = tmp_path / "run"
    world = play_scenario(
        settings, bad(16, 60.0, seed), root, trainer=Trainer(source, COSTS, seed), killed=lambda: verify_credits(root)
    )
    assert verify_credits(root).credited == 3000
    assert world.pool.tally.kills > 20
    assert world.masters > 1
    assert world.workers.traffic.lost > 0
    (metrics,) = asked(root, "SELECT metrics FROM epochs WHERE epoch = 2")
    accuracy = json.loads(metrics)["accuracy"]
    assert accuracy > 0.97


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_exact_under_evictions_faults_and_crashes(tmp_path: Path, programs: Path, seed: int) -> None:
    source = programs / "tally.py"
    root, epochs = tmp_path / "run", 12
    settings = Settings(source, backend="simulated", workers=6, epochs=epochs, chunk=4, push_every=2, seed=seed)
    costs = replace(COSTS, exec_s=3.0)
    scenario = replace(bad(6, 40.0, seed), costs=costs)
    played = play_scenario(
        settings, scenario, root, trainer=Trainer(source, costs, seed), killed=lambda: verify_credits(root)
    )
    assert verify_credits(root).finished == epochs
    assert played.pool.tally.kills > 0
    module = sys.modules["gridml_program_tally"]
    expected = module.counted(np.full(module.COUNT, epochs))
    np.testing.assert_array_equal(trained(root)["Word/count"], expected["Word/count"])
    run = resume(root, replace(played.environment(lambda topic, text, facts: None), hook=lambda point: None))
    with run:
        table = run.parts.spec.graph.tables["Document"].columns
        np.testing.assert_array_equal(table["visits"], expected["Document/visits"])
        np.testing.assert_array_equal(table["mood"], expected["Document/mood"])


class Warned(Script):
    """One machine that is taken once with a warning, and then stays."""

    slots = 1

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, None if k else 100.0, None, True, 60.0)


def test_on_a_warning_it_pushes_what_it_has_and_leaves(tmp_path: Path, programs: Path) -> None:
    source = programs / "perceptron.py"
    settings = Settings(source, backend="simulated", workers=1, chunk=320, push_every=10_000)
    play_scenario(settings, Scenario(Warned(), COSTS), tmp_path / "run", trainer=Trainer(source, COSTS))
    with opened(tmp_path / "run") as ledger:
        (first,) = [line for line in dump(ledger) if line.startswith("('w1'")]
    assert "SIGTERM, left with exit status 0" in first
    # 100 s, less boot, start, copying and a push, hold 187 vertices of half a second: five batches and one begun
    assert asked(tmp_path / "run", "SELECT sum(stop - start) FROM credits WHERE worker = 'w1'") == [192]
    assert verify_credits(tmp_path / "run").credited == 3000


def test_a_worker_that_waits_looks_seldom_and_a_reply_wakes_it(programs: Path) -> None:
    clock = VirtualClock()
    post = FaultyNetwork(clock)
    post.master().open("w1")
    source = programs / "counts.py"
    worker = Trainer(source, COSTS)(WorkerOptions("w1"), post.worker("w1"), clock, 1.0)
    life = worker.life()
    assert next(life) == COSTS.boot_s
    while not worker.is_interruptible:
        waits = next(life)
    assert waits == MAX_POLL_S
    woken: list[str] = []
    worker.woken = lambda: woken.append("woken")
    worker.notice_reply()
    worker.evict()
    assert woken == ["woken", "woken"]
    next(life, None)
    worker.is_interruptible = False
    worker.notice_reply()
    assert len(woken) == 2

"""The common part of pushes is measured correctly, for any workers, vertices and tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.protocol.push import ReplicaPart
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.store.versions import ReplicaState
from master.sync.spread import MAX_COORDINATES, REPORT_EVERY, PushSpread, helpful_workers, noise_scale
from master.views.progress import read_progress
from master.views.report import report
from remote.stepped import Trainer

KEY = ("Network", 0)
SHAPES = {"Network/0/net/weight": (300, 40), "Network/0/net/bias": (300,)}
STATISTIC = "Network/0/net/running_mean"
SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())


class Pushing:
    """Pushes n·G + √n·ε from a drifting base, with a fluctuating statistic and an integer counter."""

    def __init__(self, common: float, noise: float, seed: int = 0) -> None:
        self.chance = np.random.default_rng(seed)
        self.direction = {n: self.chance.normal(size=s) * np.sqrt(common / SIZE) for n, s in SHAPES.items()}
        self.noise = np.sqrt(noise / SIZE)
        self.base = {n: self.chance.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
        self.spread = PushSpread(lambda name: name != STATISTIC)

    def push(self, worker: str, vertices: int) -> None:
        base = dict(self.base)
        for name in SHAPES:
            moved = vertices * self.direction[name]
            moved = moved + np.sqrt(vertices) * self.noise * self.chance.normal(size=SHAPES[name])
            self.base[name] = (base[name] + moved).astype(np.float32)
        pushed: dict[str, Any] = {**self.base, STATISTIC: self.chance.normal(size=40).astype(np.float32)}
        base[STATISTIC] = np.zeros(40, np.float32)
        state = cast(ReplicaState, SimpleNamespace(modules={KEY: SimpleNamespace(tensors=base)}))
        self.spread.add(worker, ReplicaPart({KEY: pushed}), state, vertices)


def pushed(trainer: Pushing, workers: Sequence[str], sizes: Sequence[int], count: int = 400) -> Pushing:
    for k in range(count):
        trainer.push(workers[k % len(workers)], sizes[k % len(sizes)])
    return trainer


@pytest.mark.parametrize("scale", [50.0, 1000.0, 10_000.0])
def test_the_noise_scale_of_pushes_that_are_made_with_one(scale: float) -> None:
    spread = pushed(Pushing(1e-4, 1e-4 * scale), ["w1", "w2", "w3"], [20, 50]).spread.facts
    estimated, measured = noise_scale(spread)
    assert measured and estimated == pytest.approx(scale, rel=0.3)
    count, _ = helpful_workers(spread)
    assert count == pytest.approx(1 + scale / spread.vertices, rel=0.3, abs=2)


def test_noise_alone_is_called_no_direction() -> None:
    spread = pushed(Pushing(0.0, 1.0), ["w1", "w2"], [10]).spread.facts
    _, measured = noise_scale(spread)
    count, reason = helpful_workers(spread)
    assert not measured and count is not None and count > 100 and "no fewer than" in reason


def test_one_worker_has_nothing_in_common_with_others() -> None:
    spread = pushed(Pushing(1e-4, 1e-2), ["w1"], [10], count=50).spread.facts
    assert spread.pushes == 0 and helpful_workers(spread)[0] is None


def test_pushes_of_late_count_most() -> None:
    early = pushed(Pushing(1e-4, 1e-2), ["w1", "w2"], [20])
    early.noise *= 3.0
    scale, _ = noise_scale(pushed(early, ["w1", "w2"], [20]).spread.facts)
    assert scale == pytest.approx(900.0, rel=0.3)


def test_pushes_that_cannot_be_measured_change_nothing() -> None:
    trainer = pushed(Pushing(1e-4, 1e-2), ["w1", "w2"], [20], count=40)
    before = trainer.spread.facts
    trainer.push("w1", 0)
    trainer.base["Network/0/net/bias"] = np.full(300, np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        trainer.push("w3", 20)
    state = cast(ReplicaState, SimpleNamespace(modules={}))
    trainer.spread.add("w4", ReplicaPart(), state, 20)
    assert trainer.spread.facts == before


def test_tensors_come_in_any_order() -> None:
    """The order of tensors in a version from a file differs from that of a merged version."""
    one, other = (Pushing(1e-4, 1e-2) for _ in range(2))
    add = other.spread.add

    def turned(worker: str, part: ReplicaPart, base: ReplicaState, vertices: int) -> None:
        order = sorted(part.modules[KEY], reverse=len(worker) == 2)
        add(worker, ReplicaPart({KEY: {name: part.modules[KEY][name] for name in order}}), base, vertices)

    other.spread.add = turned  # type: ignore[method-assign]
    workers = ["w1", "w02", "w3"]
    assert pushed(one, workers, [20]).spread.facts == pushed(other, workers, [20]).spread.facts


def test_it_is_written_down_now_and_then() -> None:
    trainer, due = Pushing(1e-4, 1e-2), 0
    for k in range(3 * REPORT_EVERY):
        trainer.push(f"w{k % 2}", 20)
        due += trainer.spread.due
    assert due == 3


def test_a_large_replica_costs_no_more_than_its_sample() -> None:
    """With 25 million parameters only a sample is measured."""
    large = np.zeros(25_000_000, np.float32)
    state = cast(ReplicaState, SimpleNamespace(modules={KEY: SimpleNamespace(tensors={"w": large})}))
    spread = PushSpread(lambda name: True)
    sample = spread._sampled(ReplicaPart({KEY: {"w": large}}), state)
    assert sample is not None and MAX_COORDINATES / 2 <= len(sample) <= MAX_COORDINATES
    began = time.process_time()
    for k in range(20):
        spread.add(f"w{k % 2}", ReplicaPart({KEY: {"w": large}}), state, 10)
    assert time.process_time() - began < 1.0


def test_a_run_says_how_many_workers_help(tmp_path: Path) -> None:
    program, costs = Path(__file__).parents[2] / "programs" / "perceptron.py", Costs(exec_s=0.01, push_s=0.02)
    settings = Settings(program, "simulated", 4, epochs=4, push_every=32, options=SimulatedOptions())
    play_scenario(settings, Scenario(Steady(4), costs), tmp_path / "run", trainer=Trainer(program, costs))
    found = report(tmp_path / "run")
    assert found.helpful is not None and 1 <= found.helpful < 10_000
    assert found.helpful_because is not None and "and a push has " in found.helpful_because
    with opened(tmp_path / "run") as ledger:
        progress = read_progress(ledger, 0.0)
        said = ledger.execute("SELECT count(*) FROM events WHERE topic = 'helpful'").fetchone()[0]
    assert (progress.helpful, progress.helpful_because) == (found.helpful, found.helpful_because)
    assert said == 4  # at the end of each epoch

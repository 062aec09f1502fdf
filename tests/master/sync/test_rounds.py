"""Rounds: when they end, and that each step is merged exactly once, whatever dies."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from chunk_model.traces import TraceEvent
from gridml.protocol.messages import NO_PUSH
from master.backends.script import Replay, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_credits
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.versions import ReplicaState, Versions
from master.sync.rounds import QUORUM, WINDOW, RoundFacts, ends
from master.views.render import as_text
from master.views.report import report
from remote import courier
from remote.stepped import Trainer
from tests.support.effort import examples

pytest.importorskip("torch")
COUNT, EPOCHS = 600, 3

# Each vertex moves every weight by exactly 1, so the sum of all steps is the number of vertices that were merged.
PROGRAM = f"""
from dataclasses import dataclass
from functools import partial
from typing import ClassVar
import numpy as np, torch, gridml


@dataclass(frozen=True)
class Tally(gridml.Aggregate):
    near: ClassVar[bool] = False
    is_contribution: ClassVar[bool] = True
    gathers: ClassVar[bool] = True

    def buffers(self, value):
        return {{"steps": np.zeros_like(value), "pushes": np.zeros((), np.int64)}}

    def merge(self, t):
        t.out_buffers["steps"][...] = t.buffers["steps"] + (t.replica - t.base)
        t.out_buffers["pushes"][...] = t.buffers["pushes"] + 1
        t.out[...] = t.value
        return float(((t.replica - t.base) ** 2).sum())

    def end_round(self, value, buffers, share):
        if not buffers["pushes"]:
            return False
        value += buffers["steps"]
        for buffer in buffers.values():
            buffer.fill(0)
        return True

    def flush(self, value, buffers, live):
        return self.end_round(value, buffers, 1.0)


class Whole(type(gridml.rounds())):  # its steps are not shortened where their lengths differ
    near: ClassVar[bool] = False
    is_contribution: ClassVar[bool] = True


class Network(gridml.Vertex):
    model = gridml.module(partial(torch.nn.Linear, 3, 2, dtype=torch.float64), partial(torch.optim.SGD, lr=1.0))
    aggregate = RULE


class Item(gridml.Vertex):
    seen = gridml.array("float64")
    aggregate = gridml.add()


class Point(gridml.Vertex):
    place = gridml.array("float64", (3,))
    network = gridml.edge(Network)
    item = gridml.edge(Item)


@gridml.update(batch=16, min_batch=4, rate="fixed")
def train(points: gridml.Batch[Point], network: Network, items: gridml.Batch[Item]) -> None:
    items.seen.index_add_(0, torch.as_tensor(points.item.index), torch.ones(len(points), dtype=items.seen.dtype))
    LOSS


def graph():
    g = gridml.Graph()
    items = g.add(Item, seen=np.zeros(40))[np.arange({COUNT}) % 40]
    g.add(Point, place=np.random.default_rng(1).normal(size=({COUNT}, 3)), network=g.add(Network), item=items)
    return g


program = gridml.Program(graph, train, epochs={EPOCHS}, schedule=gridml.constant)
"""
COUNTED = "network.step(-len(points) * sum(p.sum() for p in network.model.parameters()))"
LEARNT = "network.step((network.model(points.place) - points.place[:, :2]).square().mean())"


def played(
    root: Path, scenario: Scenario, rule: str = "Tally()", loss: str = COUNTED, push_every: int | None = None
) -> Path:
    program = root / "program.py"
    root.mkdir(parents=True, exist_ok=True)
    program.write_text(PROGRAM.replace("RULE", rule).replace("LOSS", loss))
    chosen = Settings(
        program, "simulated", scenario.script.slots, seed=scenario.seed, push_every=push_every,
        options=SimulatedOptions(None, None),
    )  # fmt: skip
    play_scenario(chosen, scenario, root / "run", trainer=Trainer(program, scenario.costs, scenario.seed))
    verify_credits(root / "run")
    return root / "run"


def newest(run: Path) -> ReplicaState:
    with opened(run) as ledger:
        (version,) = ledger.execute("SELECT max(version) FROM versions").fetchone()
    return Versions(RunDirectory(run).versions).read(version, None)


def rounds_of(run: Path) -> int:
    with opened(run) as ledger:
        (ended,) = ledger.execute("SELECT count(*) FROM versions WHERE pushes = 0 AND version > 0").fetchone()
    return int(ended)


def assert_counted(run: Path) -> None:
    """Each vertex was merged once, in the gathered tensors and in the rows that are added as they come."""
    state = newest(run)
    for tensor in state.modules["Network", 0].tensors.values():
        np.testing.assert_allclose(tensor, COUNT * EPOCHS, atol=1)  # torch's first weights are below 0.6
    np.testing.assert_array_equal(state.arrays["Item"]["seen"], COUNT * EPOCHS / 40)


COSTS = Costs(exec_s=0.01, start_s=0.1, push_s=0.2, boot_s=1.0)


def test_every_step_is_merged_once_while_workers_train_on(tmp_path: Path) -> None:
    run = played(tmp_path, Scenario(Steady(4), COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=1))
    assert rounds_of(run) > 5
    said = report(run)
    assert said.rounds is not None and said.rounds["ended"] >= rounds_of(run)
    assert re.search(rf"^rounds +{said.rounds['ended']}\b", as_text(said), re.M)
    assert_counted(run)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**20), workers=st.integers(1, 6), life_s=st.sampled_from([1.5, 4.0, 20.0]))
def test_no_kill_of_workers_or_masters_loses_or_repeats_a_step(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int, life_s: float
) -> None:
    # Syncs are sent again within a round.
    faults = Chances(lose=0.03, repeat=0.05, corrupt=0.02, delay_s=1.0)
    scenario = Scenario(
        ScriptedLives(workers, Exponential(life_s), seed, grace_s=0.5, late=0),
        COSTS,
        MachineSpeeds(sigma=0.5),
        faults=faults,
        crash_every_s=6.0,
        travel_s=0.05,
        seed=seed,
    )
    with mock.patch.object(courier, "RESEND_S", 0.4):
        run = played(tmp_path_factory.mktemp("rounds"), scenario)
    assert_counted(run)


def depth(run: Path) -> float:
    """Return how many vertices the weights have moved by, one after another."""
    return float(np.mean(newest(run).modules["Network", 0].tensors["Network/0/model/weight"]))


def test_a_worker_that_is_left_alone_goes_on_by_itself(tmp_path: Path) -> None:
    """One of two leaves after 5 s of 20: from then on the steps of the other are taken whole."""
    trace = (TraceEvent(0.0, "a", True), TraceEvent(0.0, "b", True), TraceEvent(5.0, "b", False))
    run = played(tmp_path, Scenario(Replay(trace), COSTS, travel_s=0.05, seed=1), "Whole()")
    assert depth(run) > 0.75 * COUNT * EPOCHS


def test_workers_that_push_at_the_ends_of_chunks_only_have_rounds_of_their_own(tmp_path: Path) -> None:
    scenario = Scenario(Steady(3), COSTS, travel_s=0.05, seed=1)
    run = played(tmp_path, scenario, "Whole()", push_every=NO_PUSH)
    assert 0.2 * COUNT * EPOCHS < depth(run) < 0.8 * COUNT * EPOCHS


def test_the_mean_of_a_round_is_as_deep_as_its_workers_however_often_they_push(tmp_path: Path) -> None:
    scenario = Scenario(Steady(4), COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=1)
    run = played(tmp_path, scenario, "Whole()")
    # A quarter each, and faster workers have more; that a worker pushes twice in a round must not halve its step.
    assert 0.95 < depth(run) / (COUNT * EPOCHS / 4) < 1.35


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    lives = ScriptedLives(4, Exponential(5.0), 3, grace_s=0.5, late=0)
    scenario = Scenario(lives, COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, crash_every_s=8.0, seed=3)
    ends_of = [newest(played(tmp_path / name, scenario, "gridml.rounds()", LEARNT)) for name in ("one", "two")]
    for name, tensor in ends_of[0].modules["Network", 0].tensors.items():
        np.testing.assert_array_equal(tensor, ends_of[1].modules["Network", 0].tensors[name])


def test_one_worker_is_the_plain_loop_under_rounds(tmp_path: Path) -> None:
    scenario = Scenario(Steady(1), COSTS, travel_s=0.05, seed=2)
    mine = newest(played(tmp_path / "rounds", scenario, "gridml.rounds(momentum=0.5)", LEARNT))
    plain = newest(played(tmp_path / "plain", scenario, "gridml.stale_mean()", LEARNT))
    for name, tensor in mine.modules["Network", 0].tensors.items():
        np.testing.assert_array_equal(tensor, plain.modules["Network", 0].tensors[name])


@given(st.floats(0, 100), st.floats(0.01, 10), st.integers(0, 9), st.integers(0, 9))
def test_a_round_ends_once_and_waits_for_nobody_for_long(
    late_s: float, interval_s: float, pushed: int, waited_for: int
) -> None:
    is_over, reason = ends(RoundFacts(late_s, 0.0, interval_s, pushed, waited_for))
    assert reason
    if not waited_for:
        assert is_over
    elif late_s < WINDOW * interval_s:
        assert not is_over
    elif pushed >= QUORUM * (pushed + waited_for) or late_s >= interval_s:
        assert is_over

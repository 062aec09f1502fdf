"""No gradient accumulated for a later step is lost or counted twice under kills: every vertex moves a number of its own
by one, with a rule that adds up steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.protocol import bundle
from master.backends.script import ScriptedLives
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from remote.stepped import Trainer

COUNT, EPOCHS = 301, 3
PROGRAM = f"""
from functools import partial

import numpy as np
import torch

import gridml


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.of = torch.nn.Parameter(torch.zeros({COUNT}))


class Network(gridml.Vertex):
    model = gridml.module(Counts, partial(torch.optim.SGD, lr=4.0))
    aggregate = gridml.add()


class Point(gridml.Vertex):
    number = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=4, min_batch=4 DECLARED)
def train(points: gridml.Batch[Point], network: Network, at: gridml.Progress) -> None:
    network.step(network.model.of[points.number].sum(), accumulate=4)


def graph():
    g = gridml.Graph()
    g.add(Point, number=np.arange({COUNT}), network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs={EPOCHS}, schedule=gridml.constant)
"""


@pytest.mark.parametrize("declared", ["", ", accumulate=4"], ids=["in step alone", "for chunks, too"])
@pytest.mark.parametrize("seed", range(2))
def test_every_gradient_is_in_the_replica_once_for_each_credit(tmp_path: Path, seed: int, declared: str) -> None:
    source = tmp_path / "gathered.py"
    source.write_text(PROGRAM.replace("DECLARED", declared))
    costs = Costs(exec_s=0.1, start_s=0.5, push_s=0.05)
    faults = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=1.0)
    lives = ScriptedLives(4, Exponential(8.0), seed=seed, graceful_share=0.5, grace_s=2.0)
    scenario = Scenario(lives, costs, faults=faults, crash_every_s=25.0, restart_s=1.0, turn_s=0.1, seed=seed)
    settings = Settings(source, backend="simulated", workers=4, seed=seed, chunk=50, push_every=20, steps_each=0)
    world = play_scenario(settings, scenario, tmp_path / "run", trainer=Trainer(source, costs, seed))
    assert verify_credits(tmp_path / "run").credited == COUNT * EPOCHS
    assert world.pool.tally.kills > 5
    _, final = bundle.decode((tmp_path / "run" / "final.safetensors").read_bytes())
    np.testing.assert_array_equal(final["Network/0/model/of"], np.full(COUNT, -EPOCHS, np.float32))

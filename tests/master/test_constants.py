"""Constants with infinities, such as the mask of a causal transformer, stay as they are and cause no error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.errors import UserCodeError
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.versions import Versions
from remote.stepped import Trainer

pytest.importorskip("torch")
PROGRAM = """
from functools import partial
import numpy as np, torch, gridml


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.register_buffer("mask", torch.full((4, 4), float("-inf"), dtype=torch.float64).triu(1))
        self.register_buffer("smallest", torch.full((1,), float("inf")))

    def forward(self, x):
        return (self.layer(x) @ torch.softmax(self.mask, 1))


class Network(gridml.Vertex):
    model = gridml.module(Masked, partial(torch.optim.SGD, lr=0.01))
    AGGREGATE


class Point(gridml.Vertex):
    place = gridml.array("float64", (4,))
    network = gridml.edge(Network)


@gridml.update(batch=16, min_batch=8)
def train(points: gridml.Batch[Point], network: Network) -> None:
    CHANGE
    network.step((network.model(points.place) - points.place).square().mean())


def graph():
    g = gridml.Graph()
    g.add(Point, place=np.random.default_rng(1).normal(size=(600, 4)), network=g.add(Network))
    return g


def evaluate(network: Network):
    x = torch.tensor(np.random.default_rng(2).normal(size=(100, 4)))
    with torch.no_grad():
        return {"error": float((network.model(x) - x).square().mean())}


program = gridml.Program(graph, train, evaluate, epochs=4)
"""
OWN = "def aggregate(self, replica, merge):\n        self.model.average_with(replica.model, 0.5)"
RULES = [
    *(
        f"aggregate = gridml.{rule}()"
        for rule in ("stale_mean", "mean", "clipped", "easgd", "fedbuff", "nesterov", "rounds")
    )
]


def played(tmp_path: Path, text: str, compress: str = "none") -> Path:
    program, root = tmp_path / "program.py", tmp_path / "run"
    program.write_text(text)
    costs = Costs(exec_s=0.01, start_s=0.1, push_s=0.1, boot_s=1.0)
    settings = Settings(
        program, "simulated", 4, chunk=50, seed=1, compress=compress, options=SimulatedOptions(None, None)
    )  # fmt: skip
    play_scenario(settings, Scenario(Steady(4), costs, travel_s=0.05, seed=1), root, trainer=Trainer(program, costs, 1))
    return root


@pytest.mark.parametrize("rule", [*RULES, OWN])
@pytest.mark.parametrize("compress", ["none", "int8"])
def test_a_mask_stays_a_mask(tmp_path: Path, rule: str, compress: str) -> None:
    root = played(tmp_path, PROGRAM.replace("AGGREGATE", rule).replace("CHANGE", "pass"), compress)
    with opened(root) as ledger:
        (refused,) = ledger.execute("SELECT count(*) FROM events WHERE topic IN ('failure', 'warning')").fetchone()
        errors = [json.loads(row[0])["error"] for row in ledger.execute("SELECT metrics FROM epochs ORDER BY epoch")]
        (version,) = ledger.execute("SELECT max(version) FROM versions").fetchone()
    assert refused == 0
    assert errors[-1] < errors[0] < 2
    state = Versions(RunDirectory(root).versions).read(version, None)
    tensors = state.modules["Network", 0].tensors
    np.testing.assert_array_equal(tensors["Network/0/model/mask"], np.triu(np.full((4, 4), -np.inf), 1))
    assert tensors["Network/0/model/smallest"] == np.inf


def test_a_constant_that_f_changes_is_refused_by_its_name(tmp_path: Path) -> None:
    text = PROGRAM.replace("AGGREGATE", "").replace("CHANGE", "network.model.smallest.fill_(float('-inf'))")
    with pytest.raises(UserCodeError, match="Network/0/model/smallest is not finite"):
        played(tmp_path, text)


def test_repetitions_of_a_program_with_a_mask_agree(tmp_path: Path) -> None:
    program, root = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM.replace("AGGREGATE", "").replace("CHANGE", "pass"))
    costs = Costs(exec_s=0.01, start_s=0.1, push_s=0.1, boot_s=1.0)
    settings = Settings(
        program, "simulated", 4, chunk=50, seed=1, spot_checks=0.3, options=SimulatedOptions(None, None)
    )
    play_scenario(settings, Scenario(Steady(4), costs, travel_s=0.05, seed=1), root, trainer=Trainer(program, costs, 1))
    with opened(root) as ledger:
        said = [text for (text,) in ledger.execute("SELECT text FROM events WHERE topic LIKE '%check%'")]
    assert said
    assert not any("no two repetitions agree" in text for text in said), said

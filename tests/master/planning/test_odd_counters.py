"""Buffers that `gridml check` reports as counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from master.planning.program_warnings import counter_growth
from master.planning.trial import try_out

PROGRAM = """
import torch
from torch import nn
import torch.nn.functional as F
import numpy as np
import gridml

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("order", torch.arange(4))
        self.register_buffer("begun", torch.zeros(()))
        self.inner = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.inner.register_buffer("classes", torch.zeros(3))

    def forward(self, x, y):
        with torch.no_grad():
            self.seen += len(x)
            self.batches += 1
            self.begun.fill_(1)
            self.mean.lerp_(x.mean(0), 0.1)
            self.inner.classes += torch.bincount(y, minlength=3)
        return self.inner(x[:, self.order])

class Net(gridml.Vertex):
    model = gridml.module(Model, lambda weights: torch.optim.SGD(weights, lr=0.1))
    aggregate = AGGREGATE

class Row(gridml.Vertex):
    x = gridml.array("float32", (4,))
    y = gridml.array("int64")
    net = gridml.edge(Net)

@gridml.update(batch=16)
def f(rows: gridml.Batch[Row], net: Net) -> None:
    net.step(F.cross_entropy(net.model(rows.x, rows.y), rows.y))

def graph():
    rng = np.random.default_rng(0)
    g = gridml.Graph()
    g.add(Row, x=rng.normal(size=(64, 4)).astype("float32"), y=rng.integers(3, size=64), net=g.add(Net))
    return g

program = gridml.Program(graph, f, lambda net: {}, epochs=1)
"""


def odd(folder: Path, aggregate: str) -> list[str]:
    file = folder / "counting.py"
    file.write_text(
        PROGRAM.replace("AGGREGATE", aggregate)
        .replace("lambda net: {}", "evaluate")
        .replace("program =", "def evaluate(net: Net):\n    return {'seen': float(net.model.seen)}\n\nprogram =")
    )
    return [each for each in try_out(file).odd if "not summed" in each]


def test_what_f_counts_is_said_with_how_to_have_it_added(tmp_path: Path) -> None:
    said = odd(tmp_path, "gridml.stale_mean()")
    assert [each.split()[0].rpartition("/")[2] for each in said] == ["seen", "batches", "inner.classes"]
    assert "grows by the number of vertices with each batch, and is averaged (StaleMean)" in said[0]
    assert 'gridml.by_name({"*/seen": gridml.add()' in said[0]
    assert "merged by the maximum (Maximum)" in said[1]
    assert '"*.classes": gridml.add()' in said[2]


def test_what_the_advice_says_is_the_end_of_it(tmp_path: Path) -> None:
    rules = '{"*/seen": gridml.add(), "*/batches": gridml.add(), "*.classes": gridml.add()}'
    assert odd(tmp_path, f"gridml.by_name({rules})") == []
    assert odd(tmp_path, "gridml.add()") == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([0.0, 16.0, 32.0], "number of vertices"),
        ([0, 16, 32], "number of vertices"),
        ([5.0, 6.0, 7.0], "whole numbers"),
        ([[0, 0], [1, 3], [1, 9]], "whole numbers"),
        ([0.0, 0.5, 0.75], None),
        ([0.0, 1.0, 1.0], None),
        ([3.0, 2.0, 1.0], None),
        ([0.0, 0.0, 0.0], None),
        ([-np.inf, 255.0, 255.0], None),
        ([0.0, 1.5, 3.0], None),
    ],
)
def test_a_counter_grows_by_whole_numbers_in_each_batch(values: list[object], says: str | None) -> None:
    growth = counter_growth("Net/0/model/n", [np.array(each) for each in values], [16, 16])
    assert (growth is None) == (says is None)
    assert says is None or says in str(growth)

"""docs/data.md: random numbers that depend on the vertex and the epoch alone, not on the worker."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import gridml

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text("utf-8")
COUNT, EPOCHS = 400, 3
PROGRAM = f"""
import numpy as np

import gridml


class Total(gridml.Vertex):
    value = gridml.array("int64", ({EPOCHS},))
    aggregate = gridml.add()


class Item(gridml.Vertex):
    total = gridml.edge(Total)


@gridml.update(batch=10)
def train(images: gridml.Batch[Item], totals: gridml.Batch[Total], at: gridml.Progress) -> None:
SHIFTS
    totals.value[0, at.epoch] += sum(shifts)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Item, {COUNT}, total=g.add(Total, value=np.zeros((1, {EPOCHS}), np.int64)))
    return g


program = gridml.Program(graph, train, epochs={EPOCHS})
"""


def test_a_vertex_draws_the_same_whoever_trains_it(tmp_path: Path) -> None:
    line = re.search(r"^    shifts = .*$", PAGE, re.M)
    assert line is not None
    program = tmp_path / "draws.py"
    program.write_text(PROGRAM.replace("SHIFTS", line[0]))
    run = gridml.simulate(
        program,
        workers=4,
        cost="t_x=0.05,push=0.1",
        lifetime="exponential(8s)",
        seed=2,
        run_dir=tmp_path / "run",
    )
    drawn = [sum(np.random.default_rng((1, e, i)).integers(-2, 3) for i in range(COUNT)) for e in range(EPOCHS)]
    assert gridml.load(run)["Total.value"].reshape(-1).tolist() == drawn
    assert run.report().wasted > 0  # vertices were trained again

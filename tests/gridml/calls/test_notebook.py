"""A notebook whose cells define a program and run it, in a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
import numpy as np
import torch

import gridml
from helper import scaled

COUNT = 32
""",
    """
class Network(gridml.Vertex):
    model = gridml.module(lambda: torch.nn.Linear(WIDTH, 1), lambda p: torch.optim.SGD(p, lr=0.1))


class Point(gridml.Vertex):
    values = gridml.array("float32", (3,))
    network = gridml.edge(Network)
""",
    "%config InlineBackend.figure_format = 'svg'\nWIDTH = 3",
    """
@gridml.update(batch=8)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step((network.model(points.values) ** 2).mean())


def graph():
    g = gridml.Graph()
    g.add(Point, values=scaled(np.ones((COUNT, WIDTH), np.float32)), network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=1)
""",
    "run = gridml.run(program, workers=1, run_dir='run')",
    "model = torch.nn.Linear(WIDTH, 1)\nmodel.load_state_dict(gridml.load(run)['Network.model'])",
    "print(run.status, run.report().credited)",
]


@pytest.mark.real
def test_a_program_in_cells_is_run(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def scaled(values):\n    return values * 2\n")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output for output in notebook.cells[4].outputs if output.output_type == "display_data"]
    assert len(shown) == 1  # it changes in place
    assert "every vertex of 32 is credited once" in shown[0].data["text/html"]
    assert notebook.cells[-1].outputs[0].text == "finished 32\n"
    kept = tmp_path / "run" / "program"
    assert sorted(path.name for path in kept.iterdir()) == ["helper.py", "notebook.py"]
    assert "gridml.run" not in (kept / "notebook.py").read_text()

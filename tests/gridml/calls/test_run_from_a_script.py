"""A script that makes a program, runs it on real workers, and goes on with what they trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json
import sys

import torch
from torch import nn

import gridml


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, values):
        return self.second(self.first(values))


class Network(gridml.Vertex):
    model = gridml.module(Tied, lambda parameters: torch.optim.SGD(parameters, lr=0.01))


class Point(gridml.Vertex):
    values = gridml.array("float32", (4,))
    network = gridml.edge(Network)


@gridml.update(batch=8)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step((network.model(points.values) ** 2).mean())


def graph():
    g = gridml.Graph()
    values = torch.randn(64, 4, generator=torch.Generator().manual_seed(1)).numpy()
    g.add(Point, values=values, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return {"norm": network.model.first.weight.norm().item()}


program = gridml.Program(graph, train, evaluate, epochs=2)
"""
GUARDED = """
if __name__ == "__main__":
    torch.set_num_threads(2)
    topics = []
    run = gridml.run(program, workers=1, run_dir="run", on_event=lambda event: topics.append(event.topic))
    model = Tied()
    model.load_state_dict(gridml.load(run)["Network.model"], strict=True)
    after = gridml.resume(run, epochs=3, display="none")
    print(json.dumps({
        "status": run.status, "topics": topics, "threads": torch.get_num_threads(),
        "tied": model.second.weight is model.first.weight, "norm": model.first.weight.norm().item(),
        "metrics": after.metrics(), "credited": after.report().credited,
    }))
"""


def executed(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.real
def test_a_script_runs_its_own_program(tmp_path: Path) -> None:
    done = executed(tmp_path, SCRIPT + GUARDED)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["status"] == "finished" and said["threads"] == 2 and said["tied"]
    assert said["topics"][0] == "started" and said["topics"][-1] == "finished"
    assert [each["epoch"] for each in said["metrics"]] == [1, 2, 3] and said["credited"] == 3 * 64
    assert said["norm"] == pytest.approx(said["metrics"][1]["norm"])
    assert "finished  every vertex of 128 is credited once" in done.stdout


@pytest.mark.real
def test_a_script_that_would_start_itself_again_is_told_to_guard_the_call(tmp_path: Path) -> None:
    done = executed(tmp_path, f"{SCRIPT}\ngridml.run(program, workers=1, run_dir='run')\n")
    assert done.returncode == 1
    assert done.stderr.count('Put the call under  if __name__ == "__main__":  in that file.') == 1
    assert not (tmp_path / "run").exists()

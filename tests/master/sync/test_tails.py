"""A run keeps the versions of its tails, and evaluates and keeps the mean over them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.protocol import bundle
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.store.versions import Versions
from master.sync.version_use import MAX_TAIL_VERSIONS, VersionKeeper
from remote.stepped import Trainer

VERTICES, EPOCHS, BATCH = 1_024, 3, 16
NOTHING: Mapping[str, str] = {}
WEIGHT = "Line/0/model/weight"
PROGRAM = """
    from functools import partial
    import numpy as np
    import torch
    from torch import nn
    import gridml

    class Line(gridml.Vertex):
        model = gridml.module(lambda: nn.Linear(3, 1), partial(torch.optim.SGD, lr=0.1))

    class Point(gridml.Vertex):
        x = gridml.array("float32", (3,))
        line = gridml.edge(Line)

    @gridml.update(batch=16)
    def train(points: gridml.Batch[Point], line: Line) -> None:
        line.step((line.model(points.x) - points.x.prod(1, keepdim=True)).square().mean())

    def graph() -> gridml.Graph:
        g = gridml.Graph()
        g.add(Point, x=np.random.default_rng(1).normal(size=(1_024, 3)).astype(np.float32), line=g.add(Line))
        return g

    def by_epoch(at: gridml.Progress) -> float:
        return 0.1 ** (4 * at.epoch)

    def evaluate(line: Line) -> dict[str, float]:
        return {"weight": line.model.weight.flatten().tolist(), "size": line.model.weight.norm().item()}

    program = gridml.Program(graph, train, evaluate, epochs=3, KEYWORDS)
"""


def play(folder: Path, keywords: str, workers: int = 3, replaced: Mapping[str, str] = NOTHING) -> list[Any]:
    """Return the evaluated weights by epoch; the last ones are the saved ones. Words of the program are replaced."""
    folder.mkdir()
    source, text = folder / "lines.py", PROGRAM.replace("KEYWORDS", keywords)
    for old, new in replaced.items():
        text = text.replace(old, new)
    source.write_text(textwrap.dedent(text))
    costs = Costs(exec_s=0.01, start_s=0.5, push_s=0.02, boot_s=1.0)
    scenario = Scenario(Steady(workers), costs, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=2)
    settings = Settings(source, "simulated", workers, seed=2, push_every=BATCH, options=SimulatedOptions(None, None))
    play_scenario(settings, scenario, folder / "run", trainer=Trainer(source, costs, 2))
    with opened(folder / "run") as ledger:
        rows = ledger.execute("SELECT metrics FROM epochs ORDER BY epoch").fetchall()
    _, final = bundle.decode((folder / "run" / "final.safetensors").read_bytes())
    weights = [json.loads(metrics)["weight"] for (metrics,) in rows if metrics is not None]
    assert not weights or weights[-1] == final[WEIGHT].ravel().tolist()
    return weights


def versions_of(root: Path) -> tuple[dict[int, int], list[int], dict[int, Any]]:
    """(vertices credited by kept version, versions that end epochs, weights by kept version)."""
    with opened(root) as ledger:
        credited = dict(ledger.execute("SELECT version, credited FROM versions WHERE kept").fetchall())
        ends = [version for (version,) in ledger.execute("SELECT version FROM epochs ORDER BY epoch")]
    versions = Versions(root / "versions")
    return credited, ends, {v: dict(versions.read(v, None).tensors())[WEIGHT].ravel() for v in credited}


PROBED = {
    "class Point(": "class Probe(Line):\n        pass\n\n    class Point(",
    "evaluate(line": "evaluate(probe: Probe, line",
    "g = gridml.Graph()": "g = gridml.Graph(); g.add(Probe)",
}
CONSTANT = "schedule=gridml.constant"


def test_what_is_evaluated_is_the_mean_over_the_tail_as_if_all_versions_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = play(tmp_path / "tidied", CONSTANT)
    assert len(versions_of(tmp_path / "tidied" / "run")[0]) < 60
    monkeypatch.setattr(VersionKeeper, "tidy", lambda self, now: None)
    assert play(tmp_path / "all", CONSTANT) == evaluated
    credited, ends, weights = versions_of(tmp_path / "all" / "run")
    assert len(credited) > 120
    for epoch, end in enumerate(ends):
        at = (epoch + 1) * VERTICES
        width = int(0.25 * at * at / (EPOCHS * VERTICES))
        pieces = [credited[end] // (width // MAX_TAIL_VERSIONS) - back for back in range(MAX_TAIL_VERSIONS)]
        within = [
            [v for v in credited if v < end and credited[v] // (width // MAX_TAIL_VERSIONS) == piece]
            for piece in pieces
        ]
        tail = sorted(min(versions) for versions in within if versions)[1 - MAX_TAIL_VERSIONS :]
        assert len(tail) >= (MAX_TAIL_VERSIONS // 2 if epoch else 1)  # the first is young
        expected = np.average([weights[v] for v in (*tail, end)], axis=0, weights=range(1, len(tail) + 2))
        np.testing.assert_allclose(evaluated[epoch], expected, rtol=1e-6)
        assert not np.allclose(weights[end], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "keywords",
    [
        "schedule=gridml.linear_decay",
        "schedule=gridml.torch_schedule(partial(torch.optim.lr_scheduler.StepLR, step_size=30))",
        "schedule=by_epoch",
    ],
)
def test_a_rate_that_has_fallen_to_nothing_and_one_that_is_not_known_have_no_tail(
    tmp_path: Path, keywords: str
) -> None:
    evaluated = play(tmp_path / "run", keywords)
    _, ends, weights = versions_of(tmp_path / "run" / "run")
    np.testing.assert_array_equal(evaluated[-1], weights[ends[-1]])


def test_without_evaluate_no_more_is_kept_in_a_longer_run(tmp_path: Path) -> None:
    kept = []
    for epochs in (3, 9):
        folder = tmp_path / str(epochs)
        assert play(folder, CONSTANT, replaced={"train, evaluate": "train", "epochs=3": f"epochs={epochs}"}) == []
        ends = versions_of(folder / "run")
        kept.append(len(ends[0].keys() - ends[1]))
    assert kept[1] <= kept[0] + MAX_TAIL_VERSIONS


def test_what_evaluate_alone_takes_is_as_it_was(tmp_path: Path) -> None:
    evaluated = play(tmp_path / "probed", CONSTANT, replaced=PROBED)
    assert len(evaluated) == EPOCHS


def test_one_worker_is_the_loop(tmp_path: Path) -> None:
    evaluated = play(tmp_path / "one", CONSTANT, workers=1)
    _, ends, weights = versions_of(tmp_path / "one" / "run")
    for values, end in zip(evaluated, ends, strict=True):
        np.testing.assert_array_equal(values, weights[end])


def test_the_best_replica_is_the_one_that_was_evaluated(tmp_path: Path) -> None:
    evaluated = play(tmp_path / "best", f"{CONSTANT}, keep='best:max:size'")
    _, best = bundle.decode((tmp_path / "best" / "run" / "best.safetensors").read_bytes())
    assert best[WEIGHT].ravel().tolist() in evaluated

"""Recalibration: running statistics belong to the weights that are evaluated and kept, and nothing else changes."""

from __future__ import annotations

import json
import random
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from chunk_model.goodput import Costs
from gridml.aggregates import VertexState
from gridml.model.loading import load
from gridml.protocol import bundle
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.evaluation import recalibration
from master.evaluation.recalibration import Recalibration, with_statistics
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.store.spec import RunSpec
from master.store.versions import ReplicaState, Versions, initial
from remote.stepped import Trainer

ROWS, BATCH = 96, 16
X = np.random.default_rng(0).normal((3.0, -2.0), (1.0, 5.0), (ROWS, 2)).astype(np.float32)
ENTRY, INNER = "Network/0/model/0.", "Network/0/model/2."


def network() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


class Network(gridml.Vertex):
    model = gridml.module(network, partial(torch.optim.SGD, lr=0.1, momentum=0.9))


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Point(gridml.Vertex):
    x = gridml.array("float32", (2,))
    seen = gridml.array("int64", mutable=True)
    network = gridml.edge(Network)
    word = gridml.edge(Word)
    next = gridml.edge("Point")


def train(points: gridml.Batch[Point], network: Network, words: gridml.Batch[Word]) -> None:
    points.seen[:] += 1
    words.count += 1
    network.step(network.model(points.x).square().mean())
    network.model[1].bias.detach().add_(1.0)  # type: ignore[index, operator, union-attr]


def graph(chain: int = 1) -> gridml.Graph:
    """Points in components of `chain`."""
    g = gridml.Graph()
    following = np.arange(ROWS) + np.where(np.arange(ROWS) % chain == chain - 1, 1 - chain, 1)
    one = g.add(Network)
    g.add(Word, count=np.array([1, 2]))
    g.add(Point, x=X, seen=np.zeros(ROWS, np.int64), network=one, word=np.arange(ROWS) % 2, next=following)
    return g


def spec_of(g: gridml.Graph, f: Any = train, *, batch: int = BATCH, seed: int = 1) -> RunSpec:
    return RunSpec(Settings(Path(__file__), seed=seed), gridml.Program(lambda: g, gridml.update(batch=batch)(f)), g)


def merged(g: gridml.Graph) -> ReplicaState:
    """A replica with arbitrary statistics."""
    state = initial(g, 0)
    tensors = state.modules["Network", 0].tensors
    for layer in (ENTRY, INNER):
        tensors[f"{layer}running_mean"] += 7.0
        tensors[f"{layer}running_var"] *= 9.0
        tensors[f"{layer}num_batches_tracked"] += 41
    return state


def recalibrated(spec: RunSpec, state: ReplicaState, version: int = 5) -> tuple[ReplicaState, str | None]:
    statistics, problem = Recalibration(spec).gather(version, state)
    return with_statistics(state, statistics) if statistics else state, problem


def tensors_of(state: ReplicaState) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.copy() for name, tensor in state.tensors()}


@pytest.mark.parametrize("chain", [1, 4, 24, 48])
def test_statistics_are_those_of_the_rows_under_the_same_parameters(chain: int) -> None:
    g = graph(chain)
    state, problem = recalibrated(spec_of(g), merged(g))
    assert problem is None
    t = tensors_of(state)
    np.testing.assert_allclose(t[f"{ENTRY}running_mean"], X.mean(0), rtol=1e-4)
    np.testing.assert_allclose(t[f"{ENTRY}running_var"], X.var(0), rtol=0.1)  # the mean of that within batches
    batches = (X - X.mean(0)) / X.std(0)
    inner = batches @ t["Network/0/model/1.weight"].T + t["Network/0/model/1.bias"]
    np.testing.assert_allclose(t[f"{INNER}running_mean"], inner.mean(0), atol=1e-4)
    np.testing.assert_allclose(t[f"{INNER}running_var"], inner.var(0), rtol=0.2)


def test_nothing_else_changes() -> None:
    g, before = graph(), merged(graph())
    state = merged(g)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    after, problem = recalibrated(spec_of(g), state)
    assert problem is None
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected
    assert not g.tables["Point"].columns["seen"].any()
    for name, tensor in before.tensors():
        np.testing.assert_array_equal(tensors_of(state)[name], tensor, err_msg=name)
        if "running" not in name:
            np.testing.assert_array_equal(tensors_of(after)[name], tensor, err_msg=name)


def test_the_draw_is_a_function_of_the_seed() -> None:
    def statistics(seed: int, version: int = 5) -> np.ndarray[Any, Any]:
        state, _ = recalibrated(spec_of(g, batch=4, seed=seed), merged(g), version)
        return tensors_of(state)[f"{ENTRY}running_mean"]

    g = graph()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recalibration, "MIN_ROWS", 40)
        np.testing.assert_array_equal(statistics(1), statistics(1, version=6))
        assert (statistics(1) != statistics(2)).all()
        assert (statistics(1) != X.mean(0)).all()


@pytest.mark.parametrize(("rows", "batch", "batches"), [(40, 4, 10), (1, 4, 5), (50, 4, 13), (500, 2, 20)])
def test_as_many_batches_are_drawn_as_rows_are_enough_but_not_too_few_nor_too_many(
    monkeypatch: pytest.MonkeyPatch, rows: int, batch: int, batches: int
) -> None:
    sizes: list[int] = []

    def sized(points: gridml.Batch[Point], network: Network) -> None:
        sizes.append(len(points))

    monkeypatch.setattr(recalibration, "MIN_ROWS", rows)
    monkeypatch.setattr(recalibration, "BATCH_LIMITS", (5, 20))
    g = graph()
    recalibrated(spec_of(g, sized, batch=batch), merged(g))
    assert sizes == [batch] * batches


def test_a_batch_that_is_not_full_is_left_out_unless_there_is_no_other() -> None:
    g = graph()
    sizes: list[int] = []

    def sized(points: gridml.Batch[Point], network: Network) -> None:
        sizes.append(len(points))
        network.step(network.model(points.x).mean())

    for batch in (36, 500):
        recalibrated(spec_of(g, sized, batch=batch), merged(g))
    assert sizes == [36, 36, ROWS]


def test_a_layer_that_does_not_gather_keeps_its_statistics() -> None:
    def frozen(points: gridml.Batch[Point], network: Network) -> None:
        network.model[0].eval()  # type: ignore[index]
        network.step(network.model(points.x).mean())

    g = graph()
    state, problem = recalibrated(spec_of(g, frozen), merged(g))
    assert problem is None
    np.testing.assert_array_equal(tensors_of(state)[f"{ENTRY}running_mean"], [7.0, 7.0])
    assert not np.isclose(tensors_of(state)[f"{INNER}running_mean"], 7.0).any()


def fails(points: gridml.Batch[Point], network: Network) -> None:
    raise SystemExit("not here")


def is_not_finite(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.x * np.inf).mean())


def hides_what_is_not_finite(points: gridml.Batch[Point], network: Network) -> None:
    network.model(points.x * np.inf)


@pytest.mark.parametrize(
    ("f", "words"), [(fails, "not here"), (is_not_finite, "the loss is nan"), (hides_what_is_not_finite, "not finite")]
)
def test_where_f_fails_the_merged_statistics_stay_and_the_reason_is_given(f: Any, words: str) -> None:
    g = graph()
    state = merged(g)
    after, problem = recalibrated(spec_of(g, f), state)
    assert after is state
    assert problem is not None and words in problem


def test_a_keyboard_interrupt_in_f_is_raised() -> None:
    def interrupted(points: gridml.Batch[Point], network: Network) -> None:
        raise KeyboardInterrupt

    g = graph()
    with pytest.raises(KeyboardInterrupt):
        recalibrated(spec_of(g, interrupted), merged(g))


def test_without_such_layers_f_is_not_run() -> None:
    g = graph()
    state = ReplicaState({("Network", 0): VertexState({"Network/0/model/weight": X})}, {}, {})
    assert recalibrated(spec_of(g, fails), state) == (state, None)


# --- whole runs

PROGRAM = """
    from functools import partial
    import numpy as np
    import torch
    from torch import nn
    import gridml

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, momentum=0.01), nn.ReLU(), nn.Linear(16, 2))

    class Network(gridml.Vertex):
        model = gridml.module(network, partial(torch.optim.SGD, lr=0.2, momentum=0.9))

    class Point(gridml.Vertex):
        x = gridml.array("float32", (4,))
        label = gridml.array("int64")
        network = gridml.edge(Network)

    @gridml.update(batch=16)
    def train(points: gridml.Batch[Point], network: Network) -> None:
        FIRST
        network.step(nn.functional.cross_entropy(network.model(points.x), points.label))

    def data():
        x = np.random.default_rng(1).normal(5.0, 3.0, (1_024, 4)).astype(np.float32)
        return x, (x[:, 0] * x[:, 1] > 25.0).astype(np.int64)

    def graph() -> gridml.Graph:
        x, label = data()
        g = gridml.Graph()
        g.add(Point, x=x, label=label, network=g.add(Network))
        return g

    def evaluate(network: Network) -> dict[str, float]:
        return {"mean": network.model[1].running_mean.tolist()}

    program = gridml.Program(graph, train, evaluate, epochs=2, schedule=gridml.SCHEDULE)
"""
STATISTIC = "Network/0/model/1.running_mean"


def play(
    folder: Path, workers: int, first: str = "pass", schedule: str = "linear_decay"
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return (saved tensors, those of the newest version, events) of a run with this number of workers."""
    source = folder / "normalised.py"
    source.write_text(textwrap.dedent(PROGRAM).replace("FIRST", first).replace("SCHEDULE", schedule))
    costs = Costs(exec_s=0.01, start_s=0.5, push_s=0.02, boot_s=1.0)
    scenario = Scenario(Steady(workers), costs, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=2)
    settings = Settings(source, "simulated", workers, seed=2, push_every=48, options=SimulatedOptions(None, None))
    play_scenario(settings, scenario, folder / "run", trainer=Trainer(source, costs, 2))
    message, kept = bundle.decode((folder / "run" / "final.safetensors").read_bytes())
    with opened(folder / "run") as ledger:
        events = [f"{topic}: {text}" for topic, text in ledger.execute("SELECT topic, text FROM events")]
        metrics = ledger.execute("SELECT metrics FROM epochs ORDER BY epoch DESC").fetchone()[0]
    assert json.loads(metrics) == {"mean": kept[STATISTIC].tolist()}
    newest = Versions(folder / "run" / "versions").read(message["version"], None)
    return kept, dict(newest.tensors()), events


def test_the_mean_over_a_tail_has_statistics_of_its_own(tmp_path: Path) -> None:
    kept, newest, _ = play(tmp_path, 4, schedule="constant")
    assert not np.array_equal(kept["Network/0/model/0.weight"], newest["Network/0/model/0.weight"])
    assert np.abs(kept[STATISTIC] - true_means(tmp_path, kept)).max() < 1e-3


def true_means(folder: Path, kept: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the mean inputs of the normalising layer, under the saved weights."""
    x = load(folder / "normalised.py").graph().tables["Point"].columns["x"]
    means: np.ndarray[Any, Any] = (x @ kept["Network/0/model/0.weight"].T + kept["Network/0/model/0.bias"]).mean(0)
    return means


def test_what_is_evaluated_and_kept_has_the_statistics_of_its_own_parameters(tmp_path: Path) -> None:
    kept, newest, events = play(tmp_path, 4)
    true = true_means(tmp_path, kept)
    without, with_it = (float(np.abs(t[STATISTIC] - true).max()) for t in (newest, kept))
    assert without > 0.5 and with_it < 1e-3
    statistics = {STATISTIC, STATISTIC.replace("mean", "var")}
    assert {name for name in kept if not np.array_equal(kept[name], newest[name])} == statistics
    assert not any("gathered" in event for event in events)


def test_one_worker_keeps_the_statistics_of_plain_training(tmp_path: Path) -> None:
    kept, newest, _ = play(tmp_path, 1)
    for name, tensor in newest.items():
        np.testing.assert_array_equal(kept[name], tensor, err_msg=name)


def test_a_failure_is_told_once_and_the_run_ends_with_what_was_merged(tmp_path: Path) -> None:
    kept, newest, events = play(tmp_path, 4, "assert torch.is_grad_enabled(), 'only with gradients'", "constant")
    for name, tensor in newest.items():  # no mean over a tail, whose statistics would be unknown
        np.testing.assert_array_equal(kept[name], tensor, err_msg=name)
    (warning,) = [event for event in events if "gathered again" in event]
    assert (
        warning.startswith("warning: running statistics stay as they were merged") and "only with gradients" in warning
    )

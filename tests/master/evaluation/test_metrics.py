"""Arguments of evaluate: values of one version, modules in evaluation mode, and copies of whatever it could change."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.engine.modules import Modules
from gridml.errors import ProgramError, UserCodeError
from gridml.model.vertex import describe
from master.evaluation.metrics import evaluate, first_chunk, flops_per_vertex
from master.store.versions import initial

HERE = Path(__file__)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


class Network(gridml.Vertex):
    model = gridml.module(model, torch.optim.SGD)


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Point(gridml.Vertex):
    x = gridml.array("float32", (2,))
    seen = gridml.array("int64", mutable=True)
    network = gridml.edge(Network)


class Text(gridml.Vertex):
    seen = gridml.array("int64", mutable=True)
    words = gridml.edge(Word)


@gridml.update(batch=4)
def train(points: gridml.Batch[Point], network: Network) -> None:
    network.step(network.model(points.x).sum())


@gridml.update(batch=4)
def count(texts: gridml.Batch[Text], words: gridml.Batch[Word]) -> None:
    words.count += 1


def points() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Point, x=np.ones((8, 2), np.float32), seen=np.arange(8), network=g.add(Network))
    return g


def texts() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.arange(3))
    g.add(Text, seen=np.arange(4), words=[0, 1, 2, 0])
    return g


def metrics_of(evaluation: Any, g: gridml.Graph, update: Any = train) -> dict[str, Any]:
    return evaluate(gridml.Program(lambda: g, update, evaluation), g, initial(g, 0), HERE)


def test_numbers_and_lists_come_back_plain() -> None:
    def evaluation(words: gridml.Batch[Word], texts: gridml.Batch[Text]) -> dict[str, Any]:
        return {"total": words.count.sum(), "counts": words.count, "seen": texts.seen.mean(), "fine": np.True_}

    assert metrics_of(evaluation, texts(), count) == {"total": 3, "counts": [0, 1, 2], "seen": 1.5, "fine": True}


def test_modules_come_ready_to_be_evaluated() -> None:
    def evaluation(network: Network) -> dict[str, float]:
        outputs = [float(network.model(torch.ones(1, 2)).detach()) for _ in range(5)]
        return {"spread": max(outputs) - min(outputs)}

    assert metrics_of(evaluation, points()) == {"spread": 0.0}


@pytest.mark.parametrize(("make", "update"), [(points, train), (texts, count)])
def test_evaluate_cannot_spoil_the_masters_own_values(make: Any, update: Any) -> None:
    g = make()
    name = "Point" if update is train else "Text"

    def evaluation(vertices: gridml.Batch[Point]) -> dict[str, float]:
        vertices.seen[0] = 99
        return {}

    evaluation.__annotations__["vertices"] = gridml.Batch[Point if update is train else Text]  # type: ignore[misc]
    try:
        metrics_of(evaluation, g, update)
    except UserCodeError as error:
        assert "read-only" in str(error)
    assert g.tables[name].columns["seen"][0] == 0


def test_evaluate_cannot_spoil_the_replica() -> None:
    g = texts()
    state = initial(g, 0)

    def evaluation(words: gridml.Batch[Word]) -> dict[str, float]:
        words.count[:] = 7
        return {}

    with pytest.raises(UserCodeError, match="read-only"):
        evaluate(gridml.Program(lambda: g, count, evaluation), g, state, HERE)
    assert state.arrays["Word"]["count"].tolist() == [0, 1, 2]


NO_METRICS = [
    None,
    3,
    [("a", 1)],
    {"a": "text"},
    {"a": np.zeros((2, 2))},
    {"a": None},
    {"a": b"x"},
    {"a": 1j},
    {"a": 10**30},
    {"a": {}},
    {"a": object()},
    {"a": [1, [2]]},
    {"a": iter([1])},
    {"a": np.datetime64("2020")},
    {"a": np.zeros(10_001)},
    {"a": torch.zeros(2, 2, requires_grad=True)},
    {"": 1},
    {5: 1},
    {None: 1},
    {"a\nb": 1},
    {"a\x1b[31m": 1},
    {"a\udcff": 1},
    {"a" * 129: 1},
    {"min:loss": 1},
    {str(number): 1 for number in range(1_001)},
]


@pytest.mark.parametrize("returned", NO_METRICS, ids=lambda returned: type(returned).__name__)
def test_what_is_no_dict_of_numbers_is_refused(returned: Any) -> None:
    def evaluation(words: gridml.Batch[Word]) -> Any:
        return returned

    with pytest.raises(ProgramError, match=r"evaluate returned .* The training is kept") as caught:
        metrics_of(evaluation, texts(), count)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [np.float128(1.5), np.array(1.5), np.float16(1.5), [1.5], (1.5,), np.nan, -np.inf])
def test_what_is_a_number_can_be_kept(value: Any) -> None:
    """The ledger stores it as JSON."""

    def evaluation(words: gridml.Batch[Word]) -> Any:
        return {"[bold]any[/] name": value}

    kept = json.loads(json.dumps(metrics_of(evaluation, texts(), count)))
    assert np.array_equal(kept["[bold]any[/] name"], value, equal_nan=True)


@pytest.mark.parametrize(
    "value",
    [torch.tensor(1.5, requires_grad=True), torch.tensor([1.5], dtype=torch.bfloat16)],
    ids=["grad", "bfloat16"],
)
def test_a_tensor_is_its_numbers_whatever_torch_knows_beside_them(value: torch.Tensor) -> None:
    """An evaluate that forgot torch.no_grad() has come as far as its result."""
    kept = metrics_of(lambda: {"loss": value}, texts(), count)
    assert kept == {"loss": value.tolist()}


@pytest.mark.parametrize("status", [0, 1, None])
def test_an_evaluate_that_ends_the_process_is_no_success(status: int | None) -> None:
    def evaluation(words: gridml.Batch[Word]) -> Any:
        sys.exit(status)

    with pytest.raises(UserCodeError, match="evaluate failed: SystemExit"):
        metrics_of(evaluation, texts(), count)


def test_the_text_of_an_error_is_printable_and_short() -> None:
    def evaluation(words: gridml.Batch[Word]) -> Any:
        raise ValueError(os.fsdecode(b"caf\xe9.txt") + "\x1b[31m" + "x" * 30_000_000)

    with pytest.raises(UserCodeError, match="evaluate failed: ValueError: caf") as caught:
        metrics_of(evaluation, texts(), count)
    for text in (str(caught.value), caught.value.traceback_text):
        assert len(text) < 30_000 and text.replace("\n", "").isprintable()


def test_the_users_traceback_is_shown() -> None:
    def evaluation(words: gridml.Batch[Word]) -> dict[str, float]:
        return {"missing": words.size}

    with pytest.raises(UserCodeError, match="Word has no field 'size'") as caught:
        metrics_of(evaluation, texts(), count)
    assert "words.size" in caught.value.traceback_text
    assert ", in evaluation\n" in caught.value.traceback_text
    assert ", in evaluate\n" not in caught.value.traceback_text, "which is gridml's own"


def test_flops_are_counted_whatever_else_the_graph_holds() -> None:
    g = points()
    program = gridml.Program(lambda: g, train)
    alone = flops_per_vertex(program, first_chunk(program, g, 4), initial(g, 0))
    assert alone is not None
    assert alone >= 2 * 3 * (2 * 8 + 8) - 2 * 2 * 8  # forward, and backward to the weights
    g.add(Word, count=np.arange(3))  # replicated, but not connected to any point
    assert flops_per_vertex(program, first_chunk(program, g, 4), initial(g, 0)) == alone


def test_counting_flops_leaves_the_replica_alone() -> None:
    g = points()
    state = initial(g, 0)
    tensors = dict(state.tensors())
    held = {name: tensor.copy() for name, tensor in tensors.items()}
    program = gridml.Program(lambda: g, train)
    flops_per_vertex(program, first_chunk(program, g, 4), state)
    for name, tensor in held.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    assert list(Modules(describe(Network)).views(0)) == list(tensors)


def test_evaluate_gets_the_progress_of_the_run() -> None:
    def epoch(network: Network, at: gridml.Progress) -> dict[str, float]:
        return {"epoch": at.epoch, "share": at.share, "modules": sum(1 for _ in network.model.parameters())}

    graph = points()
    program = gridml.Program(points, train, epoch)
    program.check()
    at = gridml.Progress(epoch=3, version=9, share=0.5)
    assert evaluate(program, program.build(HERE), initial(graph, 1), HERE, at) == {
        "epoch": 3,
        "share": 0.5,
        "modules": 6,
    }

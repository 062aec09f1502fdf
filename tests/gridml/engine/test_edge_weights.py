"""A trial detects writes to edge weights by their bits; a run does not pay for the check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from gridml.engine.devices import Device
from gridml.engine.engine import Engine
from gridml.model import device_rows
from gridml.model.batch import Neighbours
from gridml.model.chunk import cut
from tests.support.pretend_device import NAME

COUNT = 8
PLACES = ["numpy", "cpu", pytest.param(NAME, marks=pytest.mark.pretended)]
WRITES: dict[str, Callable[[Any], None]] = {
    "in place": lambda words: words.weight.__setitem__(slice(None), 2),
    "one": lambda words: words.weight.__setitem__(-1, 2),
    "new": lambda words: setattr(words, "weight", words.weight * 2),
}
seen: list[Any] = []  # the edges passed to f
writes: list[Callable[[Any], None]] = []  # called by f with them


class Word(gridml.Vertex):
    count = gridml.array("float64")
    aggregate = gridml.add()


class Topic(gridml.Vertex):
    size = gridml.array("float64")
    aggregate = gridml.add()


class Network(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(1, 1))


class Text(gridml.Vertex):
    words = gridml.edge(Word, weight="float32")
    topic = gridml.edge(Topic)


class Line(gridml.Vertex):
    words = gridml.edge(Word, weight="float32")
    network = gridml.edge(Network)


def look(words: Any) -> None:
    seen.append(words)
    words.weight.sum()
    for write in writes:
        write(words)


@gridml.update(batch=4)
def with_arrays(texts: gridml.Batch[Text], words: gridml.Batch[Word], topic: Topic) -> None:
    look(texts.words)


@gridml.update(batch=4)
def with_tensors(lines: gridml.Batch[Line], words: gridml.Batch[Word], network: Network) -> None:
    look(lines.words)


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    writes.clear()


def engine_on(place: str, *, topics: int = 1, trial: bool = True, weight: float = 1.0) -> Engine:
    """An engine on texts with equal weights; with one topic, f gets a view of them."""
    g, at = gridml.Graph(), np.arange(COUNT) % topics
    words = gridml.csr(np.arange(COUNT + 1), np.zeros(COUNT, np.int64), np.full(COUNT, weight, np.float32))
    g.add(Word, count=np.zeros(1))
    if place == "numpy":
        g.add(Topic, size=np.zeros(topics))
        g.add(Text, words=words, topic=at)
    else:
        g.add(Network, topics)
        g.add(Line, words=words, network=at)
    update, driver = (with_arrays, "Text") if place == "numpy" else (with_tensors, "Line")
    device = Device() if place == "numpy" else Device(place)
    engine = Engine(gridml.Program(lambda: g, update), device, trial=trial)
    engine.begin(cut(g, driver, np.arange(COUNT), None, None, bsp=False))
    return engine


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("weight", [1.0, np.nan])
@pytest.mark.parametrize("block", [8, 1 << 20])  # bytes that travel to a device at once
def test_weights_that_f_only_reads_are_not_written(
    place: str, topics: int, weight: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_rows, "BLOCK", block)
    engine = engine_on(place, topics=topics, weight=weight)
    engine.train(0, 4, 1.0)
    assert engine.reweighted == set()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("weight", [1.0, np.nan])
@pytest.mark.parametrize("write", WRITES)
def test_weights_that_f_writes_are_named(place: str, topics: int, weight: float, write: str) -> None:
    writes.append(WRITES[write])
    engine = engine_on(place, topics=topics, weight=weight)
    engine.train(0, 4, 1.0)
    assert engine.reweighted == {"words"}


@pytest.mark.parametrize("trial", [False, True])
@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("write", [None, *WRITES])
def test_weights_are_read_and_written_where_torch_infers(trial: bool, topics: int, write: str | None) -> None:
    """A program may enter inference mode for good if it trains nothing by gradients."""
    writes.extend([] if write is None else [WRITES[write]])
    engine = engine_on("cpu", topics=topics, trial=trial)
    with torch.inference_mode():
        engine.train(0, 4, 1.0)
    assert engine.reweighted == ({"words"} if trial and write else set())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("topics", [1, 2])
def test_a_run_neither_copies_weights_nor_compares_them(
    place: str, topics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(place, topics=topics, trial=False)
    with monkeypatch.context() as patch:
        patch.setattr(Neighbours, "has_new_weights", lambda self: pytest.fail("compared"))
        engine.train(0, 4, 1.0)
    assert all(words._original is None for words in seen)

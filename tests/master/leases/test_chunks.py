"""What a worker is told of a lease's chunk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

import gridml
from gridml.protocol.messages import Reply, reply_from, to_json
from master.leases.chunks import Chunks
from master.records import Footprint, LeaseState


class Network(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(1, 1))


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


@pytest.mark.parametrize(("networks", "modules"), [(1, None), (3, {"Network": [0, 2]})])
def test_modules_are_named_where_there_are_several(networks: int, modules: object) -> None:
    graph = gridml.Graph()
    graph.add(Word, count=np.zeros(9, np.int64))
    graph.add(Network, networks)
    spec, epochs = SimpleNamespace(graph=graph), SimpleNamespace(fewest=1, untrained=lambda stop: 0)
    chunks = Chunks(cast(Any, spec), cast(Any, epochs), cast(Any, None), cast(Any, None))
    touched = {"Word": np.arange(5), "Network": np.array([0, 2])[:networks]}
    lease = chunks.describe(LeaseState(1, 1, 0, 0, 10, 0, "w1", footprint=Footprint("ab", touched, {})))
    assert lease.modules == modules
    assert reply_from(to_json(Reply(1, lease=lease))).lease == lease


def test_none_of_several_may_be_touched() -> None:
    graph = gridml.Graph()
    graph.add(Network, 2)
    spec, epochs = SimpleNamespace(graph=graph), SimpleNamespace(fewest=1, untrained=lambda stop: 0)
    chunks = Chunks(cast(Any, spec), cast(Any, epochs), cast(Any, None), cast(Any, None))
    assert chunks.describe(LeaseState(1, 1, 0, 0, 10, 0, "w1", footprint=Footprint("ab", {}, {}))).modules == {}

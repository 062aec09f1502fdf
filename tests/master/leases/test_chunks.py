"""What a worker is told of a lease's chunk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

import gridml
from gridml.model.chunk import Chunk
from gridml.model.order import EpochOrder
from gridml.protocol.messages import CACHED_DIGITS, Reply, reply_from, to_json
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


class Row(gridml.Vertex):
    values = gridml.array("int32", (4,))
    words = gridml.edge(Word)


class Published:
    """What a master has published, by name."""

    carries_chunks = True

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {}

    def publish(self, name: str, payload: bytes) -> None:
        self.payloads[name] = payload


def test_a_worker_is_not_sent_again_what_it_keeps_until_it_keeps_it_no_more() -> None:
    counted: list[int] = []
    graph, mailboxes = gridml.Graph(), Published()
    graph.add(Word, count=np.zeros(1, np.int64))
    graph.add(Row, values=np.arange(400).reshape(100, 4), words=np.zeros(100, int))
    order = EpochOrder(100, 0, 0, "all")
    epochs = SimpleNamespace(order=lambda epoch: order, driver="Row", components=None)
    spec = SimpleNamespace(graph=graph, program=SimpleNamespace(bsp=False))
    copying = SimpleNamespace(cut=lambda count, nbytes: counted.append(nbytes))
    chunks = Chunks(cast(Any, spec), cast(Any, epochs), cast(Any, mailboxes), cast(Any, copying))

    def carried(lease: LeaseState) -> int:
        table = Chunk.decode(mailboxes.payloads[f"lease-{lease.id:06d}"]).tables["Row"]
        assert len(table.ids) == lease.stop - lease.start
        return len(table.carried)

    first, second = LeaseState(1, 1, 0, 0, 60, 0, "w1"), LeaseState(2, 1, 1, 0, 100, 0, "w1")
    whole = chunks.publish(first, ())
    kept = first.cut.sha256[:CACHED_DIGITS]
    assert carried(first) == 60
    part = chunks.publish(second, (kept, "0" * CACHED_DIGITS))  # another run's, too
    assert carried(second) == 40
    assert second.cut.borrows == {kept}
    assert counted[1] == part + 60 * 16  # what the worker holds in memory, wherever it is from
    before = second.cut.sha256
    assert chunks.refresh(second, (kept,)) == 0
    assert second.cut.sha256 == before
    again = chunks.refresh(second, ())
    assert carried(second) == 100
    assert second.cut.sha256 != before
    assert again > part > whole / 60 * 40
    assert chunks.publish(LeaseState(3, 1, 1, 0, 100, 0, "w2")) == chunks.publish(LeaseState(4, 1, 1, 0, 100, 0, "w3"))

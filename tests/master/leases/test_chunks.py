"""Chunks of leases in replies to workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

import gridml
from gridml.model.chunk import Chunk, ChunkTable
from gridml.model.order import EpochOrder
from gridml.model.ticks import Consistency
from gridml.protocol.messages import CACHED_DIGITS, Reply, reply_from, to_json
from gridml.protocol.payload import Payload
from master.caching.known_rows import CarriedFiles, CarriedPayloads
from master.leases.chunks import Chunks
from master.state.lease_records import Footprint, LeaseState


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
    spec, epochs = SimpleNamespace(graph=graph), SimpleNamespace(min_batch=1, ticks=None, untrained=lambda stop: 0)
    chunks = Chunks(cast(Any, spec), cast(Any, epochs), cast(Any, None), cast(Any, None), Path("carried"))
    touched = {"Word": np.arange(5), "Network": np.array([0, 2])[:networks]}
    lease = chunks.describe(LeaseState(1, 1, 0, 0, 10, 0, "w1", footprint=Footprint("ab", touched, {})))
    assert lease.modules == modules
    assert reply_from(to_json(Reply(1, lease=lease))).lease == lease


def test_none_of_several_may_be_touched() -> None:
    graph = gridml.Graph()
    graph.add(Network, 2)
    spec, epochs = SimpleNamespace(graph=graph), SimpleNamespace(min_batch=1, ticks=None, untrained=lambda stop: 0)
    chunks = Chunks(cast(Any, spec), cast(Any, epochs), cast(Any, None), cast(Any, None), Path("carried"))
    assert chunks.describe(LeaseState(1, 1, 0, 0, 10, 0, "w1", footprint=Footprint("ab", {}, {}))).modules == {}


class Row(gridml.Vertex):
    values = gridml.array("int32", (4,))
    words = gridml.edge(Word)


class Published:
    """A stand-in for mailboxes that keeps published chunks by name."""

    carries_chunks = True

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {}

    def publish(self, name: str, payload: Payload) -> None:
        self.payloads[name] = bytes(payload)


@dataclass
class Master:
    """The chunks of one master, their measured costs, and the published payloads."""

    chunks: Chunks
    mailboxes: Published
    counted: list[int]

    def carried(self, lease: LeaseState) -> int:
        table = Chunk.decode(self.mailboxes.payloads[f"lease-{lease.id:06d}"]).tables["Row"]
        assert len(table.ids) == lease.stop - lease.start
        return len(table.carried)


def master(folder: Path, graph: gridml.Graph | None = None) -> Master:
    counted: list[int] = []
    mailboxes = Published()
    if graph is None:
        graph = rows()
    order = EpochOrder(100, 0, 0, "all")
    whole: dict[str, Any] = {"drawn": lambda epoch, position: None, "phase": lambda epoch, position: None}
    epochs = SimpleNamespace(order=lambda epoch: order, driver="Row", components=None, **whole)
    spec = SimpleNamespace(graph=graph, program=SimpleNamespace(consistency=Consistency.of(replicates=True)))
    copying = SimpleNamespace(cut=lambda count, nbytes: counted.append(nbytes))
    chunks = Chunks(cast(Any, spec), cast(Any, epochs), cast(Any, mailboxes), cast(Any, copying), folder)
    return Master(chunks, mailboxes, counted)


def rows() -> gridml.Graph:
    graph = gridml.Graph()
    graph.add(Word, count=np.zeros(1, np.int64))
    graph.add(Row, values=np.arange(400).reshape(100, 4), words=np.zeros(100, int))
    return graph


def test_a_worker_is_not_sent_again_what_it_keeps_until_it_keeps_it_no_more(tmp_path: Path) -> None:
    made = master(tmp_path / "carried")
    chunks, carried, counted = made.chunks, made.carried, made.counted
    first, second = LeaseState(1, 1, 0, 0, 60, 0, "w1"), LeaseState(2, 1, 1, 0, 100, 0, "w1")
    whole = chunks.publish(first, ())
    kept = first.cut.sha256[:CACHED_DIGITS]
    assert carried(first) == 60
    part = chunks.publish(second, (kept, "0" * CACHED_DIGITS))  # also one of another run
    assert carried(second) == 40
    assert second.cut.borrows == {kept}
    assert counted[1] == part + 60 * 16  # the rows in the worker's memory, of any run
    before = second.cut.sha256
    assert chunks.refresh(second, (kept,)) == 0
    assert second.cut.sha256 == before
    again = chunks.refresh(second, ())
    assert carried(second) == 100
    assert second.cut.sha256 != before
    assert again > part > whole / 60 * 40
    assert chunks.publish(LeaseState(3, 1, 1, 0, 100, 0, "w2")) == chunks.publish(LeaseState(4, 1, 1, 0, 100, 0, "w3"))


def published(made: Master, *spans: tuple[int, int]) -> list[LeaseState]:
    """Return leases of these spans, each of a worker without kept rows."""
    leases = [LeaseState(number, 1, 0, start, stop, 0, "w1") for number, (start, stop) in enumerate(spans, 1)]
    for lease in leases:
        made.chunks.publish(lease, ())
    return leases


def test_the_next_master_knows_what_workers_keep(tmp_path: Path) -> None:
    first, second = published(master(tmp_path / "carried"), (0, 60), (60, 80))
    kept = tuple(lease.cut.sha256[:CACHED_DIGITS] for lease in (second, first))
    for borrowing, own in (((), 100), (kept[1:], 40), (kept, 20)):
        made = master(tmp_path / "carried")
        lease = LeaseState(3, 1, 1, 0, 100, 0, "w1")
        made.chunks.publish(lease, borrowing)
        assert made.carried(lease) == own
        assert lease.cut.borrows == set(borrowing)
        row = Chunk.decode(made.mailboxes.payloads["lease-000003"]).tables["Row"]
        assert row.borrowed is None or set(row.borrowed.payloads) <= {first.cut.sha256, second.cut.sha256}


@pytest.mark.parametrize("damage", ["cut", "other bit", "other name", "no file"])
def test_what_the_disk_lost_is_sent_again(tmp_path: Path, damage: str) -> None:
    (lease,) = published(master(tmp_path / "carried"), (0, 60))
    (path,) = (tmp_path / "carried").iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:50])
    elif damage == "other bit":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "other name":
        path.rename(path.with_name("rows"))
    else:
        path.unlink()
    made = master(tmp_path / "carried")
    again = LeaseState(2, 1, 1, 0, 100, 0, "w1")
    made.chunks.publish(again, (lease.cut.sha256[:CACHED_DIGITS],))
    assert made.carried(again) == 100
    assert len([*(tmp_path / "carried").iterdir()]) == 1


def test_a_disk_that_takes_no_more_costs_only_what_the_next_master_knew(tmp_path: Path) -> None:
    (tmp_path / "carried").write_text("a file where the folder would be: every write fails")
    made = master(tmp_path / "carried")
    (lease,) = published(made, (0, 60))
    again = LeaseState(2, 1, 1, 0, 100, 0, "w1")
    made.chunks.publish(again, (lease.cut.sha256[:CACHED_DIGITS],))
    assert made.carried(again) == 40


def test_rows_that_come_with_other_fields_now_are_not_borrowed(tmp_path: Path) -> None:
    (lease,) = published(master(tmp_path / "carried"), (0, 60))
    graph = rows()
    graph.tables["Row"].shared["values"] = cast(Any, "a file that workers read")
    payloads = CarriedPayloads(graph, CarriedFiles(tmp_path / "carried"))
    assert payloads.borrow("Row", np.arange(100), (lease.cut.sha256[:CACHED_DIGITS],))[0] is None
    assert not [*(tmp_path / "carried").iterdir()]


def test_files_are_as_few_as_what_is_remembered(tmp_path: Path) -> None:
    payloads = CarriedPayloads(rows(), CarriedFiles(tmp_path), max_bytes=3 * 12 * 50)
    table = ChunkTable("Row", np.arange(50), {}, lasting=("values",))
    for number in range(9):
        payloads.add(f"{number:064x}"[::-1], Chunk("Row", {"Row": table}, {}))
    assert len([*tmp_path.iterdir()]) == 3
    fewer = CarriedPayloads(rows(), CarriedFiles(tmp_path), max_bytes=2 * 12 * 50)
    assert fewer.borrow("Row", np.arange(50), ["0" * CACHED_DIGITS])[0] is None
    assert len([*tmp_path.iterdir()]) == 2
    newest = f"{8:064x}"[::-1]
    borrowed = fewer.borrow("Row", np.arange(50), [newest[:CACHED_DIGITS]])[0]
    assert borrowed is not None and borrowed.payloads == (newest,)

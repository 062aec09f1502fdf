"""The chunks of leases: cut from the graph at the grant, published for the worker, gone with the lease.

The master remembers which rows the payloads carried that workers may have kept, in bounded memory; rows that it
forgets are sent again. A worker names what its cache holds whenever it asks for work, and a chunk borrows from
nothing else. If a payload is gone or damaged when the chunk is begun, the worker cannot begin it; it no longer
names that payload when it asks again.

The same is kept on disk for the next master of the run. A file holds the ids of the rows of one payload, in their
order, and which fields came with them. It is named by the payload's SHA-256 and its own, so that one which a power
cut left torn is not believed. None is needed: where one is missing, or cannot be written, rows are sent again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.carriers.base import MasterMailboxes
from gridml.model.chunk import OWN, Borrowed, Chunk, cut, lasting_fields
from gridml.model.graph import Graph
from gridml.model.order import ascending
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS, Lease
from master.leases.epochs import Epochs
from master.state.records import Footprint, LeaseState
from master.state.spans import Touched
from master.store.spec import RunSpec
from master.telemetry.measures import Copying

Fields = Mapping[str, tuple[str, ...]]  # of each type the fields that its rows came with, in order of their names

_FILE = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.rows")


class CarriedFiles:
    """The files in `folder`, which is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, sha256: str, ids: Mapping[str, Ids], fields: Fields) -> None:
        """Keep the ids (n,) of the rows of each type that a payload carries. A disk that is full is no error."""
        tensors = {f"ids/{name}": bundle.narrowed(rows) for name, rows in ids.items()}
        content = bundle.encode({"fields": {name: list(names) for name, names in fields.items()}}, tensors)
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(self._folder / f"{sha256}-{bundle.digest(content)}.rows", content, durable=False)

    def read(self) -> Iterator[tuple[str, dict[str, Ids], Fields]]:
        """Yield (SHA-256 of the payload, ids, fields) of each file, the oldest first. Removes those that are torn."""
        for path in self._paths():
            name = _FILE.fullmatch(path.name)
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if name is None or bundle.digest(content) != name[2]:
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            message, tensors = bundle.decode(content)
            ids = {key.removeprefix("ids/"): rows.astype(np.int64) for key, rows in tensors.items()}
            yield name[1], ids, {key: tuple(names) for key, names in message["fields"].items()}

    def remove(self, sha256: str) -> None:
        """Forget a payload, if it is known at all."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{sha256}-*.rows"):
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # there is no folder before the first payload
            return [path for _, _, path in sorted(map(_age, self._folder.iterdir()))]
        return []


def _age(path: Path) -> tuple[int, str, Path]:
    try:
        return os.stat(path).st_mtime_ns, path.name, path
    except OSError:
        return 0, path.name, path


FEWEST = 16  # rows for which a payload is opened


@dataclass(frozen=True)
class Carried:
    """What a payload carries of one table: the ids of its own rows, ascending, and where each stands among them."""

    sha256: str
    ids: NDArray[np.int64]
    at: NDArray[np.int32]

    @staticmethod
    def of(sha256: str, ids: Ids) -> Carried:
        """Return what a payload carries whose own rows are `ids` (n,), in their order."""
        at = np.argsort(ids, kind="stable")
        return Carried(sha256, ids[at], at.astype(np.int32))

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.at.nbytes


def borrow(ids: Ids, cached: Sequence[Carried]) -> tuple[Borrowed | None, str]:
    """Return which rows of a chunk's table `ids` (n,) come from which of the payloads that its worker has, the newest
    first, and why; None where that is not worth opening one."""
    source, at = np.full(len(ids), OWN, np.int16), np.zeros(len(ids), np.int32)
    payloads: list[str] = []
    missing = np.argsort(ids, kind="stable")  # looked for in order, which takes a third of the time
    wanted = ids[missing]
    for carried in cached:
        if not len(missing):
            break
        if not len(carried.ids):
            continue
        place = np.minimum(np.searchsorted(carried.ids, wanted), len(carried.ids) - 1)
        has = carried.ids[place] == wanted
        if np.count_nonzero(has) < min(FEWEST, len(ids)):
            continue
        source[missing[has]], at[missing[has]] = len(payloads), carried.at[place[has]]
        payloads.append(carried.sha256)
        missing, wanted = missing[~has], wanted[~has]
    borrowed = int((source != OWN).sum())
    if not borrowed:
        return None, "the worker has none of its rows"
    return Borrowed(tuple(payloads), source, at), f"the worker has {borrowed:,} of {len(ids):,} rows"


MOST_BYTES = 64 << 20  # of ids and their places: five million rows


class CarriedPayloads:
    """The rows of payloads of `graph`, by the digits that workers name these with."""

    def __init__(self, graph: Graph, files: CarriedFiles, most_bytes: int = MOST_BYTES) -> None:
        self._graph = graph
        self._files = files
        self._read = False
        self._most = most_bytes
        self._payloads: OrderedDict[str, Mapping[str, Carried]] = OrderedDict()
        self._nbytes = 0

    def add(self, sha256: str, chunk: Chunk) -> None:
        """Remember what the payload of a chunk carries."""
        carrying = [table for name, table in chunk.tables.items() if name == table.type and table.carries]
        if not carrying:
            return
        self._recall()
        ids = {table.type: table.carried for table in carrying}
        self._files.write(sha256, ids, {name: self._fields(name) for name in ids})
        self._remember(sha256, ids)

    def borrow(self, type_name: str, ids: Ids, cached: Sequence[str]) -> tuple[Borrowed | None, str]:
        """Return which of the rows `ids` of a type a worker has that keeps the payloads `cached`, and why."""
        self._recall()
        kept = (self._payloads.get(digits) for digits in cached)
        return borrow(ids, [tables[type_name] for tables in kept if tables is not None and type_name in tables])

    def _recall(self) -> None:
        """Read what an earlier master remembered; once, and only where a worker keeps anything."""
        if self._read:
            return
        self._read = True
        for sha256, ids, fields in self._files.read():
            if all(name in self._graph.tables and names == self._fields(name) for name, names in fields.items()):
                self._remember(sha256, ids)
            else:  # the program names rows of a file now that it gave as arrays then, or the other way round
                self._files.remove(sha256)

    def _fields(self, type_name: str) -> tuple[str, ...]:
        """What comes with a row of a type."""
        table = self._graph.tables[type_name]
        return tuple(sorted([*lasting_fields(table), *table.ragged]))

    def _remember(self, sha256: str, ids: Mapping[str, Ids]) -> None:
        tables = {name: Carried.of(sha256, rows) for name, rows in ids.items()}
        self._forget(sha256[:CACHED_DIGITS])
        self._payloads[sha256[:CACHED_DIGITS]] = tables
        self._nbytes += _nbytes(tables)
        while self._nbytes > self._most:
            digits, oldest = next(iter(self._payloads.items()))
            self._files.remove(next(iter(oldest.values())).sha256)  # all tables of a payload have its
            self._forget(digits)

    def _forget(self, digits: str) -> None:
        tables = self._payloads.pop(digits, None)
        if tables is not None:
            self._nbytes -= _nbytes(tables)


def _nbytes(tables: Mapping[str, Carried]) -> int:
    return sum(carried.nbytes for carried in tables.values())


Ids = NDArray[np.int64]


class Chunks:
    """Cuts and publishes the chunk of each lease; `copying` is told what each takes, and `folder` is where the next
    master reads what they carried."""

    def __init__(
        self, spec: RunSpec, epochs: Epochs, mailboxes: MasterMailboxes, copying: Copying, folder: Path
    ) -> None:
        self._spec = spec
        self._epochs = epochs
        self._mailboxes = mailboxes
        self._copying = copying
        self._payloads = CarriedPayloads(spec.graph, CarriedFiles(folder))

    def publish(self, lease: LeaseState, cached: Sequence[str] | None = None) -> int:
        """Cut and publish the chunk of a lease; return its bytes. Rows are left out that its worker has in the payloads
        that it said it has `cached`, None where it keeps none."""
        if not self._mailboxes.carries_chunks:
            lease.footprint = Footprint("", {}, {})
            return 0
        chunk = self._cut(lease, None if not cached else lambda name, ids: self._payloads.borrow(name, ids, cached)[0])
        payload = chunk.encode()
        sha256 = bundle.digest(payload)
        self._mailboxes.publish(_name(lease), payload)
        # Counted as if all were sent: it is what a worker holds in memory that bounds a chunk.
        self._copying.cut(chunk.count, len(payload) + _borrowed_bytes(chunk, self._spec.graph))
        if cached is not None:
            self._payloads.add(sha256, chunk)
        lease.footprint = Footprint(sha256, *_sides(chunk, self._spec.graph), _borrows(chunk))
        return len(payload)

    def refresh(self, lease: LeaseState, cached: Sequence[str] | None) -> int:
        """Publish the chunk of a lease again where it borrows from what its worker has not (any more); return its
        bytes, 0 where it stays."""
        if lease.footprint is None or lease.cut.borrows <= set(cached or ()):
            return 0
        return self.publish(lease, cached)

    def survey(self, lease: LeaseState) -> None:
        """Find what a lease touches whose chunk nobody will fetch (again)."""
        lease.footprint = Footprint("", *_sides(self._cut(lease), self._spec.graph))

    def retract(self, lease: LeaseState) -> None:
        self._mailboxes.retract(_name(lease))

    def describe(self, lease: LeaseState, *, afresh: bool = False) -> Lease:
        """Return the lease as its worker is told of it."""
        place = lease.epoch, lease.start, lease.stop
        untrained = self._epochs.untrained(lease.stop)
        chunk = _name(lease), lease.cut.sha256
        return Lease(lease.id, lease.term, *place, *chunk, afresh, self._epochs.fewest, untrained, self._modules(lease))

    def _modules(self, lease: LeaseState) -> dict[str, list[int]] | None:
        """The module vertices that a lease touches; None where there are no two of them in the graph."""
        tables = [table for table in self._spec.graph.replicated if table.type.modules]
        if sum(table.count for table in tables) < 2:
            return None
        touched = lease.cut.touched
        return {table.type.name: touched[table.type.name].tolist() for table in tables if table.type.name in touched}

    def _cut(self, lease: LeaseState, held: Callable[[str, Ids], Borrowed | None] | None = None) -> Chunk:
        order = self._epochs.order(lease.epoch)
        return cut(
            self._spec.graph,
            self._epochs.driver,
            order.vertices(lease.start, lease.stop),
            order.ends(lease.start, lease.stop),
            self._epochs.components,
            bsp=self._spec.program.bsp,
            held=held,
        )


def _name(lease: LeaseState) -> str:
    return f"lease-{lease.id:06d}"


def _borrows(chunk: Chunk) -> frozenset[str]:
    """The payloads that a chunk borrows from, as workers name them."""
    tables = [table.borrowed for table in chunk.tables.values() if table.borrowed is not None]
    return frozenset(sha256[:CACHED_DIGITS] for borrowed in tables for sha256 in borrowed.payloads)


def _borrowed_bytes(chunk: Chunk, graph: Graph) -> int:
    """Bytes of the array fields that a chunk has not because its worker has them."""
    nbytes = 0
    for table in chunk.tables.values():
        if table.borrowed is not None:
            columns = graph.tables[table.type].columns
            missing = len(table.ids) - len(table.carried)
            nbytes += missing * sum(columns[name][:1].nbytes for name in table.lasting)
    return nbytes


def _sides(chunk: Chunk, graph: Graph) -> tuple[Touched, Touched]:
    """(replicated, local) vertices of a chunk by type; rows that only show a superstep's beginning are neither."""
    replicated: dict[str, Ids] = {}
    local: dict[str, Ids] = {}
    for name, table in chunk.tables.items():
        if name == table.type:
            side = replicated if graph.tables[table.type].type.replicated else local
            side[table.type] = ascending(table.ids)
    return replicated, local

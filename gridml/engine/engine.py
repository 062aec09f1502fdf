"""The engine: runs f over the rows of a chunk, batch by batch, on this process's replica.

It knows nothing of leases or messages. The worker asks for batches, takes snapshots to push and hands newer replicas
in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Aggregate, rule_for
from gridml.aggregates.bits import same_bits
from gridml.engine.batch_failed import BatchFailed
from gridml.engine.device_errors import trouble_of
from gridml.engine.devices import Device
from gridml.engine.mirror import Capture
from gridml.engine.modules import ModuleRows, Modules
from gridml.engine.recorder import Recorder
from gridml.engine.row_cache import RowCache
from gridml.errors import ProgramError
from gridml.model.batch import Batch, Neighbours, Rows
from gridml.model.chunk import BEFORE, Chunk
from gridml.model.device_rows import DeviceRows
from gridml.model.ids import places
from gridml.model.program import Parameter, Program
from gridml.model.progress import Progress
from gridml.model.schedule import TorchSchedule
from gridml.model.stepping import Stepping
from gridml.model.vertex import VertexId, VertexType
from gridml.protocol.messages import Logged
from gridml.protocol.push import ModuleTensors, ReplicaPart, RowValues, VertexKey

Array = NDArray[Any]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Snapshot:
    """The replica at one instant, in copies: modules whole, and the rows that f used since the last one. `used` are the
    module vertices that it used since then, `logged` what it logged. Where some of it is on its way from a device, its
    arrays are to be looked at only after `wait`."""

    replica: ReplicaPart
    used: frozenset[VertexKey]
    logged: tuple[Logged, ...] = ()
    arriving: Sequence[Capture] = ()

    def wait(self) -> None:
        """Return when all of it is here. May be called on any thread, and again. Raises what the device fails with."""
        for capture in self.arriving:
            capture.wait()


class Engine:
    """One replica of every replicated vertex that its chunks touch, and f."""

    def __init__(self, program: Program, device: Device | None = None) -> None:
        self.program = program
        self.device = device or Device()
        self._parameters = program.update.parameters
        self._types = program.types()
        self._torch = program.uses_torch
        self._stepping = Stepping(program.update.accumulate)
        self._modules = {
            name: Modules(vertex_type, self._stepping, self.device)
            for name, vertex_type in self._types.items()
            if vertex_type.modules
        }
        self.at = Progress()  # where the run stands for the batch that is trained next
        self._tables: dict[str, Rows | ModuleRows] = {}
        self._caches = {n: RowCache(t.arrays) for n, t in self._types.items() if t.replicated and not t.modules}
        self._under_way: dict[str, RowValues] = {}  # rows in a push without an answer
        self._used: set[VertexId] = set()
        self._rules: dict[str, Aggregate] = {}
        self._views: dict[VertexKey, dict[str, Array]] = {}
        self._recorder = Recorder()
        self._driver = program.update.driver.__name__
        self.chunk: Chunk | None = None

    def begin(self, chunk: Chunk) -> None:
        """Make `chunk` the one that `train` works on.

        Replicated rows are as the master has them, and those in a push under way as they were pushed; they are zero
        where nobody has brought them yet. Raises SharedFileError where a file that the chunk refers to is not here.
        """
        self.chunk = chunk
        self._tables = {}
        for name, table in chunk.tables.items():
            assert table.borrowed is None, "nothing is borrowed where nothing is kept"
            declared = self._types[table.type]
            if declared.modules:
                modules = self._modules[table.type]
                self._tables[name] = ModuleRows(modules, table.ids, self._used)
                for index in table.ids.tolist():
                    self._views[table.type, index] = modules.views(index)
                continue
            fields = dict(table.fields)
            if declared.replicated:
                fields = self._row_values(table.type, table.ids)
            changed = frozenset(fields if declared.replicated else declared.mutable if name == table.type else ())
            before = name.endswith(BEFORE)
            self._tables[name] = made = self._columns(declared, table.ids, fields, changed, before=before)
            made.ragged, made.shared = table.ragged, table.shared
            for column in table.shared.values():
                column.opened()  # now, and not inside f, it is found to be missing
        for name, edges in chunk.edges.items():
            source, field = name.split("/", 1)
            rows = self._tables[source]
            assert isinstance(rows, Rows)
            rows.edges[field] = edges
            rows.homes[edges.target] = self._tables[edges.target]

    def _columns(
        self, declared: VertexType, ids: Ids, fields: dict[str, Array], changed: frozenset[str], *, before: bool
    ) -> Rows:
        """The rows of a type, where f reads them on the engine's device."""
        if self._torch and self.device.accelerates:
            return DeviceRows(declared, ids, fields, changed, device=self.device.name, before=before)
        return Rows(declared, ids, fields, changed, torch=self._torch, before=before)

    def batch_end(self, at: int, size: int, stop: int) -> tuple[int, bool]:
        """Return where the batch that begins at row `at` ends, and whether a push may end there too.

        A batch holds up to `size` vertices and whole components; only a component larger than a batch is trained in
        several, and no push ends inside it, because a component is never cut.
        """
        assert self.chunk is not None
        ends = self.chunk.ends
        if ends is None:
            return min(at + size, stop), True
        until = min(at + size, stop)
        whole = int(ends[np.searchsorted(ends, until, side="right") - 1]) if ends[0] <= until else 0
        return (whole, True) if whole > at else (until, False)

    def train(self, start: int, stop: int, factor: float, share: float = 1.0) -> None:
        """Run f on rows [start, stop) at `factor` times the user's rate, scaled for batches that are `share` of the
        program's. Raises BatchFailed from the user's error, and as it is what the device fails with."""
        assert self.chunk is not None
        schedule = self.program.schedule
        failed = True
        self._recorder.listen()
        try:
            for modules in self._modules.values():
                modules.set_rate(factor, share)
                if isinstance(schedule, TorchSchedule):
                    modules.follow(schedule, self.at, share)
            self._run(start, stop)
            failed = False
        except (Exception, SystemExit, GeneratorExit, KeyboardInterrupt) as error:  # f may end in every way
            if self.device.accelerates and trouble_of(error) is not None:
                raise  # the vertices are not to blame, and the device may not be asked again
            first, end = self._narrowed(start, stop, error)
            ids = self.chunk.tables[self._driver].ids
            raise BatchFailed(int(ids[first]), int(ids[end - 1])) from error
        finally:
            self._recorder.end(failed=failed)
        self._mark(start, stop)

    def _run(self, start: int, stop: int) -> None:
        if self.program.update.batch is not None:
            self._call(start, stop)
            return
        for at in range(start, stop):
            self._call_one(at)

    def _narrowed(self, start: int, stop: int, error: BaseException) -> tuple[int, int]:
        """Return the rows of a failed batch that f fails on in the same way without the others, found by halves: what
        they do to the replica is dropped with what the batch did. Rows that fail only together stay together."""
        while stop - start > 1 and isinstance(error, Exception):
            middle = (start + stop) // 2
            failing = [half for half in ((start, middle), (middle, stop)) if self._fails_so(*half, error)]
            if len(failing) != 1:
                break
            ((start, stop),) = failing
        return start, stop

    def _fails_so(self, start: int, stop: int, error: Exception) -> bool:
        try:
            self._run(start, stop)
        except Exception as again:
            return (type(again), str(again)) == (type(error), str(error))
        except (SystemExit, GeneratorExit, KeyboardInterrupt):
            return False
        return False

    def _call_one(self, at: int) -> None:
        rows = self._rows(self._driver)
        arguments: list[Any] = []
        for parameter in self._parameters:
            if parameter.single:
                arguments.append(_only(rows.neighbours(parameter.edge, at), parameter))
            else:
                edges = rows.edges[parameter.edge]
                index = edges.index[edges.span(at, at + 1)]
                if len(index) > 1:  # in the order of the edges, each neighbour once
                    index = index[np.sort(np.unique(index, return_index=True)[1])]
                arguments.append(Batch._over(self._rows(edges.target), index))
        self.program.update.call(self.at, rows.vertex_type.cls._view(rows, at), *arguments)
        self._recorder.end_call(1)
        self._bring_home(argument for argument in arguments if isinstance(argument, Batch))

    def _call(self, start: int, stop: int) -> None:
        """Call f once for each distinct combination of its single neighbours among the rows; mostly there is one."""
        rows = self._rows(self._driver)
        singles = [p for p in self._parameters if p.single]
        targets = []
        for parameter in singles:
            neighbours = rows.edges[parameter.edge].one_each(start, stop)
            if neighbours is None:
                raise ProgramError(
                    f"{rows.vertex_type.name}.{parameter.edge} does not lead to exactly one vertex from each; "
                    f"annotate that argument of f as gridml.Batch[{parameter.type.name}]."
                )
            targets.append(neighbours)
        if all(t[0] == t[-1] and (t == t[0]).all() for t in targets):
            self._call_group(rows, slice(start, stop), [int(t[0]) for t in targets], singles)
            return
        keys, group = np.unique(np.stack(targets, 1), axis=0, return_inverse=True)
        for g, key in enumerate(keys):
            at = np.flatnonzero(group.reshape(-1) == g) + start
            self._call_group(rows, at, key.tolist(), singles)

    def _call_group(self, rows: Rows, at: slice | Ids, singles: list[int], parameters: list[Parameter]) -> None:
        positions = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        single = dict(zip([p.edge for p in parameters], singles, strict=True))
        links: dict[str, Neighbours] = {}
        arguments: list[Any] = []
        batches: list[Batch[Any]] = []
        for parameter in self._parameters:
            edges = rows.edges[parameter.edge]
            if parameter.single:
                home = self._tables[edges.target]
                arguments.append(home.vertex_type.cls._view(home, single[parameter.edge]))
                continue
            if isinstance(at, slice):
                span = edges.span(at.start, at.stop)
                index, weight = edges.index[span], None if edges.weight is None else edges.weight[span]
                lengths = None if edges.offsets is None else np.diff(edges.offsets[at.start : at.stop + 1])
            else:
                spans = [np.arange(s.start, s.stop) for s in (edges.span(int(i), int(i) + 1) for i in at)]
                where = np.concatenate(spans)
                index, weight = edges.index[where], None if edges.weight is None else edges.weight[where]
                lengths = np.array([len(s) for s in spans])
            if lengths is None:
                lengths = np.full(len(positions), edges.degree)
            distinct, inverse = np.unique(index, return_inverse=True)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            links[parameter.edge] = Neighbours(
                rows.present(inverse.reshape(-1).astype(np.int64)),
                rows.present(offsets),
                None if weight is None else rows.present(weight),
            )
            arguments.append(Batch._over(self._rows(edges.target), distinct))
            batches.append(arguments[-1])
        driving: Batch[Any] = Batch._over(rows, at, links)
        self.program.update.call(self.at, driving, *arguments)
        self._recorder.end_call(len(positions))
        self._bring_home((driving, *batches))

    def _bring_home(self, batches: Iterable[Batch[Any]]) -> None:
        """Have in the tables what f wrote into what it was given."""
        for table in self._tables.values():
            if isinstance(table, Rows):
                table.bring_home()
        for batch in batches:
            batch._write_back()

    def _mark(self, start: int, stop: int) -> None:
        """Remember which rows f could have changed: the trained ones and their neighbours.

        What f wrote beyond them, at a neighbour's neighbour, was remembered when it was written.
        """
        rows = self._rows(self._driver)
        rows.dirty[start:stop] = True
        for edges in rows.edges.values():
            index = edges.index[edges.span(start, stop)]
            home = self._tables[edges.target]
            if isinstance(home, Rows):
                home.dirty[index] = True
            elif len(home.ids) == 1:
                self._used.add(home.identify(0))
            else:
                self._used.update(home.identify(int(i)) for i in np.unique(index))

    def pull(self) -> None:
        """Have what modules hold on a device in the replica's arrays."""
        for modules in self._modules.values():
            modules.pull()

    def snapshot(self, held: Mapping[VertexKey, ModuleTensors] = MappingProxyType({})) -> Snapshot:
        """Return a copy of the replica, to push; what f changes from now on is for the next one. Gradients that are
        gathered are stepped first, as their vertices are pushed with the others.

        A tensor that is, bit for bit, one of those `held`, which nobody writes to, is that array: what is frozen is
        not copied.
        """
        self._stepping.finish()
        modules: dict[VertexKey, dict[str, Array]] = {}
        arriving: list[Capture] = []
        for key, views in self._views.items():
            captured = self._modules[key[0]].capture(key[1])
            away = {name: values for capture in captured for name, values in capture.arrays.items()}
            here = held.get(key, {})
            modules[key] = {
                name: away[name] if name in away else _copied(view, here.get(name)) for name, view in views.items()
            }
            arriving += captured
        rows: dict[str, RowValues] = {}
        for type_name, table in self._replicated_rows():
            rows[type_name] = RowValues(table.ids, table.fields).take(np.flatnonzero(table.dirty))
            table.dirty[:] = False
        self._under_way = rows
        used = frozenset(self._used)
        self._used.clear()
        return Snapshot(ReplicaPart(modules, rows), used, self._recorder.take(), arriving=tuple(arriving))

    @property
    def gathering(self) -> bool:
        """Whether f has gathered gradients that no optimiser step has followed."""
        return self._stepping.gathering

    def wire(self, snapshot: Snapshot) -> ReplicaPart:
        """Return what of a snapshot travels: used modules whole, and rows. Waits for what is on its way."""
        snapshot.wait()
        replica = snapshot.replica
        return ReplicaPart(
            {key: tensors for key, tensors in replica.modules.items() if key in snapshot.used}, replica.rows
        )

    def settle(self) -> None:
        """The last push was merged: the master has its rows as they were pushed, but for those that it brings."""
        for type_name, rows in self._under_way.items():
            self._caches[type_name].take(rows)
        self._under_way = {}

    def take_rows(self, newest: ReplicaPart) -> None:
        """Have rows as the master has them, for the chunks that follow."""
        for type_name, rows in newest.rows.items():
            if type_name in self._caches:
                self._caches[type_name].take(rows)

    def keep_rows(self) -> None:
        """Forget all rows but those of the chunk in hand."""
        held = {type_name: table.ids for type_name, table in self._replicated_rows()}
        for type_name, cache in self._caches.items():
            cache.keep(held.get(type_name, np.empty(0, np.int64)))

    def keep_only(self, kept: Collection[VertexKey]) -> None:
        """Let go of all module vertices but these: the master has what was trained of them."""
        self._views = {key: views for key, views in self._views.items() if key in kept}
        for type_name, modules in self._modules.items():
            modules.keep_only({index for name, index in kept if name == type_name})

    def forget_rows(self) -> None:
        """Have no rows, and no gradients gathered: what was trained from them is not wanted."""
        self._stepping.forget()
        self._under_way = {}
        for cache in self._caches.values():
            cache.clear()

    def changed_fields(self, start: int, stop: int) -> dict[str, RowValues]:
        """Return the mutable fields of local vertices that f changed, by type.

        Rows [start, stop) of the driving type, and of other local types every row reached since the last call.
        """
        fields: dict[str, RowValues] = {}
        for name, table in self._tables.items():
            if not isinstance(table, Rows) or table.vertex_type.replicated or not table.changed:
                continue
            at = np.arange(start, stop) if name == self._driver else np.flatnonzero(table.dirty)
            table.dirty[:] = False
            values = {field: table.fields[field] for field in sorted(table.changed)}
            fields[name] = RowValues(table.ids, values).take(at)
        return fields

    def restart(self, newest: ReplicaPart) -> None:
        """Take the master's replica as it is; local work since the last push is dropped."""
        self._stepping.forget()
        self._take(newest, None, 1)
        self._used.clear()
        for table in self._tables.values():
            if isinstance(table, Rows):
                table.dirty[:] = False

    def rebase(self, pushed: Snapshot, newest: ReplicaPart, live: int) -> None:
        """Take the master's replica, keep what was trained since `pushed`: by default newest + (local - pushed)."""
        pushed.wait()
        self.settle()
        self._take(newest, pushed, live)

    def forget_logged(self) -> None:
        """What was trained since the last snapshot is not wanted, nor is what it logged."""
        self._recorder.forget()

    def forget_optimisers(self) -> None:
        """Start every optimiser's state afresh, after work that was refused."""
        for modules in self._modules.values():
            modules.forget_optimisers()

    def gather_statistics(self) -> dict[VertexKey, dict[str, Array]]:
        """Run f for the running statistics of its BatchNorm layers alone: see `Modules.gather_statistics`."""
        return {key: views for m in self._modules.values() for key, views in m.gather_statistics().items()}

    def _take(self, newest: ReplicaPart, pushed: Snapshot | None, live: int) -> None:
        for key, tensors in newest.modules.items():
            if key not in self._views:
                self._views[key] = self._modules[key[0]].views(key[1])
            if pushed is not None:
                self._modules[key[0]].pull(key[1])
            left = {} if pushed is None else pushed.replica.modules.get(key, {})
            for name, values in tensors.items():
                self._merge_in(key[0], name, self._views[key][name], values, left.get(name), live)
            self._modules[key[0]].put(key[1], tensors)
        for type_name, rows in newest.rows.items():
            self._take_rows(type_name, rows, live, keeps=pushed is not None)

    def _take_rows(self, type_name: str, newest: RowValues, live: int, *, keeps: bool) -> None:
        """Take rows as the master has them; where it `keeps` what was trained, that is what differs from what the
        master had before."""
        cache = self._caches.get(type_name)
        if cache is None:
            return  # f knows nothing of such vertices
        if type_name in self._tables:
            table = self._rows(type_name)
            at, here = places(table.ids, newest.ids)  # those not here are for a chunk that follows
            at, ids = at[here], newest.ids[here]
            before = cache.values(ids)
            for name, values in newest.fields.items():
                column = table.fields[name]
                local = column[at]
                self._merge_in(
                    type_name, f"{type_name}/{name}", local, values[here], before[name] if keeps else None, live
                )
                column[at] = local
        cache.take(newest)

    def _row_values(self, type_name: str, ids: Ids) -> dict[str, Array]:
        """Rows to begin a chunk with, in copies."""
        values = self._caches[type_name].values(ids)
        pushed = self._under_way.get(type_name)
        if pushed is not None and len(pushed.ids):
            at, here = places(ids, pushed.ids)
            for name, column in pushed.fields.items():
                values[name][at[here]] = column[here]
        return values

    def _merge_in(
        self, type_name: str, name: str, local: Array, newest: Array, pushed: Array | None, live: int
    ) -> None:
        """Bring `newest` into `local`, by the rule of tensor `name` where work since `pushed` is to be kept."""
        if pushed is None or _is_constant(local, pushed):
            np.copyto(local, newest)
            return
        if name not in self._rules:
            self._rules[name] = rule_for(name, local, self._types[type_name].rule)
        self._rules[name].adopt(local, pushed, newest, local, live)

    def _rows(self, name: str) -> Rows:
        table = self._tables[name]
        assert isinstance(table, Rows)
        return table

    def _replicated_rows(self) -> list[tuple[str, Rows]]:
        return [(n, t) for n, t in self._tables.items() if isinstance(t, Rows) and t.vertex_type.replicated]


def _is_constant(local: Array, pushed: Array) -> bool:
    """Whether a tensor holds infinities, as a mask does, and was left alone: it has no differences."""
    with np.errstate(all="ignore"):  # a sum that is not finite says little, and one that is says all
        return local.dtype.kind == "f" and not np.isfinite(local.sum()) and same_bits(local, pushed)


def _copied(view: Array, held: Array | None) -> Array:
    return view.copy() if held is None or not same_bits(view, held) else held


def _only(neighbours: list[Any], parameter: Parameter) -> Any:
    if len(neighbours) != 1:
        raise ProgramError(
            f"a vertex has {len(neighbours)} neighbours along {parameter.edge}; an argument that is one "
            f"{parameter.type.name} needs "
            f"exactly one. Annotate it gridml.Batch[{parameter.type.name}]."
        )
    return neighbours[0]

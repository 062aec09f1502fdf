"""The engine: runs f over the rows of a chunk, batch by batch, on this process's replica.

f is the update function of the user's program. The engine handles no leases and no messages. The worker calls `begin`
with a chunk, `train` for each batch, `snapshot` before a push, and `rebase` or `restart` with the replica of a reply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from gridml.aggregates.base import same_bits
from gridml.caching.master_copy import Rebasing, ReplicatedRows
from gridml.engine import read_only
from gridml.engine.devices import Device, device_fault_of
from gridml.engine.look_ahead import LookAhead
from gridml.engine.mirror import Capture
from gridml.engine.modules import ModuleRows, Modules, Trainable, checked_views
from gridml.engine.stage_runner import CompiledStage, StageRunner, stages_of
from gridml.engine.update_runner import BatchFailed, Recorder, UpdateRunner
from gridml.errors import NotFiniteError
from gridml.model.batch import Array, Rows
from gridml.model.chunk import BEFORE, Chunk
from gridml.model.device_memory import pinned
from gridml.model.device_rows import DeviceRows
from gridml.model.phases import Stages
from gridml.model.program import Program
from gridml.model.schedule import Progress, TorchSchedule
from gridml.model.stepping import Stepping
from gridml.model.update import Update
from gridml.model.vertex import VertexId
from gridml.protocol.messages import Logged
from gridml.protocol.push import ModuleTensors, ReplicaPart, RowValues, VertexKey

# Maximum number of losses that stay on a device before the host waits for them and reads them. It bounds the device
# memory that they take.
MAX_UNREAD_LOSSES = 1_000


@dataclass(frozen=True)
class Snapshot:
    """A copy of the replica at one instant. Arrays that come from a device are valid only after `wait`."""

    replica: ReplicaPart  #: all tensors of modules, and the rows that f used since the last snapshot
    used: frozenset[VertexKey]  #: module vertices that f used since the last snapshot
    logged: tuple[Logged, ...] = ()  #: values that f logged since the last snapshot
    arriving: Sequence[Capture] = ()  #: copies from a device that may be in progress

    def wait(self) -> None:
        """Block until all copies are complete. Thread-safe and idempotent. Raises the device's error."""
        for capture in self.arriving:
            capture.wait()


class Engine:
    """Runs f on one replica, which has every replicated vertex that the engine's chunks touch."""

    def __init__(
        self,
        program: Program,
        device: Device | None = None,
        *,
        trial: bool = False,
        plain: bool = False,
        holds: bool = False,
        threads: int = 1,
        stages: list[CompiledStage] | None = None,
    ) -> None:
        """`plain`: run stages as plain Python (`gridml.codegen.interpreted`). `holds`: stages leave the replica as it
        is (`gridml.codegen.held`). `threads`: of compiled stages; they do not change the result. `stages`: those of
        another engine of the program on this thread, since it takes some 30 ms to read them from its source."""
        self.program = program
        shape = program.shape
        if stages is None:
            stages = stages_of(shape, plain=plain, holds=holds) if isinstance(shape, Stages) else []
        self.stages = stages
        self._threads = threads
        self._trial = trial  # True in `gridml check`, which makes comparisons that are too slow for a run
        self.device = device or Device()
        self._types = program.types()
        self._torch = program.uses_torch
        # One object for all vertex types: f may step vertices of several types together.
        self._stepping = Stepping(program.shape.accumulate)
        self._modules = {
            name: Modules(vertex_type, self._stepping, self.device)
            for name, vertex_type in self._types.items()
            if vertex_type.modules
        }
        self.at = Progress()  #: progress of the run at the next batch; set by the worker
        self._tables: dict[str, Rows | ModuleRows] = {}  # of the current chunk, by table name
        self._runner: UpdateRunner | StageRunner | None = None  # None before the first chunk
        self._rebasing = Rebasing(self._types)
        self.replicated = ReplicatedRows(self._types, self._rebasing)
        self._used: set[VertexId] = set()  # module vertices that f used since the last snapshot; ModuleRows adds them
        # numpy views of every module vertex of the replica. They can be stale, so read them through `_follow`.
        self._views: dict[VertexKey, dict[str, Array]] = {}
        self.recorder = Recorder()
        self._look_ahead = LookAhead()
        self._driver = program.shape.driver.__name__
        self.chunk: Chunk | None = None  #: the current chunk; set only by `begin`
        self.notes: list[str] = []  #: warnings for the user; the reporter clears the list

    def begin(self, chunk: Chunk) -> None:
        """Make `chunk` the current one.

        Replicated rows start with the master's values; rows of a push that has no reply yet start with the pushed
        values. Rows that were never received are zero. Raises SharedFileError if a file that the chunk refers to is
        missing on this machine.
        """
        self.chunk = chunk
        self._tables = {}
        for name, table in chunk.tables.items():
            assert table.borrowed is None, "the worker fills in borrowed rows before it calls the engine"
            declared = self._types[table.type]
            if declared.modules:
                modules = self._modules[table.type]
                self._tables[name] = ModuleRows(modules, table.ids, self._used)
                for index in table.ids.tolist():
                    self._follow((table.type, index))
                continue
            fields = dict(table.fields)
            if declared.replicated:
                fields = self.replicated.values(table.type, table.ids)
            changed = frozenset(fields if declared.replicated else declared.mutable if name == table.type else ())
            on_device = self._torch and self.device.accelerates
            self._tables[name] = (DeviceRows if on_device else Rows)(
                declared,
                table.ids,
                fields,
                changed,
                torch=self._torch,
                before=name.endswith(BEFORE),
                device=self.device.name if on_device else None,
                ragged=table.ragged,
                shared=table.shared,
            )
            for column in table.shared.values():
                column.opened()  # a missing file must raise here: an error in f would count as the program's
        for name, edges in chunk.edges.items():
            source, field = name.split("/", 1)
            rows = self._tables[source]
            assert isinstance(rows, Rows)
            rows.edges[field] = edges
            rows.stores[edges.target] = self._tables[edges.target]
        if self._trial:
            self._rows(self._driver).reweighted = set()  # a set instead of None turns on the comparison of weights
        shape = self.program.shape
        if isinstance(shape, Update):
            self._runner = UpdateRunner(shape, self.recorder, self._tables)
        else:
            assert isinstance(shape, Stages), "a program has f or stages"
            self._runner = StageRunner(shape, self.stages, self._tables, self._threads, chunk.phase)

    def compile(self) -> None:
        """Compile the stages of the current chunk's program, by running them on no vertices. Raises StageError."""
        assert isinstance(self._runner, StageRunner)
        self._runner.run(0, 0, self.at)

    def batch_end(self, at: int, size: int, stop: int) -> tuple[int, bool]:
        """Return (the end of the batch that begins at row `at`, whether a push may end there).

        A component is a set of local vertices that edges connect. A batch has up to `size` vertices and consists of
        whole components. A component larger than `size` is trained in several batches; no push may end inside it, since
        a lease never divides a component. Mini-batches cut by edges are trained one by one, whatever `size` is.
        """
        assert self.chunk is not None
        ends = self.chunk.ends
        if ends is None:
            return stop if self.program.shape.drawn else min(at + size, stop), True
        if self.program.shape.follows_ends:
            return min(int(ends[np.searchsorted(ends, at, side="right")]), stop), True
        until = min(at + size, stop)
        whole = int(ends[np.searchsorted(ends, until, side="right") - 1]) if ends[0] <= until else 0
        return (whole, True) if whole > at else (until, False)

    def train(self, start: int, stop: int, factor: float, scale: float = 1.0, others: float = 0.0) -> None:
        """Run f on rows [start, stop). The learning rate is the user's times the schedule's `factor` and the `scale` of
        the batch. If the steps of `others` are added to this one, f runs where these are expected to lead.

        Raises BatchFailed from the user's error. An error of the device is raised unchanged. A loss on a device that is
        not finite raises BatchFailed only when the losses are read: in a later call or in `snapshot`.
        """
        assert self.chunk is not None and self._runner is not None
        if self._stepping.unread >= MAX_UNREAD_LOSSES:
            self.read_losses()
        self._stepping.rows = start, stop
        schedule, failed = self.program.schedule, True
        self.recorder.begin_batch()
        try:
            for modules in self._modules.values():
                modules.set_rate(factor, scale)
                if isinstance(schedule, TorchSchedule):
                    modules.follow(schedule, self.at, scale)
            if others:
                optimisers = [each for modules in self._modules.values() for each in modules.all_optimisers()]
                with self._look_ahead.batch(optimisers, others):
                    self._runner.run(start, stop, self.at)
            else:
                self._look_ahead.forget()
                self._runner.run(start, stop, self.at)
            failed = False
        except (Exception, SystemExit, GeneratorExit, KeyboardInterrupt) as error:  # f may call sys.exit
            if self.device.accelerates and device_fault_of(error) is not None:
                raise  # no vertex is the cause, and a failed device could not run f again to find one
            cause = read_only.name_written_field(error, self._tables.values())
            raise self._batch_failed(start, stop, error) from cause
        finally:
            self.recorder.end_batch(failed=failed)
        self._mark(start, stop)

    def _batch_failed(self, start: int, stop: int, error: BaseException) -> BatchFailed:
        """Return the BatchFailed for an error of f on these rows. This runs f again, so the replica is unusable
        afterwards."""
        assert self.chunk is not None and self._runner is not None
        self._stepping.eager = True  # so that a loss that is not finite raises in the half of the batch that causes it
        try:
            first, end = self._runner.isolate_failure(start, stop, self.at, error)
        finally:
            self._stepping.eager = False
        ids = self.chunk.tables[self._driver].ids
        return BatchFailed(int(ids[first]), int(ids[end - 1]))

    @property
    def followed(self) -> frozenset[str]:
        """The edge fields whose targets f has read in this chunk, as in `images.edge.index`."""
        return frozenset(self._rows(self._driver).followed)

    @property
    def reweighted(self) -> frozenset[str]:
        """The edge fields whose weights f has written in this chunk; empty unless this is a trial."""
        return frozenset(self._rows(self._driver).reweighted or ())

    def trainable(self) -> Iterator[Trainable]:
        """Yield the trainable parameters of every module made so far, and the state of their gradients."""
        for modules in self._modules.values():
            yield from modules.trainable()

    def read_losses(self, held: Mapping[VertexKey, ModuleTensors] = MappingProxyType({})) -> None:
        """Check the losses that stayed on a device. Raises BatchFailed for the first batch whose loss is not finite.

        To raise from the user's own line, f runs again on the rows of that batch. It starts from the tensors `held`,
        because by now neither the replica nor the state of its optimisers is finite.
        """
        if (wrong := self._stepping.read()) is None:
            return
        assert self._runner is not None
        rows, error = wrong
        self.restart(ReplicaPart(held, {}))
        self.forget_optimisers()
        self._stepping.eager = True
        try:
            self._runner.run(*rows, self.at)
        except Exception as again:
            if device_fault_of(again) is not None:
                raise
            if isinstance(again, NotFiniteError):  # its traceback has the user's own line; that of `error` lacks it
                error = again
        finally:
            self._stepping.eager = False
        raise self._batch_failed(*rows, error) from error

    def _mark(self, start: int, stop: int) -> None:
        """Mark the rows that f may have changed: the trained rows and their neighbours.

        Writes to more distant rows go through `Rows.write`, which marks them.
        """
        rows = self._rows(self._driver)
        rows.dirty[start:stop] = True
        for edges in rows.edges.values():
            index = edges.index[edges.span(start, stop)]
            targets = self._tables[edges.target]
            if isinstance(targets, Rows):
                if not targets.before:
                    targets.dirty[index] = True
            elif len(targets.ids) == 1:
                self._used.add(targets.identify(0))
            else:
                self._used.update(targets.identify(int(i)) for i in np.unique(index))

    def pull(self) -> None:
        """Copy the tensors of modules on a device to the replica's arrays."""
        for modules in self._modules.values():
            modules.pull()

    def finish_batches(self, held: Mapping[VertexKey, ModuleTensors] = MappingProxyType({})) -> None:
        """Apply accumulated gradients in an optimiser step, and wait until the device has trained all batches so far.
        Raises BatchFailed if a loss on the device was not finite; `held` is as in `read_losses`."""
        self._stepping.finish()
        self.read_losses(held)

    def snapshot(self, held: Mapping[VertexKey, ModuleTensors] = MappingProxyType({})) -> Snapshot:
        """Return a copy of the replica, to push. Changes that f makes later belong to the next snapshot.

        Accumulated gradients are applied first, because their vertices are credited with this push. `held` has
        read-only arrays. A tensor that equals its held array bit for bit is not copied: the snapshot shares the held
        array, so frozen parameters cost nothing. Raises BatchFailed if a loss on a device was not finite; then there is
        nothing to push.
        """
        self.finish_batches(held)
        modules: dict[VertexKey, dict[str, Array]] = {}
        arriving: list[Capture] = []
        for key in self._views:
            views = self._follow(key)
            captures = self._modules[key[0]].capture(key[1])
            captured = {name: values for capture in captures for name, values in capture.arrays.items()}
            kept = held.get(key, {})
            modules[key] = {
                name: captured[name] if name in captured else _copied(view, kept.get(name))
                for name, view in views.items()
            }
            arriving += captures
        rows: dict[str, RowValues] = {}
        for type_name, table in self._replicated_rows():
            rows[type_name] = RowValues(table.ids, table.fields).take(np.flatnonzero(table.dirty))
            table.dirty[:] = False
        self.replicated.under_way = rows  # `begin` starts from these values until the reply to the push arrives
        used = frozenset(self._used)
        self._used.clear()
        return Snapshot(ReplicaPart(modules, rows), used, self.recorder.take(), arriving=tuple(arriving))

    def moments(self) -> dict[str, Array]:
        """Return the optimiser moments that other workers can start from, of all module vertices, by "entry/NAME"."""
        of_each = [self._modules[type_name].moments(index) for type_name, index in self._views]
        return {name: values for moments in of_each for name, values in moments.items()}

    @property
    def is_accumulating(self) -> bool:
        """True while there are accumulated gradients that no optimiser step has used yet."""
        return self._stepping.is_accumulating

    def wire(self, snapshot: Snapshot) -> ReplicaPart:
        """Return the part of a snapshot that is sent: all tensors of the modules that f used, and all its rows. Waits
        for pending copies from the device."""
        snapshot.wait()
        replica = snapshot.replica
        return ReplicaPart(
            {key: tensors for key, tensors in replica.modules.items() if key in snapshot.used}, replica.rows
        )

    def keep_rows(self) -> None:
        """Drop all replicated rows except those of the current chunk."""
        self.replicated.keep({type_name: table.ids for type_name, table in self._replicated_rows()})

    def keep_only(self, kept: Collection[VertexKey]) -> None:
        """Release all module vertices except `kept`. Safe only if the master has merged their changes."""
        self._views = {key: views for key, views in self._views.items() if key in kept}
        for type_name, modules in self._modules.items():
            modules.keep_only({index for name, index in kept if name == type_name})

    def forget_rows(self) -> None:
        """Drop all replicated rows and accumulated gradients, after the master has rejected work."""
        self._stepping.forget()
        self.replicated.forget()

    def changed_fields(self, start: int, stop: int) -> dict[str, RowValues]:
        """Return the mutable fields of local vertices, by type. Of the driving type, for whose vertices f is called,
        these are rows [start, stop); of other types, every row that f may have changed since the last call."""
        fields: dict[str, RowValues] = {}
        for name, table in self._tables.items():
            if not isinstance(table, Rows) or table.vertex_type.replicated or not table.changed:
                continue
            at = np.arange(start, stop) if name == self._driver else np.flatnonzero(table.dirty)
            table.dirty[:] = False
            values = {field: table.fields[field] for field in sorted(table.changed)}
            fields[name] = RowValues(table.ids, values).take(at)
        driving = self._rows(self._driver)
        for name, edges in driving.edges.items():
            if edges.places is not None:
                mutable = driving.vertex_type.mutable_of_edge(name)
                values = {field: edges.fields[field] for field in mutable}
                fields[f"{self._driver}:{name}"] = RowValues(edges.places, values).take(edges.span(start, stop))
        return fields

    def restart(self, newest: ReplicaPart) -> None:
        """Replace the replica by the master's. Local work since the last push is dropped.

        Optimisers that have not stepped yet start from the moments in `newest`. If an optimiser cannot use them, a note
        gives the reason.
        """
        self._stepping.forget()
        self._take(newest, None, 1)
        for type_name, index in newest.modules if newest.moments else ():
            fresh = "; it begins without the moments of other workers"
            self.notes += [text + fresh for text in self._modules[type_name].inherit(index, newest.moments)]
        self._used.clear()
        for table in self._tables.values():
            if isinstance(table, Rows):
                table.dirty[:] = False
                table.drop_copies()

    def module_values(self) -> dict[str, Array]:
        """Return the current tensors of all modules, by name. They are views: training changes them further."""
        values: dict[str, Array] = {}
        for key in self._views:
            self._modules[key[0]].pull(key[1])
            values |= self._follow(key)
        return values

    def received(self, part: ReplicaPart) -> ReplicaPart:
        """Return a replica from a reply. If the device is an accelerator, the tensors are copied to pinned memory, from
        which the device copies fast. Thread-safe."""
        if not self.device.accelerates:
            return part
        modules = {key: {n: pinned(t).numpy() for n, t in tensors.items()} for key, tensors in part.modules.items()}
        return replace(part, modules=modules)

    def rebase(self, pushed: Snapshot, newest: ReplicaPart, live: int) -> None:
        """Take the master's replica and keep local work since `pushed`. A tensor becomes newest + (local - pushed),
        unless its merge rule defines another formula."""
        pushed.wait()
        self.replicated.acknowledge_push()
        self._take(newest, pushed, live)

    def forget_optimisers(self) -> None:
        """Reset every optimiser's state, after the master has rejected work."""
        self._look_ahead.forget()
        for modules in self._modules.values():
            modules.forget_optimisers()

    def gather_statistics(self) -> dict[VertexKey, dict[str, Array]]:
        """Recompute the running statistics of all BatchNorm layers: see `Modules.gather_statistics`."""
        return {key: views for m in self._modules.values() for key, views in m.gather_statistics().items()}

    def _take(self, newest: ReplicaPart, pushed: Snapshot | None, live: int) -> None:
        for key, tensors in newest.modules.items():
            self._follow(key)
            modules = self._modules[key[0]]
            left = {} if pushed is None else pushed.replica.modules.get(key, {})
            if pushed is not None:
                plain = {n: (left[n], t) for n, t in tensors.items() if n in left and self._is_plain(key, n)}
                done = modules.rebase(key[1], plain)
                tensors = {name: values for name, values in tensors.items() if name not in done}
                modules.pull(key[1], tensors)
            for name, values in tensors.items():
                self._rebasing.merge_in(key[0], name, self._views[key][name], values, left.get(name), live)
            modules.put(key[1], tensors)
        for type_name, rows in newest.rows.items():
            table = self._rows(type_name) if type_name in self._tables else None
            self.replicated.take_into(table, type_name, rows, live, keeps=pushed is not None)

    def _is_plain(self, key: VertexKey, name: str) -> bool:
        return self.device.accelerates and self._rebasing.is_plain(key[0], name, self._views[key][name])

    def _follow(self, key: VertexKey) -> dict[str, Array]:
        """Return the current views of a vertex: f may have assigned new tensors to its module. Raises ProgramError if f
        changed a shape or dtype."""
        views = self._modules[key[0]].views(key[1])
        self._views[key] = checked_views(views, self._views.get(key, views))
        return self._views[key]

    def _rows(self, name: str) -> Rows:
        table = self._tables[name]
        assert isinstance(table, Rows)
        return table

    def _replicated_rows(self) -> list[tuple[str, Rows]]:
        return [(n, t) for n, t in self._tables.items() if isinstance(t, Rows) and t.vertex_type.replicated]


def _copied(view: Array, held: Array | None) -> Array:
    return view.copy() if held is None or not same_bits(view, held) else held

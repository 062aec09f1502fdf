"""Calls of f on batches of a chunk, the values that f logs, and the error of a failed batch.

f is called with rows of a chunk and with the rows of their neighbours. `BatchFailed` names the vertices on which f
failed.

A logged value is a mean over the vertices of one call. Values are summed by name until the next push. The push that
brings the work on these vertices carries their sums (`gridml.protocol.messages.Logged`): vertices and sums are credited
together. So values of vertices that are never credited, because a machine was evicted or f failed, are never counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from gridml.engine.modules import ModuleRows
from gridml.errors import ProgramError
from gridml.model.batch import Batch, Ids, Neighbours, Rows
from gridml.model.chunk import ChunkEdges
from gridml.model.device_memory import to_floats
from gridml.model.schedule import Progress
from gridml.model.update import Parameter, Update
from gridml.protocol.foreign import MAX_NAME_CHARS, printable
from gridml.protocol.messages import MAX_LOGGED, MAX_LOGGED_MEAN, MAX_LOGGED_NAME_CHARS, Logged

# The recorder of the engine whose f is running; None outside f. Set only by `Recorder.begin_batch` and `end_batch`.
_active: Recorder | None = None


def log(**values: Any) -> None:
    """Log numbers of the vertices that f is called with, by name: `gridml.log(loss=loss)`.

    A value is one number: a Python or NumPy number, or a tensor with one element, on any device. If f is called with a
    batch, the value must be the mean over the batch's vertices. Two values of one name in one call of f count as their
    mean. The run shows the mean over credited vertices, each counted once. A value that is not finite, or beyond ±1e40,
    is left out of that mean together with its vertices. Outside f, `log` does nothing, so that f can be tested alone.

    Raises ProgramError for a value that is not one number, for a name of more than 64 characters, and for more than 32
    names in one call of f.
    """
    if _active is not None:
        _active.add(values)


class Recorder:
    """Sums the values that f logs in one engine.

    A value moves through up to four stages: the current call, the current batch, values still on a device, sums.
    """

    def __init__(self) -> None:
        self._call: dict[str, list[Any]] = {}  # values of the current call of f, by name
        self._batch: list[tuple[str, list[Any], int]] = []  # (name, values, vertices) of finished calls of the batch
        self._later: list[tuple[str, list[Any], int]] = []  # the same for finished batches, if values are on a device
        self._sums: dict[str, tuple[float, int]] = {}  # all other values, by name: (sum over vertices, vertices)
        self._before: Recorder | None = None  # the recorder that `end_batch` restores: engines may nest in a process

    def begin_batch(self) -> None:
        """Record all values logged from now on."""
        global _active
        self._before, _active = _active, self

    def end_batch(self, *, failed: bool = False) -> None:
        """Stop recording. Values of a `failed` batch are dropped: its vertices are not credited."""
        global _active
        self._before, _active = None, self._before
        batch, self._batch = self._batch, []
        self._call.clear()
        for name, values, vertices in () if failed else batch:
            if all(isinstance(value, float) for value in values):
                self._sum(name, values, vertices)
            else:
                self._later.append((name, values, vertices))

    def add(self, values: dict[str, Any]) -> None:
        """Add the values of one call of `log`. Raises ProgramError as `log` does."""
        for name, value in values.items():
            if name not in self._call:
                if not 1 <= len(name) <= MAX_LOGGED_NAME_CHARS or not name.isprintable():
                    raise ProgramError(
                        f"gridml.log got the name {printable(repr(name), MAX_NAME_CHARS)}; expected 1 to "
                        f"{MAX_LOGGED_NAME_CHARS} characters that print."
                    )
                if len(self._call) == MAX_LOGGED:
                    raise ProgramError(
                        f"gridml.log got {name!r} after {MAX_LOGGED} other names; expected at most {MAX_LOGGED}. "
                        f"Return long lists of numbers from evaluate instead."
                    )
            self._call.setdefault(name, []).append(_number(name, value))

    def end_call(self, vertices: int) -> None:
        """End a call of f on this many vertices."""
        if self._call:
            self._batch += [(name, values, vertices) for name, values in self._call.items()]
            self._call.clear()

    def take(self) -> tuple[Logged, ...]:
        """Return the sums since the last call, and clear them."""
        later, self._later = self._later, []
        fetched = iter(to_floats([value for _, values, _ in later for value in values]))
        for name, values, vertices in later:
            self._sum(name, [next(fetched) for _ in values], vertices)
        sums, self._sums = self._sums, {}
        return tuple(Logged(name, *total) for name, total in sums.items())

    def forget(self) -> None:
        """Drop all values since the last `take`: their vertices will not be credited."""
        self._later.clear()
        self._sums.clear()

    def _sum(self, name: str, values: list[float], vertices: int) -> None:
        mean = sum(values) / len(values)
        if not abs(mean) <= MAX_LOGGED_MEAN:  # also drops NaN
            return
        if name not in self._sums and len(self._sums) == MAX_LOGGED:
            return  # a push carries at most MAX_LOGGED names; several calls of f together can log more
        total, before = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + mean * vertices, before + vertices


def _number(name: str, value: Any) -> Any:
    """Return a value as a float, or as a tensor that holds it on a device."""
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        if size != 1:
            raise TypeError(f"{type(value).__name__} of {size:,} numbers")
        device = getattr(getattr(value, "device", None), "type", "cpu")
        if device == "cpu":
            return float(value.item() if hasattr(value, "item") else value)
        return value.detach().clone()  # not .item(): that would wait for the device in every batch
    except (TypeError, ValueError) as error:
        raise ProgramError(
            f"gridml.log got {name}={printable(repr(value), MAX_NAME_CHARS)} ({error}); expected one number, such as "
            f"the mean over the batch: gridml.log({name}={name}.mean())."
        ) from error


Tables = Mapping[str, Rows | ModuleRows]


@final
class UpdateRunner:
    """Calls f for rows of one chunk, whose `tables` are given by name."""

    def __init__(self, update: Update, recorder: Recorder, tables: Tables) -> None:
        self._update = update
        self._recorder = recorder
        self._tables = tables
        self._driving = self.rows(update.driver.__name__)

    def rows(self, name: str) -> Rows:
        """Return the table of a type without modules."""
        table = self._tables[name]
        assert isinstance(table, Rows)
        return table

    def run(self, start: int, stop: int, progress: Progress) -> None:
        """Call f for rows [start, stop) of the driving type: once for the batch, or once for each vertex."""
        if self._update.batch is not None:
            self._call(start, stop, progress)
            return
        for at in range(start, stop):
            self._call_one(at, progress)

    def isolate_failure(self, start: int, stop: int, progress: Progress, error: BaseException) -> tuple[int, int]:
        """Bisect a failed batch: return the smallest range of rows found on which f fails with the same error.

        Stops when both halves fail, or neither does. f runs again and changes the replica, so the caller must drop the
        replica.
        """
        while stop - start > 1 and isinstance(error, Exception):
            middle = (start + stop) // 2
            failing = [half for half in ((start, middle), (middle, stop)) if self._fails_alike(*half, progress, error)]
            if len(failing) != 1:
                break
            ((start, stop),) = failing
        return start, stop

    def _fails_alike(self, start: int, stop: int, progress: Progress, error: Exception) -> bool:
        try:
            self.run(start, stop, progress)
        except Exception as again:
            return (type(again), str(again)) == (type(error), str(error))
        except (SystemExit, GeneratorExit, KeyboardInterrupt):
            return False
        return False

    def _call_one(self, at: int, progress: Progress) -> None:
        rows = self._driving
        arguments: list[Any] = []
        for parameter in self._update.parameters:
            if parameter.is_single:
                arguments.append(_only(rows.neighbours(parameter.edge, at), parameter))
            else:
                edges = rows.edges[parameter.edge]
                index = edges.index[edges.span(at, at + 1)]
                if len(index) > 1:  # each neighbour once, in the order of the edges: np.unique alone would sort them
                    index = index[np.sort(np.unique(index, return_index=True)[1])]
                arguments.append(Batch._over(self.rows(edges.target), index))
        self._update.call(progress, rows.vertex_type.cls._view(rows, at), *arguments)
        self._recorder.end_call(1)
        self._write_back(argument for argument in arguments if isinstance(argument, Batch))

    def _call(self, start: int, stop: int, progress: Progress) -> None:
        """Call f once for each distinct combination of the neighbours that f gets as single vertices. Usually all rows
        have the same combination, such as the one network of all images."""
        rows = self._driving
        singles = [parameter for parameter in self._update.parameters if parameter.is_single]
        targets = []
        for parameter in singles:
            neighbours = rows.edges[parameter.edge].one_each(start, stop)
            if neighbours is None:
                raise ProgramError(
                    f"{rows.vertex_type.name}.{parameter.edge} does not lead from each {rows.vertex_type.name} to "
                    f"exactly one vertex; annotate that argument of f as gridml.Batch[{parameter.type.name}]."
                )
            targets.append(neighbours)
        edges = [parameter.edge for parameter in singles]
        if all(t[0] == t[-1] and (t == t[0]).all() for t in targets):
            single = dict(zip(edges, [int(t[0]) for t in targets], strict=True))
            self._call_group(slice(start, stop), single, progress)
            return
        # Rows of one group need not be adjacent, so f gets them as copies.
        keys, group = np.unique(np.stack(targets, 1), axis=0, return_inverse=True)
        for g, key in enumerate(keys):
            at = np.flatnonzero(group.reshape(-1) == g) + start
            self._call_group(at, dict(zip(edges, key.tolist(), strict=True)), progress)

    def _call_group(self, at: slice | Ids, single: Mapping[str, int], progress: Progress) -> None:
        """Call f with the rows `at` as a batch. `single` has, by edge, the row of each argument that is one vertex."""
        rows = self._driving
        links: dict[str, Neighbours] = {}
        arguments: list[Any] = []
        batches: list[Batch[Any]] = []
        for parameter in self._update.parameters:
            edges = rows.edges[parameter.edge]
            if parameter.is_single:
                store = self._tables[edges.target]
                arguments.append(store.vertex_type.cls._view(store, single[parameter.edge]))
                continue
            links[parameter.edge], distinct = _linked(rows, edges, at)
            arguments.append(Batch._over(self.rows(edges.target), distinct))
            batches.append(arguments[-1])
        driving: Batch[Any] = Batch._over(rows, at, links)
        self._update.call(progress, driving, *arguments)
        self._recorder.end_call(len(driving))
        self._write_back((driving, *batches))

    def _write_back(self, batches: Iterable[Batch[Any]]) -> None:
        """Write f's changes to copies of values back to the tables."""
        for table in self._tables.values():
            if isinstance(table, Rows):
                table.write_back_copies()
        for batch in batches:
            batch._write_back()


def _linked(rows: Rows, edges: ChunkEdges, at: slice | Ids) -> tuple[Neighbours, Ids]:
    """Return (the `edges` of the rows `at`, in the form that f gets; the distinct rows to which they lead)."""
    if isinstance(at, slice):
        span = edges.span(at.start, at.stop)
        index, weight = edges.index[span], None if edges.weight is None else edges.weight[span]
        lengths = None if edges.offsets is None else np.diff(edges.offsets[at.start : at.stop + 1])
        count = at.stop - at.start
    else:
        spans = [np.arange(s.start, s.stop) for s in (edges.span(int(i), int(i) + 1) for i in at)]
        where = np.concatenate(spans)
        index, weight = edges.index[where], None if edges.weight is None else edges.weight[where]
        lengths = np.array([len(s) for s in spans])
        count = len(at)
    if lengths is None:
        lengths = np.full(count, edges.degree)
    distinct, inverse = np.unique(index, return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    neighbours = Neighbours(
        rows.present(inverse.reshape(-1).astype(np.int64)),
        rows.present(offsets),
        None if weight is None else rows.present(weight),
        None if weight is None or rows.reweighted is None else weight.copy(),
    )
    return neighbours, distinct


def _only(neighbours: list[Any], parameter: Parameter) -> Any:
    if len(neighbours) != 1:
        raise ProgramError(
            f"a vertex has {len(neighbours)} neighbours along {parameter.edge}; an argument that is one "
            f"{parameter.type.name} needs exactly one. Annotate it gridml.Batch[{parameter.type.name}]."
        )
    return neighbours[0]


class BatchFailed(Exception):
    """f failed on a batch that begins with vertex `first` and ends with vertex `last`. Both are indices in the graph,
    equal if f failed on one vertex alone. `__cause__` is the error that f raised."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"f failed on vertices {first} to {last}")
        self.first = first
        self.last = last

    def named(self, driver: str) -> str:
        """Return the vertices as text, such as "Image 5 to 12"."""
        return vertices_named(driver, self.first, self.last)


def vertices_named(driver: str, first: int, last: int) -> str:
    """Return the vertices of a batch as text. In a shuffled batch they are not in the order of their indices."""
    if first == last:
        return f"{driver} {first}"
    return f"{driver} {first} to {last}" if first < last else f"{driver} {first}, ..., {last}"

"""How f is called: with which rows of a chunk, and with which of their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.engine.modules import ModuleRows
from gridml.engine.recorder import Recorder
from gridml.errors import ProgramError
from gridml.model.batch import Batch, Neighbours, Rows
from gridml.model.chunk import ChunkEdges
from gridml.model.progress import Progress
from gridml.model.update import Parameter, Update

Ids = NDArray[np.int64]
Tables = Mapping[str, Rows | ModuleRows]


@final
class Calling:
    """Calls f for rows of the chunk whose `tables` these are, by name."""

    def __init__(self, update: Update, recorder: Recorder, tables: Tables) -> None:
        self._update = update
        self._recorder = recorder
        self._tables = tables
        self._driving = self.rows(update.driver.__name__)

    def rows(self, name: str) -> Rows:
        """The table of a type that has no modules."""
        table = self._tables[name]
        assert isinstance(table, Rows)
        return table

    def run(self, start: int, stop: int, progress: Progress) -> None:
        """Call f for rows [start, stop) of the driving type: once for a batch, or for one after the other."""
        if self._update.batch is not None:
            self._call(start, stop, progress)
            return
        for at in range(start, stop):
            self._call_one(at, progress)

    def narrowed(self, start: int, stop: int, progress: Progress, error: BaseException) -> tuple[int, int]:
        """Return the rows of a failed batch that f fails on in the same way without the others, found by halves: what
        they do to the replica is dropped with what the batch did. Rows that fail only together stay together."""
        while stop - start > 1 and isinstance(error, Exception):
            middle = (start + stop) // 2
            failing = [half for half in ((start, middle), (middle, stop)) if self._fails_so(*half, progress, error)]
            if len(failing) != 1:
                break
            ((start, stop),) = failing
        return start, stop

    def _fails_so(self, start: int, stop: int, progress: Progress, error: Exception) -> bool:
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
            if parameter.single:
                arguments.append(_only(rows.neighbours(parameter.edge, at), parameter))
            else:
                edges = rows.edges[parameter.edge]
                index = edges.index[edges.span(at, at + 1)]
                if len(index) > 1:  # in the order of the edges, each neighbour once
                    index = index[np.sort(np.unique(index, return_index=True)[1])]
                arguments.append(Batch._over(self.rows(edges.target), index))
        self._update.call(progress, rows.vertex_type.cls._view(rows, at), *arguments)
        self._recorder.end_call(1)
        self._bring_home(argument for argument in arguments if isinstance(argument, Batch))

    def _call(self, start: int, stop: int, progress: Progress) -> None:
        """Call f once for each distinct combination of its single neighbours among the rows; mostly there is one."""
        rows = self._driving
        singles = [parameter for parameter in self._update.parameters if parameter.single]
        targets = []
        for parameter in singles:
            neighbours = rows.edges[parameter.edge].one_each(start, stop)
            if neighbours is None:
                raise ProgramError(
                    f"{rows.vertex_type.name}.{parameter.edge} does not lead to exactly one vertex from each; "
                    f"annotate that argument of f as gridml.Batch[{parameter.type.name}]."
                )
            targets.append(neighbours)
        edges = [parameter.edge for parameter in singles]
        if all(t[0] == t[-1] and (t == t[0]).all() for t in targets):
            single = dict(zip(edges, [int(t[0]) for t in targets], strict=True))
            self._call_group(slice(start, stop), single, progress)
            return
        keys, group = np.unique(np.stack(targets, 1), axis=0, return_inverse=True)
        for g, key in enumerate(keys):
            at = np.flatnonzero(group.reshape(-1) == g) + start
            self._call_group(at, dict(zip(edges, key.tolist(), strict=True)), progress)

    def _call_group(self, at: slice | Ids, single: Mapping[str, int], progress: Progress) -> None:
        """Call f with the rows `at`, and with the vertex that each of its `single` arguments is, by edge."""
        rows = self._driving
        links: dict[str, Neighbours] = {}
        arguments: list[Any] = []
        batches: list[Batch[Any]] = []
        for parameter in self._update.parameters:
            edges = rows.edges[parameter.edge]
            if parameter.single:
                home = self._tables[edges.target]
                arguments.append(home.vertex_type.cls._view(home, single[parameter.edge]))
                continue
            links[parameter.edge], distinct = _linked(rows, edges, at)
            arguments.append(Batch._over(self.rows(edges.target), distinct))
            batches.append(arguments[-1])
        driving: Batch[Any] = Batch._over(rows, at, links)
        self._update.call(progress, driving, *arguments)
        self._recorder.end_call(len(driving))
        self._bring_home((driving, *batches))

    def _bring_home(self, batches: Iterable[Batch[Any]]) -> None:
        """Have in the tables what f wrote into what it was given."""
        for table in self._tables.values():
            if isinstance(table, Rows):
                table.bring_home()
        for batch in batches:
            batch._write_back()


def _linked(rows: Rows, edges: ChunkEdges, at: slice | Ids) -> tuple[Neighbours, Ids]:
    """Return (the edges of the rows `at` along a field, as f sees them; the distinct rows that these lead to)."""
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

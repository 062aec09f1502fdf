"""Keeps the second moments that workers have gathered, for those that come new (`gridml.engine.moments`).

They are advice: nothing that is credited rests on them, so nothing waits until they are safe, and none is needed. A
worker has one vote, the moments that it brought last, however often it pushes. That of one that has ended counts until
another worker of its machine votes. Which are taken, and what is given, is decided by `master.decisions.moment_votes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.engine.moments import entries_of
from gridml.model.graph import Graph
from gridml.model.layers import layers_of
from gridml.protocol.push import VertexKey, module_key
from gridml.protocol.text import described
from master.decisions.moment_votes import (
    MAX_STEPS_PER_VERTEX,
    VOTES,
    Remembered,
    asks,
    combined,
    examine,
    has_moments,
    votes_needed,
    without_minus_zero,
)
from master.records import Standing, WorkerRecord, WorkerTable
from master.store.moments_file import MomentsFile

Array = NDArray[Any]


class Vote(NamedTuple):
    """What a worker brought last."""

    machine: str
    moments: Mapping[str, Array]


@final
class KeptMoments:
    """Of all module vertices of a `graph` with optimisers, the last votes of its `workers`, each half as long as a
    replica; what is given of them is in a `file`, too, for the next master."""

    def __init__(self, graph: Graph, workers: WorkerTable, file: MomentsFile) -> None:
        self._graph = graph
        self._workers = workers
        self._file = file
        self._votes: dict[str, Vote] = {}  # by worker, the newest last
        self._given: dict[VertexKey, dict[str, Array]] = {}  # by an earlier master, until there are votes enough
        self._pushes = 0  # since a worker was asked last
        self._problems: list[str] = []  # for the user, who was not told of them yet

    def resume(self) -> None:
        """Have what an earlier master gave, unless it is of another program."""
        kept = self._file.read()
        is_taken, _ = examine(kept, self._known, asked=True, steps=np.inf) if kept else (False, "")
        self._given = _by_vertex(kept) if is_taken else {}

    def asks(self, record: WorkerRecord) -> bool:
        """Whether a worker whose push is answered is to bring its own with the next, which is remembered.

        Only here is forgotten what it was asked before: its push is committed, and does not come again."""
        was_asked, record.moments_asked = record.moments_asked, False
        if not has_moments(self._known):
            return False
        self._pushes += 1
        is_newest = next(reversed(self._votes), None) == record.name
        votes, has_voted = len(self._votes), record.name in self._votes
        # One that was asked and brought none holds its place until this is decided: others are asked before it.
        pending = 0 if has_voted or votes >= VOTES else self._pending + bool(was_asked)
        if not asks(votes=votes, has_voted=has_voted, is_newest=is_newest, pushes=self._pushes, pending=pending):
            return False
        record.moments_asked = True
        if has_voted or votes in (0, VOTES):  # those that end before they vote do not keep others from it
            self._pushes = 0
        return True

    @property
    def _pending(self) -> int:
        """How many workers that have not voted are asked, and go on."""
        return sum(
            each.moments_asked is True and each.standing is not Standing.SUSPENDED and each.name not in self._votes
            for each in self._workers
        )

    def take_problems(self) -> list[str]:
        """Return, once, why workers that come new are given no moments of some optimisers."""
        problems, self._problems = self._problems, []
        return problems

    def take(self, record: WorkerRecord, moments: Mapping[str, Array], credited: int) -> str | None:
        """Have what came with a push of a worker count for those who come new, where so many vertices are trained in
        all. Return why it is left out; None where it is taken, nothing came, or this master cannot know whether the
        worker was asked: it has ended, or was asked last by an earlier master. May be repeated until `asks`."""
        asked = record.moments_asked
        if not moments or asked is None or self._workers.get(record.name) is not record:
            return None
        is_taken, reason = examine(moments, self._known, asked=asked, steps=MAX_STEPS_PER_VERTEX * credited)
        if not is_taken:
            return reason
        for name, vote in [*self._votes.items()]:
            if name == record.name or (vote.machine == record.machine and self._workers.get(name) is None):
                del self._votes[name]
        # Copies, not the payload's memory, which would all be held.
        copies = {whole: without_minus_zero(values) for whole, values in moments.items()}
        self._votes[record.name] = Vote(record.machine, copies)
        while len(self._votes) > VOTES:
            self._votes.pop(next(iter(self._votes)))
        self._give()
        return None

    def withdraw(self, record: WorkerRecord) -> None:
        """Have a worker whose work was refused or blamed count no more. Idempotent."""
        if self._votes.pop(record.name, None) is not None:
            self._give()

    def of(self, keys: Collection[VertexKey]) -> dict[str, Array]:
        """Return what newcomers begin with of these module vertices, by "entry/NAME"."""
        return {name: values for key in keys for name, values in self._given.get(key, {}).items()}

    def clear(self) -> None:
        """Forget all: those who began with them failed, perhaps for that."""
        self._votes.clear()
        self._given.clear()
        self._file.remove()

    def _give(self) -> None:
        """Combine the votes, where there are enough."""
        needed = votes_needed(self._workers.wanted)
        if len(self._votes) >= needed:
            given = combined([vote.moments for vote in self._votes.values()], needed)
            self._given = _by_vertex(given)
            self._file.write(given)

    @cached_property
    def _known(self) -> dict[str, Remembered]:
        """What the optimisers of the program remember, by the name of a weight."""
        known: dict[str, Remembered] = {}
        for table in self._graph.replicated:
            for field, declared in table.type.modules.items():
                if declared.optimiser is None:
                    continue
                weights = layers_of(declared).weights
                try:
                    entries = entries_of(declared.optimiser, weights or ())
                except Exception as error:  # its step needs more than gradients, perhaps
                    problem = f"one step of the optimiser of {table.type.name}.{field} was tried: {described(error)}"
                    self._problems.append(f"{problem}; new workers start without the moments of others for it")
                    continue
                shapes = {weight.name: weight.shape for weight in weights or ()}
                for index in range(table.count):
                    of_it = f"{table.type.name}/{index}/{field}/"
                    known |= {of_it + name: Remembered(shapes[name], each) for name, each in entries.items()}
        return known


def _by_vertex(moments: Mapping[str, Array]) -> dict[VertexKey, dict[str, Array]]:
    vertices: dict[VertexKey, dict[str, Array]] = {}
    for whole, values in moments.items():
        key = module_key(whole.partition("/")[2])
        assert key is not None, "only moments that were examined come here"
        vertices.setdefault(key, {})[whole] = values
    return vertices

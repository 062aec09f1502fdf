"""Second moments of workers' optimisers, pooled and combined for new workers (`gridml.engine.optimisers`).

Moments are advice. No credit depends on them, so nothing waits until they are safe, and a worker without any trains all
the same. Odd moments are left out, and the push that brings them is merged.

A worker has one vote: the moments that it brought last. The vote of a worker that has ended counts until another worker
of its machine votes. Once three workers have voted, each element that a new worker is given lies between the values of
two of them, so one hostile worker cannot move it beyond what honest workers span.

The combined moments are also kept on disk, so that a run that is resumed after all its workers have ended still has
them. The file is named by its SHA-256, which reveals a torn write. If it is missing or cannot be written, new workers
gather their own moments.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gridml.engine.optimisers import COUNTERS, FIRST, SECOND, entries_of
from gridml.model.graph import Graph
from gridml.model.layers import layers_of
from gridml.protocol import bundle
from gridml.protocol.foreign import described
from gridml.protocol.push import VertexKey, module_key
from master.state.worker_records import WorkerRecord, WorkerStatus, WorkerTable

Array = NDArray[Any]


#: Votes that are kept, of different workers: of three, one hostile vote is outvoted.
MAX_VOTES = 3
#: Workers that are asked beyond the missing votes: some end before they push.
EXTRA_ASKED = 2
#: Pushes per vote: moments are half as long as a replica, and change slowly.
VOTE_EVERY = 16
#: Plausible optimiser steps for each vertex that the run has trained.
MAX_STEPS_PER_VERTEX = 64
#: Bit patterns of bfloat16, as uint16.
_INFINITY, _MINUS_ZERO = 0x7F80, 0x8000


class WeightState(NamedTuple):
    """The state that the program's optimiser keeps of a weight."""

    shape: tuple[int, ...]
    entries: frozenset[str]


def votes_needed(workers: int) -> int:
    """Return how many workers must have voted before new workers are given moments. A run of fewer workers can never
    have more votes."""
    return min(MAX_VOTES, max(1, workers))


def should_ask(*, votes: int, has_voted: bool, is_newest: bool, pushes: int, pending: int = 0) -> bool:
    """Return whether a worker should send its moments, `pushes` after the last request.

    Until there are enough votes, workers that have not voted are asked: as many at once as votes are missing, and
    `EXTRA_ASKED` more. `pending` others are asked and have not pushed since. After that one push in `VOTE_EVERY` is
    asked for, and from another worker than the one that voted last, unless the others are silent.
    """
    if votes < MAX_VOTES and not has_voted:
        return pending < MAX_VOTES - votes + EXTRA_ASKED
    return pushes >= (2 * VOTE_EVERY if is_newest and votes > 1 else VOTE_EVERY)


def validate(
    brought: Mapping[str, Array], known: Mapping[str, WeightState], *, asked: bool, steps: float
) -> tuple[bool, str]:
    """Return (whether the moments of a push are valid, why not). `brought` maps "entry/NAME" to values.

    They must have been asked for and be complete: every entry of a weight's optimiser, with its shape and sign, finite,
    and with at most `steps` steps. Weights without any gradient so far may be absent.
    """
    if not asked:
        return False, "the push has optimiser moments that this master did not ask for"
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for whole, values in brought.items():
        entry, _, name = whole.partition("/")
        if name not in known:
            return False, f"the push has moments of {name}; expected none: no optimiser of the program shares them"
        if entry not in known[name].entries:
            return False, f"the push has {entry} of {name}; expected {_listed(known[name].entries)}"
        if (problem := _problem(entry, values, known[name].shape, steps)) is not None:
            return False, f"{entry} of {name} {problem}"
        entries[name].add(entry)
    for name, got in entries.items():
        if got != known[name].entries:
            return False, f"the push has {_listed(got)} of {name}; expected {_listed(known[name].entries)}"
    return True, "complete and valid"


def _problem(entry: str, values: Array, shape: tuple[int, ...], steps: float) -> str | None:
    expected = shape if entry in SECOND else ()
    if values.shape != expected:
        return f"has shape {values.shape}; expected {expected}"
    if values.ndim:
        if not ((values < _INFINITY) | (values == _MINUS_ZERO)).all():
            return "has values that are negative or not finite; expected finite numbers of at least 0"
        return None
    value = float(values)
    if entry in FIRST and value != 0:
        return f"is {value:g}; expected 0: first moments are not shared"
    if entry == "step" and not (0 <= value <= steps and value.is_integer()):
        return f"is {value:g}; expected a whole number of steps from 0 to {steps:g}"
    if entry == "mu_product" and not 0 <= value <= 1:
        return f"is {value:g}; expected a number from 0 to 1"
    if not 0 <= value < np.inf:
        return f"is {value:g}; expected a finite number of at least 0"
    return None


def combine(votes: Sequence[Mapping[str, Array]], needed: int) -> dict[str, Array]:
    """Return the moments for new workers by "entry/NAME": the element-wise median of each weight that at least `needed`
    votes have."""
    taken: dict[str, Array] = {}
    for whole in dict.fromkeys(whole for vote in votes for whole in vote):
        values = [vote[whole] for vote in votes if whole in vote]
        if len(values) >= needed:
            # Of an even number the lower median of squares and the upper one of steps: a square that is too small
            # makes steps longer, which optimisers bound, while one that is too large stops them.
            middle = len(values) // 2 if whole.startswith("step/") else (len(values) - 1) // 2
            taken[whole] = _nth(values, middle)
    return taken


def _nth(values: Sequence[Array], place: int) -> Array:
    """Return the element-wise `place`-th smallest. The bits of non-negative bfloat16 numbers have the order of the
    numbers."""
    if len(values) == 1:
        return values[0]
    if len(values) == 2:
        return np.asarray((np.minimum, np.maximum)[place](*values))  # of arrays () numpy makes numbers
    if len(values) == 3 and place == 1:
        low, high = np.minimum(values[0], values[1]), np.maximum(values[0], values[1])
        return np.asarray(np.maximum(low, np.minimum(high, values[2])))
    return np.asarray(np.sort(np.stack(values), axis=0)[place])


def without_minus_zero(values: Array) -> Array:
    """Return a copy of bfloat16 values in which zeros have no sign, whose bits would not be in order."""
    return np.where(values == _MINUS_ZERO, np.uint16(0), values) if values.ndim else values.copy()


def has_moments(known: Mapping[str, WeightState]) -> bool:
    """Return whether any optimiser has state that others could start from."""
    return any(each.entries & SECOND for each in known.values())


def _listed(entries: Collection[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


assert not SECOND & (FIRST | COUNTERS), "an entry has one kind"


_FILE = re.compile(r"([0-9a-f]{64})\.safetensors")


@final
class MomentsFile:
    """The single file in `folder`. The folder is created with the first moments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, moments: Mapping[str, Array]) -> None:
        """Replace the saved moments. A full disk is no error: then none are saved."""
        self.remove()
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            content = bundle.pieces({}, moments)
            bundle.write_named(lambda sha256: self._folder / f"{sha256}.safetensors", content, durable=False)

    def read(self) -> dict[str, Array]:
        """Return the saved moments; nothing where the file is missing or torn."""
        for path in self._paths():
            name = _FILE.fullmatch(path.name)
            with contextlib.suppress(OSError, ValueError):
                content = path.read_bytes()
                if name is not None and bundle.digest(content) == name[1]:
                    return bundle.decode(content)[1]
        return {}

    def remove(self) -> None:
        """Remove the saved moments."""
        with contextlib.suppress(OSError):
            for path in self._paths():
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # no folder before the first write
            return [*self._folder.iterdir()]
        return []


class Vote(NamedTuple):
    """The moments that a worker brought last."""

    machine: str
    moments: Mapping[str, Array]


@final
class SharedMoments:
    """The last votes on the moments of all module vertices with optimisers, and what is combined from them for new
    workers.

    Each vote is half as long as a replica. The combined moments are saved to a `file` for the next master.
    """

    def __init__(self, graph: Graph, workers: WorkerTable, file: MomentsFile) -> None:
        self._graph = graph
        self._workers = workers
        self._file = file
        #: by worker, the newest last; at most `MAX_VOTES`
        self._votes: dict[str, Vote] = {}
        #: combined moments; those of an earlier master until there are enough votes
        self._given: dict[VertexKey, dict[str, Array]] = {}
        #: since the last request
        self._pushes = 0
        #: for the user, until `take_problems`
        self._problems: list[str] = []
        self._resume()

    def _resume(self) -> None:
        """Load the moments that an earlier master saved, unless they are of another program."""
        kept = self._file.read()
        is_taken, _ = validate(kept, self._known, asked=True, steps=np.inf) if kept else (False, "")
        self._given = _by_vertex(kept) if is_taken else {}

    def should_ask(self, record: WorkerRecord) -> bool:
        """Return whether a worker whose push is answered should send its moments with the next, and remember the
        request."""
        # The earlier request is forgotten only here: the push is committed and will not be repeated.
        was_asked, record.moments.asked = record.moments.asked, False
        if not has_moments(self._known):
            return False
        self._pushes += 1
        is_newest = next(reversed(self._votes), None) == record.name
        votes, has_voted = len(self._votes), record.name in self._votes
        # A worker that was asked and sent none still counts as pending here, so that others are asked before it.
        pending = 0 if has_voted or votes >= MAX_VOTES else self._pending + bool(was_asked)
        if not should_ask(votes=votes, has_voted=has_voted, is_newest=is_newest, pushes=self._pushes, pending=pending):
            return False
        record.moments.asked = True
        if has_voted or votes in (0, MAX_VOTES):  # workers that end before they vote do not delay others
            self._pushes = 0
        return True

    @property
    def _pending(self) -> int:
        """The number of workers that have not voted, are asked, and are not suspended."""
        return sum(
            each.moments.asked is True and each.status is not WorkerStatus.SUSPENDED and each.name not in self._votes
            for each in self._workers
        )

    def take_problems(self) -> list[str]:
        """Return, once each, the reasons why new workers get no moments of some optimisers."""
        problems, self._problems = self._problems, []
        return problems

    def take(self, record: WorkerRecord, moments: Mapping[str, Array], credited: int) -> str | None:
        """Count the moments of a push as the vote of its worker; `credited` are the vertices trained in the whole run.
        Return why they are left out.

        Returns None where they are taken, where there are none, and where this master cannot know whether it asked: the
        worker has ended, or was asked by an earlier master. May be repeated until `should_ask`.
        """
        asked = record.moments.asked
        if not moments or asked is None or self._workers.get(record.name) is not record:
            return None
        is_taken, reason = validate(moments, self._known, asked=asked, steps=MAX_STEPS_PER_VERTEX * credited)
        if not is_taken:
            return reason
        for name, vote in [*self._votes.items()]:
            if name == record.name or (vote.machine == record.machine and self._workers.get(name) is None):
                del self._votes[name]
        # Copies: views would keep the whole payload in memory.
        copies = {whole: without_minus_zero(values) for whole, values in moments.items()}
        self._votes[record.name] = Vote(record.machine, copies)
        while len(self._votes) > MAX_VOTES:
            self._votes.pop(next(iter(self._votes)))
        self._give()
        return None

    def withdraw(self, record: WorkerRecord) -> None:
        """Drop the vote of a worker whose work was refused or flagged. Idempotent."""
        if self._votes.pop(record.name, None) is not None:
            self._give()

    def of(self, keys: Collection[VertexKey]) -> dict[str, Array]:
        """Return the combined moments of these module vertices, by "entry/NAME"."""
        return {name: values for key in keys for name, values in self._given.get(key, {}).items()}

    def clear(self) -> None:
        """Drop everything: workers that started with these moments failed, perhaps because of them."""
        self._votes.clear()
        self._given.clear()
        self._file.remove()

    def _give(self) -> None:
        """Combine the votes, if there are enough."""
        needed = votes_needed(self._workers.wanted)
        if len(self._votes) >= needed:
            given = combine([vote.moments for vote in self._votes.values()], needed)
            self._given = _by_vertex(given)
            self._file.write(given)

    @cached_property
    def _known(self) -> dict[str, WeightState]:
        """The state that the program's optimisers keep, by the name of a weight."""
        known: dict[str, WeightState] = {}
        for table in self._graph.replicated:
            for field, declared in table.type.modules.items():
                if declared.optimiser is None:
                    continue
                weights = layers_of(declared).weights
                try:
                    entries = entries_of(declared.optimiser, weights or ())
                except Exception as error:  # its step may need more than gradients
                    problem = f"one step of the optimiser of {table.type.name}.{field} was tried: {described(error)}"
                    self._problems.append(f"{problem}; new workers start without the moments of others for it")
                    continue
                shapes = {weight.name: weight.shape for weight in weights or ()}
                for index in range(table.count):
                    of_it = f"{table.type.name}/{index}/{field}/"
                    known |= {of_it + name: WeightState(shapes[name], each) for name, each in entries.items()}
        return known


def _by_vertex(moments: Mapping[str, Array]) -> dict[VertexKey, dict[str, Array]]:
    vertices: dict[VertexKey, dict[str, Array]] = {}
    for whole, values in moments.items():
        key = module_key(whole.partition("/")[2])
        assert key is not None, "only valid moments come here"
        vertices.setdefault(key, {})[whole] = values
    return vertices

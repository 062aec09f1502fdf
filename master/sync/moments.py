"""Second moments that workers have gathered, kept and combined for new workers (`gridml.engine.optimisers`).

Moments are advice: nothing that is credited rests on them, so nothing waits until they are safe, and a worker that
begins without any trains all the same. What is odd is left out, and the push that brings it is merged.

A worker has one vote, the moments that it brought last, however often it pushes. The vote of one that has ended
counts until another worker of its machine votes. What a new worker is given lies, element by element, between what
two different workers brought, as soon as three have: one that lies moves it nowhere that honest ones do not span.

They are also on disk, so that a run that is resumed after all its workers have gone has them. The file is named by
its SHA-256, so that one which a power cut left torn is not believed. None is needed: where it is missing, or cannot
be written, new workers gather their own.
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
from master.state.worker_records import Standing, WorkerRecord, WorkerTable

Array = NDArray[Any]


MAX_VOTES = 3  # of different workers that are kept: one of three that lies is outvoted
EXTRA_ASKED = 2  # workers that are asked beyond the votes that are missing: some end before they push
VOTE_EVERY = 16  # pushes, of which one brings them: they are half as long as a replica, and change slowly
MAX_STEPS_PER_VERTEX = 64  # of an optimiser, for each vertex that the run has trained
_INFINITY, _MINUS_ZERO = 0x7F80, 0x8000  # bfloat16, as uint16


class WeightState(NamedTuple):
    """What an optimiser of the program remembers of a weight."""

    shape: tuple[int, ...]
    entries: frozenset[str]


def votes_needed(workers: int) -> int:
    """Return how many different workers must have brought moments before newcomers are given any, in a run of so many
    at once: where one alone trains there is nobody else to ask."""
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
    """Decide whether what a push brings, by "entry/NAME", is taken, and say why not.

    It must have been asked for, and be whole: of each weight all entries that its optimiser has, of the right shape and
    sign, finite, with no more than `steps` steps behind them. Weights that no gradient has reached may be absent.
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
    """Return what newcomers begin with, by "entry/NAME": of each weight that `needed` votes or more have, the median of
    each element. Of an even number it is the lower one of squares, the higher one of steps: small squares make steps
    longer, which an optimiser bounds, and large ones stop them.
    """
    taken: dict[str, Array] = {}
    for whole in dict.fromkeys(whole for vote in votes for whole in vote):
        values = [vote[whole] for vote in votes if whole in vote]
        if len(values) >= needed:
            middle = len(values) // 2 if whole.startswith("step/") else (len(values) - 1) // 2
            taken[whole] = _nth(values, middle)
    return taken


def _nth(values: Sequence[Array], place: int) -> Array:
    """The element-wise `place`-th smallest. Numbers that are not negative are ordered as their bits in bfloat16 are."""
    if len(values) == 1:
        return values[0]
    if len(values) == 2:
        return np.asarray((np.minimum, np.maximum)[place](*values))  # of arrays () numpy makes numbers
    if len(values) == 3 and place == 1:
        low, high = np.minimum(values[0], values[1]), np.maximum(values[0], values[1])
        return np.asarray(np.maximum(low, np.minimum(high, values[2])))
    return np.asarray(np.sort(np.stack(values), axis=0)[place])


def without_minus_zero(values: Array) -> Array:
    """Return a copy of values in bfloat16 in which a zero has no sign."""
    return np.where(values == _MINUS_ZERO, np.uint16(0), values) if values.ndim else values.copy()


def has_moments(known: Mapping[str, WeightState]) -> bool:
    """Whether any optimiser remembers what others could begin with."""
    return any(each.entries & SECOND for each in known.values())


def _listed(entries: Collection[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


assert not SECOND & (FIRST | COUNTERS), "an entry is of one sort"


_FILE = re.compile(r"([0-9a-f]{64})\.safetensors")


@final
class MomentsFile:
    """The one file in `folder`, which is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, moments: Mapping[str, Array]) -> None:
        """Keep `moments` in place of those that were kept. A disk that is full is no error: then none are kept."""
        self.remove()
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            content = bundle.pieces({}, moments)
            bundle.write_named(lambda sha256: self._folder / f"{sha256}.safetensors", content, durable=False)

    def read(self) -> dict[str, Array]:
        """Return what is kept; nothing where that is torn, or no file."""
        for path in self._paths():
            name = _FILE.fullmatch(path.name)
            with contextlib.suppress(OSError, ValueError):
                content = path.read_bytes()
                if name is not None and bundle.digest(content) == name[1]:
                    return bundle.decode(content)[1]
        return {}

    def remove(self) -> None:
        """Keep nothing any more."""
        with contextlib.suppress(OSError):
            for path in self._paths():
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        with contextlib.suppress(OSError):  # there is no folder before anything was kept
            return [*self._folder.iterdir()]
        return []


class Vote(NamedTuple):
    """What a worker brought last."""

    machine: str
    moments: Mapping[str, Array]


@final
class SharedMoments:
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
        self._resume()

    def _resume(self) -> None:
        """Have what an earlier master gave, unless it is of another program."""
        kept = self._file.read()
        is_taken, _ = validate(kept, self._known, asked=True, steps=np.inf) if kept else (False, "")
        self._given = _by_vertex(kept) if is_taken else {}

    def should_ask(self, record: WorkerRecord) -> bool:
        """Whether a worker whose push is answered is to bring its own with the next, which is remembered.

        Only here is forgotten what it was asked before: its push is committed, and does not come again."""
        was_asked, record.moments.asked = record.moments.asked, False
        if not has_moments(self._known):
            return False
        self._pushes += 1
        is_newest = next(reversed(self._votes), None) == record.name
        votes, has_voted = len(self._votes), record.name in self._votes
        # One that was asked and brought none holds its place until this is decided: others are asked before it.
        pending = 0 if has_voted or votes >= MAX_VOTES else self._pending + bool(was_asked)
        if not should_ask(votes=votes, has_voted=has_voted, is_newest=is_newest, pushes=self._pushes, pending=pending):
            return False
        record.moments.asked = True
        if has_voted or votes in (0, MAX_VOTES):  # those that end before they vote do not keep others from it
            self._pushes = 0
        return True

    @property
    def _pending(self) -> int:
        """How many workers that have not voted are asked, and go on."""
        return sum(
            each.moments.asked is True and each.standing is not Standing.SUSPENDED and each.name not in self._votes
            for each in self._workers
        )

    def take_problems(self) -> list[str]:
        """Return, once, why workers that come new are given no moments of some optimisers."""
        problems, self._problems = self._problems, []
        return problems

    def take(self, record: WorkerRecord, moments: Mapping[str, Array], credited: int) -> str | None:
        """Have what came with a push of a worker count for those who come new, where so many vertices are trained in
        all. Return why it is left out; None where it is taken, nothing came, or this master cannot know whether the
        worker was asked: it has ended, or was asked last by an earlier master. May be repeated until `should_ask`."""
        asked = record.moments.asked
        if not moments or asked is None or self._workers.get(record.name) is not record:
            return None
        is_taken, reason = validate(moments, self._known, asked=asked, steps=MAX_STEPS_PER_VERTEX * credited)
        if not is_taken:
            return reason
        for name, vote in [*self._votes.items()]:
            if name == record.name or (vote.machine == record.machine and self._workers.get(name) is None):
                del self._votes[name]
        # Copies, not the payload's memory, which would all be held.
        copies = {whole: without_minus_zero(values) for whole, values in moments.items()}
        self._votes[record.name] = Vote(record.machine, copies)
        while len(self._votes) > MAX_VOTES:
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
            given = combine([vote.moments for vote in self._votes.values()], needed)
            self._given = _by_vertex(given)
            self._file.write(given)

    @cached_property
    def _known(self) -> dict[str, WeightState]:
        """What the optimisers of the program remember, by the name of a weight."""
        known: dict[str, WeightState] = {}
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
                    known |= {of_it + name: WeightState(shapes[name], each) for name, each in entries.items()}
        return known


def _by_vertex(moments: Mapping[str, Array]) -> dict[VertexKey, dict[str, Array]]:
    vertices: dict[VertexKey, dict[str, Array]] = {}
    for whole, values in moments.items():
        key = module_key(whole.partition("/")[2])
        assert key is not None, "only moments that were examined come here"
        vertices.setdefault(key, {})[whole] = values
    return vertices

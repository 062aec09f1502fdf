"""Second moments of workers' optimisers, pooled and combined for new workers (`gridml.engine.optimisers`).

Moments are optional. No credit depends on them, so nothing waits until they are saved, and a worker without moments
trains, too. Invalid moments are left out, but the push that contains them is merged.

A worker has one vote: the moments that it pushed last. The vote of a worker that has ended counts until another worker
on its machine votes. Once three workers have voted, each element that a new worker is given lies between the values of
two of them, so one hostile worker cannot move the element out of the range of honest workers.

The combined moments are also saved to a file, for a run that is resumed after all its workers have ended. The name of
the file contains its SHA-256, which reveals an incomplete write. If the file is missing or cannot be written, new
workers gather their own moments.
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


#: Maximum number of votes, of different workers. Among three votes, a hostile vote is outvoted.
MAX_VOTES = 3
#: Number of workers that are asked in addition to the number of missing votes, because some end before they push.
EXTRA_ASKED = 2
#: Number of pushes per vote. Votes are rare, because moments have half the bytes of a replica and change slowly.
VOTE_EVERY = 16
#: Maximum number of optimiser steps that is plausible for each vertex that the run has trained.
MAX_STEPS_PER_VERTEX = 64
#: Bit patterns of bfloat16, as uint16.
_INFINITY, _MINUS_ZERO = 0x7F80, 0x8000


class WeightState(NamedTuple):
    """The state that the program's optimiser keeps of a weight."""

    shape: tuple[int, ...]
    entries: frozenset[str]


def votes_needed(workers: int) -> int:
    """Return the number of workers that must have voted before new workers are given moments: `MAX_VOTES`, or `workers`
    if that is less."""
    return min(MAX_VOTES, max(1, workers))


def should_ask(*, votes: int, has_voted: bool, is_newest: bool, pushes: int, pending: int = 0) -> bool:
    """Return whether a worker should send its moments, `pushes` after the last request.

    While fewer than `MAX_VOTES` have voted, workers that have not voted are asked: as many at a time as votes are
    missing, and `EXTRA_ASKED` more. `pending` is the number of other workers that were asked and have not pushed since.
    Later, one worker is asked every `VOTE_EVERY` pushes. The worker that voted last (`is_newest`) is asked only after
    twice as many pushes.
    """
    if votes < MAX_VOTES and not has_voted:
        return pending < MAX_VOTES - votes + EXTRA_ASKED
    return pushes >= (2 * VOTE_EVERY if is_newest and votes > 1 else VOTE_EVERY)


def validate(
    brought: Mapping[str, Array], known: Mapping[str, WeightState], *, asked: bool, steps: float
) -> tuple[bool, str]:
    """Return (whether the moments of a push are valid, reason). `brought` maps "entry/NAME" to values.

    The moments must have been asked for. A weight must have every entry of its optimiser, with the right shape and
    sign, finite, and with at most `steps` steps. A weight may be absent, because it may have had no gradient so far.
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
            # If the number of votes is even, take the lower median of squared gradients and the upper median of step
            # counts. Squares that are too small make steps longer, which optimisers bound; squares that are too large
            # make steps vanish.
            middle = len(values) // 2 if whole.startswith("step/") else (len(values) - 1) // 2
            taken[whole] = _nth(values, middle)
    return taken


def _nth(values: Sequence[Array], place: int) -> Array:
    """Return the `place`-th smallest value of each element, counted from 0. Values are compared as bits, because the
    bits of non-negative bfloat16 numbers have the order of the numbers."""
    if len(values) == 1:
        return values[0]
    if len(values) == 2:
        return np.asarray((np.minimum, np.maximum)[place](*values))  # numpy returns scalars for shape ()
    if len(values) == 3 and place == 1:
        low, high = np.minimum(values[0], values[1]), np.maximum(values[0], values[1])
        return np.asarray(np.maximum(low, np.minimum(high, values[2])))
    return np.asarray(np.sort(np.stack(values), axis=0)[place])


def without_minus_zero(values: Array) -> Array:
    """Return a copy of bfloat16 values with 0 instead of negative zeros, because their bits would not be in order."""
    return np.where(values == _MINUS_ZERO, np.uint16(0), values) if values.ndim else values.copy()


def has_moments(known: Mapping[str, WeightState]) -> bool:
    """Return whether any optimiser has state from which other workers could start."""
    return any(each.entries & SECOND for each in known.values())


def _listed(entries: Collection[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


assert not SECOND & (FIRST | COUNTERS), "an entry has one kind"


_FILE = re.compile(r"([0-9a-f]{64})\.safetensors")


@final
class MomentsFile:
    """The file of combined moments, the only one in `folder`. The folder is created with the first moments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, moments: Mapping[str, Array]) -> None:
        """Replace the saved moments. If the disk is full, no moments are saved, and no error is raised."""
        self.remove()
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            content = bundle.pieces({}, moments)
            bundle.write_named(lambda sha256: self._folder / f"{sha256}.safetensors", content)

    def read(self) -> dict[str, Array]:
        """Return the saved moments; {} if the file is missing or incomplete."""
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
    """The moments that a worker pushed last."""

    machine: str
    moments: Mapping[str, Array]


@final
class SharedMoments:
    """The last votes on the moments of all module vertices with optimisers, and the moments for new workers, which are
    combined from the votes.

    Each vote has half the bytes of a replica. The combined moments are saved to a `file` for the next master.
    """

    def __init__(self, graph: Graph, workers: WorkerTable, file: MomentsFile) -> None:
        self._graph = graph
        self._workers = workers
        self._file = file
        #: by worker, the newest last; at most `MAX_VOTES`
        self._votes: dict[str, Vote] = {}
        #: combined moments; until there are enough votes, those that an earlier master saved
        self._given: dict[VertexKey, dict[str, Array]] = {}
        #: pushes since the last request
        self._pushes = 0
        #: reasons for the user; emptied by `take_problems`
        self._problems: list[str] = []
        self._resume()

    def _resume(self) -> None:
        """Load the moments that an earlier master saved, unless they do not fit the program."""
        kept = self._file.read()
        is_taken, _ = validate(kept, self._known, asked=True, steps=np.inf) if kept else (False, "")
        self._given = _by_vertex(kept) if is_taken else {}

    def should_ask(self, record: WorkerRecord) -> bool:
        """Return whether a worker should send its moments with its next push, and remember the request. Call once per
        answered push."""
        # The earlier request is forgotten here and not earlier, because only now the push is committed and cannot be
        # merged again.
        was_asked, record.moments.asked = record.moments.asked, False
        if not has_moments(self._known):
            return False
        self._pushes += 1
        is_newest = next(reversed(self._votes), None) == record.name
        votes, has_voted = len(self._votes), record.name in self._votes
        # A worker that was asked, but sent no moments, still counts as pending here, so that others are asked first.
        pending = 0 if has_voted or votes >= MAX_VOTES else self._pending + bool(was_asked)
        if not should_ask(votes=votes, has_voted=has_voted, is_newest=is_newest, pushes=self._pushes, pending=pending):
            return False
        record.moments.asked = True
        # The count goes on after a request for a missing vote. So the next request is not delayed if the worker ends
        # without voting.
        if has_voted or votes in (0, MAX_VOTES):
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
        """Return the reasons why new workers get no moments of some optimisers. Each reason is returned once."""
        problems, self._problems = self._problems, []
        return problems

    def take(self, record: WorkerRecord, moments: Mapping[str, Array], credited: int) -> str | None:
        """Count the moments of a push as the vote of its worker. `credited` is the number of vertices that the run has
        trained. Return the reason if the moments are invalid and so left out.

        Returns None if the moments are taken, or if there are none. Also returns None if this master cannot know
        whether the moments were asked for, because the worker has ended or an earlier master asked. May be repeated
        until `should_ask` is called.
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
        # Copied, because views would keep the whole payload in memory.
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
        """Drop all votes and moments. Called when workers have failed, perhaps because of these moments."""
        self._votes.clear()
        self._given.clear()
        self._file.remove()

    def _give(self) -> None:
        """Combine the votes, if there are enough."""
        needed = votes_needed(self._workers.requested)
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

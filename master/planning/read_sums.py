"""Detection of programs in which f reads sums (merged by `add`) of an earlier epoch.

Such sums are complete only if epochs do not overlap. The check runs f on one batch in epochs 0, 1, 2 and the last
epoch. Each epoch starts from the sums that the epochs before it made. Then the check repeats these runs from three
other sets of sums: the initial values, the sums of two batches, and random sums. If the result differs, f reads the
sums.

The check replaces an element of a sum only if an earlier epoch has added to it and the current epoch does not. An
element that f reads and adds to in the same epoch, as in AdaGrad, is a running sum: it is never complete, with or
without overlap. Each sequence of runs has its own copy of the user's module and the same random numbers, so that
neither affects the result.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import VertexState, is_chosen, rule_for
from gridml.engine.devices import Device, raising_device_errors
from gridml.engine.rng_state import RngState
from gridml.engine.update_runner import BatchFailed
from gridml.errors import GridmlError, ProgramError
from gridml.model.chunk import Chunk
from gridml.model.graph import Graph
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.model.schedule import Progress
from gridml.protocol.foreign import described
from gridml.protocol.push import ReplicaPart
from master.evaluation.metrics import start_engine
from master.store.versions import ReplicaState

MAX_SEPARATE_SUMS = 8  # up to this number, each sum is also replaced alone, to find out which sums f reads
MAX_LOADS = 2 + 2 * 3 + MAX_SEPARATE_SUMS  # maximum number of times that the user's file is loaded, first load included

Array = NDArray[Any]
Tensors = dict[str, Array]  # whole tensors by their names in files


@dataclass(frozen=True)
class TrialBatch:
    """A batch to run f on, and the replica to start from."""

    file: Path  #: the file of `program`
    program: Program
    graph: Graph
    chunk: Chunk
    stop: int  #: the batch is the chunk's first `stop` rows
    state: ReplicaState
    place: Device


def reads_sums(batch: TrialBatch, trained: ReplicaPart) -> Iterator[str]:
    """Yield a warning if f reads sums of earlier epochs, which can be incomplete. `trained` is the result of f on this
    batch and another batch."""
    program = batch.program
    if not program.overlap or program.epochs < 2 or batch.graph.mutable_columns():
        return
    sums = _sums(batch)
    if not sums:
        return
    module = sys.modules.get(f"gridml_program_{batch.file.stem}")
    names, separate, why = list[str](), True, ""
    try:
        with raising_device_errors(batch.place):
            names, separate = _read(batch, sums, _merged(batch.state, trained))
    except GridmlError as error:
        why = _one_line(error)
    finally:
        if module is not None:
            sys.modules[module.__name__] = module
    if names:
        shown = ", ".join(names) if len(names) < 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
        some = "" if separate else ", or to some of these"
        yield (
            f"f reads what an earlier epoch has added to {shown}{some}. Epochs overlap: the first vertices of one are "
            f"trained while the last of the previous one are, so f reads incomplete sums. With "
            f"gridml.Program(..., overlap=False) an epoch begins when all of the previous one is merged"
        )
    if why:
        yield (
            f"it was not checked whether f reads sums of earlier epochs, which are incomplete while epochs overlap: "
            f"{why}. If it does, set gridml.Program(..., overlap=False)"
        )


def _sums(batch: TrialBatch) -> set[str]:
    """Return the names of the tensors that are merged by a rule for contributions, such as `add`."""
    types = batch.program.types()
    return {
        name
        for name, tensor in batch.state.tensors()
        if (declared := types.get(name.partition("/")[0])) is not None
        and not declared.has_own_rule
        and is_chosen(name, tensor, declared.rule)
        and rule_for(name, tensor, declared.rule).is_contribution
    }


def _read(batch: TrialBatch, sums: set[str], two_batches: Tensors) -> tuple[list[str], bool]:
    """Return (names, is_each): the user's names of sums of earlier epochs that f reads, and True if f is known to read
    each of them, False if it reads at least one of them. Raises GridmlError if this cannot be determined."""
    last = batch.program.epochs - 1
    later = sorted({1, min(2, last), last})
    starts, runs = dict(batch.state.tensors()), _Runs(batch)
    made = runs.run(starts, 0)
    if made is None:
        raise ProgramError(f"after the file was loaded again, f failed on its first batch: {runs.failure}")
    after = {**starts, **{name: made[name] for name in sums & made.keys()}}
    trials, failed = list[_Trial](), list[int]()
    for epoch in later:
        now = runs.run(after, epoch)
        if now is None:
            failed.append(epoch)
        kept = {n: (after[n] != starts[n]) & ((now or {}).get(n, after[n]) == after[n]) for n in sums}
        trials.append(_Trial(epoch, after, now, {name: mask for name, mask in kept.items() if mask.any()}))
        after = {**after, **{name: tensor for name, tensor in (now or {}).items() if name in sums}}
    rng = np.random.default_rng(0)  # seeded, so that a check gives the same answer each time
    at_random = {name: _other(after[name], starts[name], rng) for name in sorted(sums)}
    for others in (starts, two_batches, at_random):
        if _differ(batch, trials, others) and not _differ(batch, trials, {}):
            names = sorted({name for trial in trials for name in trial.finished})
            alone = [
                name
                for name in names
                if 1 < len(names) <= MAX_SEPARATE_SUMS
                and name in others
                and _differ(batch, trials, {name: others[name]})
            ]
            return list(dict.fromkeys(_called(name) for name in alone or names)), len(names) == 1 or bool(alone)
    if failed:
        raise ProgramError(f"in epoch {failed[-1]} f fails on the sums of one batch: {runs.failure}")
    return [], True


@dataclass(frozen=True)
class _Trial:
    """A run of f in one epoch, starting from the sums of earlier epochs."""

    epoch: int
    start: Tensors  #: values that f started from
    made: Tensors | None  #: result; None: f failed
    finished: Tensors  #: for each sum, a mask of the elements that earlier epochs added to and this epoch did not


def _differ(batch: TrialBatch, trials: Sequence[_Trial], others: Mapping[str, Array]) -> bool:
    """Return whether the result of f changes if the finished sums have the values of `others`."""
    runs = _Runs(batch)
    runs.run(dict(batch.state.tensors()), 0)  # the trials ran this too, and f can keep state in the user's module
    for trial in trials:
        old = trial.start
        start = {**old, **{n: np.where(mask, others.get(n, old[n]), old[n]) for n, mask in trial.finished.items()}}
        made = runs.run(start, trial.epoch)
        if (made is None) != (trial.made is None):
            return True
        made, before = {**start, **(made or {})}, {**old, **(trial.made or {})}
        if not all(_alike(before[n], old[n], made[n], start[n], batch.stop) for n in old):
            return True
    return False


class _Runs:
    """Runs f on a batch with its own copy of the user's module."""

    def __init__(self, batch: TrialBatch) -> None:
        self._batch = batch
        self.failure = ""  # description of the last failure
        self._rng_state = RngState("check", torch=batch.program.uses_torch)
        with self._quiet():
            self._program = load(batch.file)

    def run(self, start: Tensors, epoch: int) -> Tensors | None:
        """Return the tensors that f produces in an epoch; None if it fails."""
        batch, program = self._batch, self._program
        count, epochs = batch.graph.tables[batch.chunk.tables[batch.chunk.driver].type].count, program.epochs
        steps = program.shape.steps(count)
        at = Progress(epoch, 0, epoch / epochs, steps.at(epoch * count, epochs), epochs * steps.per_epoch)
        state = _with(batch.state, start)
        with self._quiet():
            try:
                engine, _ = start_engine(program, batch.chunk, state, batch.place)
                engine.at = at
                engine.train(0, batch.stop, program.factor(at))
                return _merged(state, engine.wire(engine.snapshot()))
            except BatchFailed as failed:
                self.failure = described(failed.__cause__ or failed)
                return None

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Use this object's own random state, and suppress output that the first run has already shown."""
        self._rng_state.swap()
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                yield
        finally:
            self._rng_state.swap()


def _one_line(error: GridmlError) -> str:
    """Return the first and the last line of an error in one line; the last line of a traceback names the exception."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(dict.fromkeys((lines[0], lines[-1].strip()))).rstrip(".")


def _with(state: ReplicaState, values: Tensors) -> ReplicaState:
    """Return the replica with these values."""
    modules = {
        key: VertexState({name: values[name] for name in vertex.tensors}, vertex.buffers)
        for key, vertex in state.modules.items()
    }
    arrays = {of: {name: values[f"{of}/{name}"] for name in columns} for of, columns in state.arrays.items()}
    return replace(state, modules=modules, arrays=arrays)


def _merged(state: ReplicaState, part: ReplicaPart) -> Tensors:
    """Return whole tensors with the values of a part. Rows of the part replace rows in copies of the state's
    columns."""
    tensors = {name: np.array(tensor) for each in part.modules.values() for name, tensor in each.items()}
    for type_name, rows in part.rows.items():
        for name, values in rows.fields.items():
            column = tensors[f"{type_name}/{name}"] = state.arrays[type_name][name].copy()
            column[rows.ids] = values
    return tensors


def _other(after: Array, before: Array, rng: np.random.Generator) -> Array:
    """Return sums that differ from `after`: integers are increased by 1 to 3 at random; the growth of floats since
    `before` is multiplied by a random positive factor per element."""
    if after.dtype.kind in "iu":
        return (after + rng.integers(1, 4, after.shape)).astype(after.dtype)
    with np.errstate(all="ignore"):
        return (before + (after - before) * rng.lognormal(0.0, 1.5, after.shape)).astype(after.dtype)


def _alike(one: Array, its_start: Array, other: Array, other_start: Array, vertices: int) -> bool:
    """Return whether `one - its_start` equals `other - other_start`, up to the rounding error of a sum over `vertices`
    vertices."""
    with np.errstate(all="ignore"):
        if one.dtype.kind != "f":
            return (
                bool((one - its_start == other - other_start).all())
                if one.dtype.kind in "iu"
                else bool((one == other).all())
            )
        largest = max(
            float(np.nan_to_num(np.abs(each), nan=0.0, posinf=0.0).max(initial=0.0))
            for each in (one, its_start, other, other_start)
        )
        rounding = (64 + vertices) * float(np.finfo(one.dtype).eps) * largest
        return np.allclose(one - its_start, other - other_start, rtol=0.0, atol=rounding, equal_nan=True)


def _called(name: str) -> str:
    """Return a tensor's name as a user writes it; fields of rows are "Type.field"."""
    return name.replace("/", ".") if name.count("/") == 1 else name

"""Finds programs in which f reads in one epoch what `add` has summed up in an earlier one: these sums are complete only
where epochs do not overlap.

f is run on one batch in epochs 0, 1, 2 and the last, each from the sums that those before it made, and again from other
sums: none, those of two batches, and some drawn at random. Only those elements are changed that an earlier epoch added
to and this one does not: a running sum that f reads and adds to at the same time, as AdaGrad does, is never complete,
whatever epochs do. Each sequence of runs has its own copy of the user's module and the same random numbers, so that
neither makes a difference.
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

MAX_SEPARATE_SUMS = 8  # sums of which each is tried on its own, to name those that f reads
MAX_LOADS = 2 + 2 * 3 + MAX_SEPARATE_SUMS  # of the user's file in all, with the first

Array = NDArray[Any]
Tensors = dict[str, Array]  # whole, by their names in files


@dataclass(frozen=True)
class TrialBatch:
    """The first `stop` rows of a chunk of `program`, which is in `file`, and the replica to begin from."""

    file: Path
    program: Program
    graph: Graph
    chunk: Chunk
    stop: int
    state: ReplicaState
    place: Device


def reads_sums(batch: TrialBatch, trained: ReplicaPart) -> Iterator[str]:
    """Yield a warning where f reads sums of earlier epochs that may be incomplete. `trained` is what f made of the
    batch and another one."""
    program = batch.program
    if not program.overlap or program.epochs < 2 or any(table.type.mutable for table in batch.graph.local):
        return
    sums = _sums(batch)
    if not sums:
        return
    module = sys.modules.get(f"gridml_program_{batch.file.stem}")
    names, apart, why = list[str](), True, ""
    try:
        with raising_device_errors(batch.place):
            names, apart = _read(batch, sums, _merged(batch.state, trained))
    except GridmlError as error:
        why = _in_a_line(error)
    finally:
        if module is not None:
            sys.modules[module.__name__] = module
    if names:
        shown = ", ".join(names) if len(names) < 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
        some = "" if apart else ", or to some of these"
        yield (
            f"f reads what an earlier epoch has added to {shown}{some}. Epochs overlap: the first vertices of one are "
            f"trained while the last of the one before are, so f reads a part of the sums. With "
            f"gridml.Program(..., overlap=False) an epoch begins when all of the one before is merged"
        )
    if why:
        yield (
            f"it was not checked whether f reads sums of earlier epochs, which are incomplete while epochs overlap: "
            f"{why}. Where f does, set gridml.Program(..., overlap=False)"
        )


def _sums(batch: TrialBatch) -> set[str]:
    """The tensors that are merged by a rule for contributions, such as `add`."""
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
    """Return (the sums of earlier epochs that f reads, as a user calls them; whether it reads each of these). Raises
    GridmlError where that cannot be told."""
    last = batch.program.epochs - 1
    later = sorted({1, min(2, last), last})
    starts, runs = dict(batch.state.tensors()), _Runs(batch)
    made = runs.run(starts, 0)
    if made is None:
        raise ProgramError(f"the file was loaded again, and f failed on its first batch: {runs.failure}")
    after = {**starts, **{name: made[name] for name in sums & made.keys()}}
    trials, failed = list[_Trial](), list[int]()
    for epoch in later:
        now = runs.run(after, epoch)
        if now is None:
            failed.append(epoch)
        kept = {n: (after[n] != starts[n]) & ((now or {}).get(n, after[n]) == after[n]) for n in sums}
        trials.append(_Trial(epoch, after, now, {name: mask for name, mask in kept.items() if mask.any()}))
        after = {**after, **{name: tensor for name, tensor in (now or {}).items() if name in sums}}
    rng = np.random.default_rng(0)
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
    """What f made of the sums of earlier epochs."""

    epoch: int
    start: Tensors
    made: Tensors | None  # None: f failed
    finished: Tensors  # which elements of which sums an earlier epoch has added to, and this one has not


def _differ(batch: TrialBatch, trials: Sequence[_Trial], others: Mapping[str, Array]) -> bool:
    """Whether f comes to another outcome where the sums that are finished have the values of `others`."""
    runs = _Runs(batch)
    runs.run(dict(batch.state.tensors()), 0)  # what f remembers by itself is to be the same
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
    """Runs f on a batch with a copy of the user's module of its own."""

    def __init__(self, batch: TrialBatch) -> None:
        self._batch = batch
        self.failure = ""  # the last one's
        self._rng_state = RngState("check", torch=batch.program.uses_torch)
        with self._quiet():
            self._program = load(batch.file)

    def run(self, start: Tensors, epoch: int) -> Tensors | None:
        """Return what f makes of the tensors that it uses in an epoch; None where it fails."""
        batch, program = self._batch, self._program
        count, epochs = batch.graph.tables[batch.chunk.tables[batch.chunk.driver].type].count, program.epochs
        steps = program.update.steps(count)
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
        """Draw one's own random numbers, and say nothing a second time."""
        self._rng_state.swap()
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                yield
        finally:
            self._rng_state.swap()


def _in_a_line(error: GridmlError) -> str:
    """What is wrong and, where a traceback follows, how that ends."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(dict.fromkeys((lines[0], lines[-1].strip()))).rstrip(".")


def _with(state: ReplicaState, values: Tensors) -> ReplicaState:
    """The replica with other values of its sums; what is not summed up stays as it was."""
    modules = {
        key: VertexState({name: values[name] for name in vertex.tensors}, vertex.buffers)
        for key, vertex in state.modules.items()
    }
    arrays = {of: {name: values[f"{of}/{name}"] for name in columns} for of, columns in state.arrays.items()}
    return replace(state, modules=modules, arrays=arrays)


def _merged(state: ReplicaState, part: ReplicaPart) -> Tensors:
    """The tensors that a part has, whole."""
    tensors = {name: np.array(tensor) for each in part.modules.values() for name, tensor in each.items()}
    for type_name, rows in part.rows.items():
        for name, values in rows.fields.items():
            column = tensors[f"{type_name}/{name}"] = state.arrays[type_name][name].copy()
            column[rows.ids] = values
    return tensors


def _other(after: Array, before: Array, rng: np.random.Generator) -> Array:
    """Other sums of the same signs, each as far from the first in a proportion of its own."""
    if after.dtype.kind in "iu":
        return (after + rng.integers(1, 4, after.shape)).astype(after.dtype)
    with np.errstate(all="ignore"):
        return (before + (after - before) * rng.lognormal(0.0, 1.5, after.shape)).astype(after.dtype)


def _alike(one: Array, its_start: Array, other: Array, other_start: Array, vertices: int) -> bool:
    """Whether two outcomes are as far from where they started, but for what rounding makes of a sum of so many."""
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
    """A tensor's name as a user writes it: of the fields of rows "Type.field"."""
    return name.replace("/", ".") if name.count("/") == 1 else name

"""`gridml.load`: a replica of a run as state dicts."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gridml.calls.handle import Run
from gridml.engine.modules import Modules
from gridml.errors import DataError, GridmlError, LedgerError, UsageError, UserCodeError
from gridml.model.loading import check_guarded
from gridml.model.loading import load as load_program
from gridml.model.program import Program
from gridml.protocol.push import Array, module_key

if TYPE_CHECKING:
    from pathlib import Path


def load(run: Run | str | os.PathLike[str], which: str | int | None = None) -> dict[str, Any]:
    """Return a replica of a run: "final", with which it last ended, "best", as `keep` of the program chose it, or a
    version by its number; also "v57", or "e3" for the end of the third epoch: `gridml rollback RUN` names those that
    are kept. The run's text may say which, as with `--init-from`: "runs/first:best". Where nothing does, it is "final".

    Of a type with modules there is a state dict for each, under "Network.model", or "Network[3].model" where there are
    several vertices: torch tensors with the keys of the module's own `state_dict()`, those of tied weights included, so
    that `load_state_dict(strict=True)` takes it. Fields of arrays are numpy arrays (vertices, *shape), under
    "Word.count". They are copies.

    The file's SHA-256 is compared with the ledger's. Raises LedgerError where that differs or there is no run, RunError
    where the run does not have it yet, UsageError for a version that is not kept or where `run` and `which` both say
    one, and what loading the run's copy of the program raises.
    """
    from master.store.kept_replica import FINAL, read_replica, replica_named

    check_guarded("gridml.load")
    path, of_text = (run.run_dir, None) if isinstance(run, Run) else replica_named(os.fspath(run))
    if of_text is not None and which is not None:
        raise UsageError(f"gridml.load got {os.fspath(run)!r} and which={which!r}; expected one of them to say which.")
    root = Run(path).run_dir
    chosen = which if of_text is None else of_text
    tensors = read_replica(root, FINAL if chosen is None else chosen).tensors
    arrays = {name.replace("/", "."): tensor for name, tensor in tensors.items() if module_key(name) is None}
    by_type: dict[str, set[int]] = {}
    for name in tensors:
        if (key := module_key(name)) is not None:
            by_type.setdefault(key[0], set()).add(key[1])
    if not by_type:
        return arrays
    with explained(), undisturbed():
        program = _program_of(root)
        states = [state for name in by_type for state in _states(program, name, sorted(by_type[name]), tensors).items()]
    return {**dict(states), **arrays}


def _program_of(root: Path) -> Program:
    """Return the program of a run, from the run's own copy."""
    from master.backends.registry import read_settings
    from master.store.reader import opened
    from master.store.run_facts import read_facts
    from master.store.rundir import RunDirectory

    with opened(root) as ledger:
        file = read_settings(root, read_facts(ledger).get("settings")).program
    kept = RunDirectory(root).kept_program(file)
    return load_program(kept.program, file) if kept.program.is_file() else load_program(file)


def _states(program: Program, type_name: str, indices: list[int], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return the state dicts of all modules of a type, by how they are called."""
    import torch

    vertex_type = program.types().get(type_name)
    if vertex_type is None:
        raise LedgerError(f"the run holds a {type_name}, which its program does not have any more. Put that back.")
    modules, states = Modules(vertex_type), {}
    for index in indices:
        called = type_name if len(indices) == 1 else f"{type_name}[{index}]"
        for field, names in modules.names(index).items():
            if lacking := [name for name, first in names.items() if first not in tensors]:
                raise LedgerError(
                    f"the run holds no {lacking[0]} of {type_name}.{field}, which its program has now. Load a version "
                    "that was written since, or put back the program that wrote this one."
                )
            # One copy of what is tied, as in the module.
            firsts = {first: torch.from_numpy(tensors[first].copy()) for first in dict.fromkeys(names.values())}
            states[f"{called}.{field}"] = {name: firsts[first] for name, first in names.items()}
        modules.keep_only(())
    return states


@contextmanager
def explained() -> Iterator[None]:
    """Let an error of the user's own code show its traceback, beside gridml's message."""
    try:
        yield
    except GridmlError as error:
        if isinstance(error, UserCodeError | DataError) and error.traceback_text:
            error.add_note(error.traceback_text)
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a master sets for its process is put back: threads of torch, the states of random generators, and where
    modules are found."""
    import numpy as np

    path, finders = [*sys.path], [*sys.meta_path]
    drawn, drawn_numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    threads, drawn_torch = (0, None) if torch is None else (torch.get_num_threads(), torch.random.get_rng_state())
    try:
        yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)
        sys.path[:], sys.meta_path[:] = path, finders
        if torch is not None:
            torch.set_num_threads(threads)
            torch.random.set_rng_state(drawn_torch)

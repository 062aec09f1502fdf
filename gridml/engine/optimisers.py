"""Optimiser state: moments that workers share, the state of released modules, and torch's schedules.

Second moments. Adam and its variants divide a step by the root of a running mean of squared gradients (Kingma, Ba,
arXiv 1412.6980, algorithm 1, there v and t). A new worker has none: its first steps have the same length for weights of
large and of small gradients, and a rarely used row of a table takes thousands of steps until its mean is usable. So a
new worker starts from the second moments of others. First moments, the means of the gradients themselves, decay within
ten steps. They start at zero, since shared ones would pull all new workers in the same direction. Nothing is sent of
SGD, with or without momentum. docs/averaging.md has the measurements.

Released modules. A replica can be fetched from the master again, the state of its optimisers cannot. A worker keeps the
most recent states of the modules that it releases.

Rates. A torch scheduler sets rates step by step. It is made for a stub optimiser with the same groups and no real
parameters. So it does not count the real optimiser's steps, and rates can be read for any step in any order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.model.layers import Weight
from gridml.model.schedule import TorchSchedule
from gridml.protocol.compression import bfloat16, from_bfloat16
from gridml.protocol.foreign import described

Array = NDArray[Any]

# Names of the entries in the state of torch's optimisers, by kind. An optimiser with any other entry is not shared.
SECOND = frozenset({"exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum"})
FIRST = frozenset({"exp_avg", "grad_avg", "momentum_buffer"})
COUNTERS = frozenset({"step", "mu_product"})
# The largest set of moments that one optimiser has (Adam with amsgrad): bounds the size of a message.
MAX_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_ZERO = np.zeros((), np.float32)


def gathered(optimiser: Any, names: Mapping[int, str]) -> dict[str, Array]:
    """Return the part of an optimiser's state that others can start from, by "entry/NAME": second moments in bfloat16,
    as uint16 of the weight's shape, counters as float32 (), and a float32 () of zero for first moments.

    `names` are those of the weights, by id. Weights whose moments are not finite, or whose state has unknown entries,
    are left out.
    """
    moments: dict[str, Array] = {}
    for weight, name in _weights(optimiser, names):
        state = {entry: value for entry, value in optimiser.state.get(weight, {}).items() if value is not None}
        if not SECOND & state.keys() or not all(_is_known(entry, value, weight) for entry, value in state.items()):
            continue
        values = {entry: _ZERO if entry in FIRST else _on_host(value) for entry, value in state.items()}
        if all(np.isfinite(value).all() for value in values.values()):
            moments |= {f"{entry}/{name}": bfloat16(v) if v.ndim else v for entry, v in values.items()}
    return moments


def entries_of(make: Callable[..., Any], weights: Sequence[Weight]) -> dict[str, frozenset[str]]:
    """Return the entries of an optimiser's state after a step, by the name of the weight; nothing for a weight with
    entries that `gathered` does not return.

    Found by one step of an optimiser on small tensors in place of the weights: with dense gradients, or, if it rejects
    these, sparse ones. Raises the error of the dense step if both fail.
    """
    try:
        optimiser, stand_ins = _stepped(make, weights, sparse=False)
    except Exception as refused:
        try:
            optimiser, stand_ins = _stepped(make, weights, sparse=True)
        except Exception:
            raise refused from None
    entries: dict[str, frozenset[str]] = {}
    for each, weight in zip(stand_ins, weights, strict=True):
        state = {entry: value for entry, value in optimiser.state.get(each, {}).items() if value is not None}
        if SECOND & state.keys() and all(_is_known(entry, value, each) for entry, value in state.items()):
            entries[weight.name] = frozenset(state)
    return entries


def _stepped(make: Callable[..., Any], weights: Sequence[Weight], *, sparse: bool) -> tuple[Any, list[Any]]:
    """Return an optimiser after one step, and the small tensors that it was made for, one for each weight."""
    import torch

    stand_ins = [torch.nn.Parameter(_small(weight), requires_grad=weight.is_trained) for weight in weights]
    with torch.random.fork_rng(devices=[]):
        optimiser = make(iter(stand_ins))
        for group in optimiser.param_groups:
            # The stand-ins are on the CPU, where these options fail.
            group.update({option: False for option in ("capturable", "fused") if group.get(option)})
        for each in stand_ins:
            if each.requires_grad:  # as in training; integer tensors cannot have one
                gradient = torch.ones_like(each)
                each.grad = gradient.to_sparse(min(1, gradient.ndim)) if sparse else gradient
        optimiser.step()
    return optimiser, stand_ins


def inherit(
    optimiser: Any, names: Mapping[int, str], moments: Mapping[str, Array], entries: Mapping[str, frozenset[str]]
) -> str | None:
    """Start an optimiser from `moments`, as `gathered` returns them for the same kind of optimiser. One that has
    stepped already is left unchanged.

    A weight takes moments only if they include all `entries` of its state (`entries_of`, by names as in `names`).
    Return a reason if moments for some weight were received and not taken, else None.
    """
    import torch

    if any(_has_stepped(state) for state in optimiser.state.values()):
        return None
    states: dict[int, dict[str, Any]] = {}  # by the position of the weight, as in a state dict
    problems: list[str] = []
    for place, (weight, name) in enumerate(_weights(optimiser, names)):
        of_it = {entry: f"{entry}/{name}" for entry in SECOND | FIRST | COUNTERS if f"{entry}/{name}" in moments}
        if not of_it:
            continue
        expected = entries.get(name, frozenset())
        brought = {entry: moments[whole] for entry, whole in of_it.items()}
        if brought.keys() != expected or any(v.ndim and v.shape != weight.shape for v in brought.values()):
            problems.append(f"{name} got {_listed(brought)}, expected {_listed(expected)}")
            continue
        states[place] = {
            entry: torch.zeros_like(weight)
            if entry in FIRST
            else torch.from_numpy(from_bfloat16(values) if values.ndim else values.copy()).reshape(
                weight.shape if entry in SECOND else ()
            )
            for entry, values in brought.items()
        }
    try:
        if states:
            optimiser.load_state_dict({**optimiser.state_dict(), "state": states})
    except Exception as error:  # not fatal: the optimiser builds its own moments
        return f"{type(optimiser).__name__} cannot load what others have gathered: {described(error)}"
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{type(optimiser).__name__} of {problems[0]}{more}" if problems else None


def _small(weight: Weight) -> Any:
    """Return a tensor of a few elements with a weight's dtype and number of axes, which differ in length."""
    import torch

    return torch.zeros([min(size, 2 + axis) for axis, size in enumerate(weight.shape)], dtype=weight.dtype)


def _listed(entries: Iterable[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


def _weights(optimiser: Any, names: Mapping[int, str]) -> Iterator[tuple[Any, str]]:
    """Yield (weight, name) in the order of the state dict; the name is "" if there is none."""
    for group in optimiser.param_groups:
        for weight in group["params"]:
            yield weight, names.get(id(weight), "")


def _has_stepped(state: Any) -> bool:
    """True if a weight's state shows a step. A state alone does not: some optimisers create it when they are made."""
    return not isinstance(state, Mapping) or float(state.get("step", 1)) > 0


def _is_known(entry: str, value: Any, weight: Any) -> bool:
    """True if another optimiser can start from this entry of a weight's state."""
    import torch

    if entry in COUNTERS and isinstance(value, int | float):  # SparseAdam counts its steps in an int
        return True
    if not isinstance(value, torch.Tensor):
        return False
    return value.shape == weight.shape if entry in SECOND | FIRST else entry in COUNTERS and not value.ndim


def _on_host(value: Any) -> NDArray[np.float32]:
    if isinstance(value, int | float):
        return np.array(value, np.float32)
    host: NDArray[np.float32] = value.detach().float().cpu().numpy()
    return host


MAX_KEPT_BYTES = 1 << 29  # for one vertex type; the state of the last released vertex is kept in any case


@final
class OptimiserMemory:
    """State dicts of the optimisers of released vertices, by vertex index."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[list[dict[str, Any]], int]] = {}  # with their bytes, oldest first

    def __len__(self) -> int:
        return len(self._states)

    def keep(self, index: int, optimisers: Sequence[Any]) -> None:
        """Keep the state of vertex `index`'s optimisers, if there is any; drops the oldest states above
        MAX_KEPT_BYTES."""
        self._states.pop(index, None)
        states = [optimiser.state_dict() for optimiser in optimisers]
        if not any(state["state"] for state in states):
            return
        self._states[index] = states, sum(tensor.nbytes for state in states for tensor in _tensors(state["state"]))
        while len(self._states) > 1 and sum(nbytes for _, nbytes in self._states.values()) > MAX_KEPT_BYTES:
            del self._states[next(iter(self._states))]

    def restore(self, index: int, optimisers: Sequence[Any]) -> None:
        """Load the kept state, if any, into the new optimisers of vertex `index`."""
        states, _ = self._states.pop(index, ([], 0))
        for optimiser, state in zip(optimisers, states, strict=False):
            optimiser.load_state_dict(state)

    def clear(self) -> None:
        self._states.clear()


def _tensors(remembered: Any) -> Iterator[Any]:
    """Yield the tensors in an optimiser's state, nested ones, too: L-BFGS has lists of them."""
    import torch

    if isinstance(remembered, torch.Tensor):
        yield remembered
    elif isinstance(remembered, Mapping):
        for each in remembered.values():
            yield from _tensors(each)
    elif isinstance(remembered, list | tuple):
        for each in remembered:
            yield from _tensors(each)


Settings = dict[str, Any]  # of one parameter group: rate, momentum, betas, ...


@final
class TorchRates:
    """The settings of one optimiser under a torch scheduler, in a run of `steps` optimiser steps."""

    def __init__(
        self, schedule: TorchSchedule, defaults: Mapping[str, Any], groups: Sequence[Settings], steps: int
    ) -> None:
        self.steps = steps
        self._schedule = schedule
        self._defaults = defaults
        self._groups = groups
        self._restart()

    def at(self, place: int) -> list[Settings]:
        """Return the settings of each group that the scheduler changes, and its rate, after `place` scheduler steps."""
        if place < self._place:  # schedulers cannot step back
            self._restart()
        while self._place < place:
            self._stepped()
        groups = zip(self._stub.param_groups, self._changed, strict=True)
        return [{name: group[name] for name in moved} for group, moved in groups]

    def _restart(self) -> None:
        self._stub = _stub_optimiser(self._defaults, self._groups)
        self._scheduler = self._schedule.made(self._stub, self.steps)
        self._changed: list[set[str]] = [{"lr"} for _ in self._groups]
        self._place = 0
        self._note_changed()

    def _stepped(self) -> None:
        self._stub.step()  # torch warns if a scheduler steps before its optimiser
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation warnings of calls between torch's own schedulers
            self._scheduler.step()
        self._place += 1
        self._note_changed()

    def _note_changed(self) -> None:
        for group, made, moved in zip(self._stub.param_groups, self._groups, self._changed, strict=True):
            moved.update(name for name, value in made.items() if group[name] != value)


def _stub_optimiser(defaults: Mapping[str, Any], groups: Sequence[Settings]) -> Any:
    """Return an optimiser whose steps do nothing, with groups of these settings."""
    import torch

    class Stub(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    return Stub([{**group, "params": [torch.zeros(1)]} for group in groups], {**defaults})

"""Optimiser state: moments that workers share, the state of released modules, and torch's schedules.

Moments. Adam and its variants divide a step by the root of the second moment, a running mean of squared gradients
(Kingma, Ba, arXiv 1412.6980, algorithm 1: v, with the step counter t). Without second moments, the first steps of a new
worker would have the same length for weights with large and with small gradients, and the mean for a rarely used row of
a table would be usable only after thousands of steps. So a new worker starts from the second moments of others. First
moments, the means of the gradients themselves, decay within ten steps. They are not shared but start at zero, because
shared first moments would pull all new workers in the same direction. SGD, with or without momentum, shares nothing.
docs/averaging.md has the measurements.

Released modules. A worker can fetch a replica from the master again, but not the state of its optimisers. So it keeps
the state for the modules that it released most recently.

Rates. A torch scheduler sets the rates of an optimiser, step by step. Here the scheduler gets a stub optimiser, with
the groups of the real one and no real parameters. So rates can be read for any step, in any order, independently of the
steps that the real optimiser has taken.
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

# Names of the entries in the state of torch's optimisers, by kind. A state with any other entry is not shared.
SECOND = frozenset({"exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum"})
FIRST = frozenset({"exp_avg", "grad_avg", "momentum_buffer"})
COUNTERS = frozenset({"step", "mu_product"})
# The largest set of moments that one optimiser has (Adam with amsgrad). It bounds the size of a message.
MAX_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_ZERO = np.zeros((), np.float32)


def gathered(optimiser: Any, names: Mapping[int, str]) -> dict[str, Array]:
    """Return the part of an optimiser's state from which other workers can start, by "entry/NAME". Second moments are
    in bfloat16, as uint16 of the weight's shape. Counters are float32 of shape (). First moments are not shared: each
    is replaced by a float32 zero of shape ().

    `names` maps the id of a weight to its name. Weights whose moments are not finite, or whose state has unknown
    entries, are left out.
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
    """Return the names of the entries that an optimiser's state has after a step, by the name of the weight. Weights
    whose state `gathered` leaves out are missing here, too.

    An optimiser is made for small tensors in place of the weights, and takes one step: with dense gradients or, if it
    rejects these, with sparse ones. Raises the error of the dense step if both fail.
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
    """Return (an optimiser after one step, its parameters: a small tensor in place of each weight)."""
    import torch

    stand_ins = [torch.nn.Parameter(_small(weight), requires_grad=weight.is_trained) for weight in weights]
    with torch.random.fork_rng(devices=[]):
        optimiser = make(iter(stand_ins))
        for group in optimiser.param_groups:
            # The stand-ins are on the CPU, where these options fail.
            group.update({option: False for option in ("capturable", "fused") if group.get(option)})
        for each in stand_ins:
            if each.requires_grad:  # other weights get no gradient in training, and integer tensors cannot have one
                gradient = torch.ones_like(each)
                each.grad = gradient.to_sparse(min(1, gradient.ndim)) if sparse else gradient
        optimiser.step()
    return optimiser, stand_ins


def inherit(
    optimiser: Any, names: Mapping[int, str], moments: Mapping[str, Array], entries: Mapping[str, frozenset[str]]
) -> str | None:
    """Initialise an optimiser with `moments`, as `gathered` returns them for the same kind of optimiser. An optimiser
    that has stepped already is left unchanged.

    `entries` (from `entries_of`) has the names of the state entries of each weight, by the weight's name in `names`. A
    weight takes its moments only if they cover exactly these entries. Return a reason if some weight did not take its
    moments, else None.
    """
    import torch

    if any(_has_stepped(state) for state in optimiser.state.values()):
        return None
    states: dict[int, dict[str, Any]] = {}  # by the position of the weight in the optimiser, as in its state dict
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
        return f"{type(optimiser).__name__} cannot load the moments of other workers: {described(error)}"
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{type(optimiser).__name__} of {problems[0]}{more}" if problems else None


def _small(weight: Weight) -> Any:
    """Return a small tensor with a weight's dtype and number of axes. Its axes differ in length, and none is longer
    than the weight's."""
    import torch

    return torch.zeros([min(size, 2 + axis) for axis, size in enumerate(weight.shape)], dtype=weight.dtype)


def _listed(entries: Iterable[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


def _weights(optimiser: Any, names: Mapping[int, str]) -> Iterator[tuple[Any, str]]:
    """Yield (weight, name) in the order of the state dict; the name is "" for a weight that `names` lacks."""
    for group in optimiser.param_groups:
        for weight in group["params"]:
            yield weight, names.get(id(weight), "")


def _has_stepped(state: Any) -> bool:
    """True if a weight's state shows that the optimiser has stepped. The existence of a state is no proof, because some
    optimisers create the state when they are made."""
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


# Maximum for one vertex type. The state of the vertex that was released last is kept even if it is larger.
MAX_KEPT_BYTES = 1 << 29


@final
class OptimiserMemory:
    """State dicts of the optimisers of released vertices, by vertex index."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[list[dict[str, Any]], int]] = {}  # (state dicts, their bytes); oldest first

    def __len__(self) -> int:
        return len(self._states)

    def keep(self, index: int, optimisers: Sequence[Any]) -> None:
        """Keep the optimiser state of vertex `index`, if there is any. Drops the oldest states while the sum of all
        exceeds MAX_KEPT_BYTES."""
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
    """Yield the tensors in an optimiser's state, also nested ones: L-BFGS has lists of tensors."""
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
        """Return the settings of each group after `place` scheduler steps: the rate, and any other setting that the
        scheduler has changed."""
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
            warnings.simplefilter("ignore")  # torch's own schedulers call one another in deprecated ways
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

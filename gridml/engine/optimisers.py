"""The state of optimisers: moments that workers share, the memory of released modules, and torch's schedules.

Second moments. Adam and its kin divide a step by the root of a running mean of squared gradients (Kingma, Ba, arXiv
1412.6980, algorithm 1, there v and t). A new worker has none: its first steps are as long for a weight of large
gradients as for one of small ones, and a row of a table that is seldom touched takes thousands of steps until it
has a mean. So a new worker goes on with those that others have gathered. First moments, the means of gradients
themselves, are forgotten within ten steps: they begin at zero, since older ones pull all who begin with them the
same way. Of SGD, with momentum or without, nothing travels. The worth of either is in docs/averaging.md.

Memory. A replica can be fetched from the master again; what its optimisers remember cannot. So what the optimisers
of vertices remember is kept when a worker releases their modules, the newest of it.

Rates. A scheduler of torch gives an optimiser its rates step by step. It is made for an optimiser without
parameters of its own that has the same groups. So it neither touches the real one nor counts its steps, and the
rates of any step can be had in any order.
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

# What torch's optimisers call them in their state.
SECOND = frozenset({"exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum"})
FIRST = frozenset({"exp_avg", "grad_avg", "momentum_buffer"})
COUNTERS = frozenset({"step", "mu_product"})
MAX_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # that one of them has
_ZERO = np.zeros((), np.float32)


def gathered(optimiser: Any, names: Mapping[int, str]) -> dict[str, Array]:
    """Return what others can go on with of an optimiser's state, by "entry/NAME": second moments in bfloat16, as uint16
    of the weight's shape, counters as float32 (), and a float32 () of zero for first moments.

    `names` are those of the weights, by id. Left out are weights whose moments are not finite, and those whose state
    has entries that nothing is known of.
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
    """Return the entries that the state of an optimiser has once it has stepped, by the name of the weight; nothing of
    a weight that has other ones than `gathered` brings.

    The optimiser is made for small tensors that stand for the weights, and takes one step: with dense gradients of
    those that are trained, and where it refuses these, with sparse ones. Raises what the step with dense ones raises.
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
    """Return an optimiser that has taken one step, and the small tensors that it was made for, one for each weight."""
    import torch

    stand_ins = [torch.nn.Parameter(_small(weight), requires_grad=weight.is_trained) for weight in weights]
    with torch.random.fork_rng(devices=[]):
        optimiser = make(iter(stand_ins))
        for group in optimiser.param_groups:
            group.update({option: False for option in ("capturable", "fused") if group.get(option)})  # not on a CPU
        for each in stand_ins:
            if each.requires_grad:  # others have none in training either, and of integers no optimiser can take one
                gradient = torch.ones_like(each)
                each.grad = gradient.to_sparse(min(1, gradient.ndim)) if sparse else gradient
        optimiser.step()
    return optimiser, stand_ins


def inherit(
    optimiser: Any, names: Mapping[int, str], moments: Mapping[str, Array], entries: Mapping[str, frozenset[str]]
) -> str | None:
    """Have an optimiser that has not stepped begin with `moments`, as `gathered` returns them of one of its kind. One
    that has is left alone.

    A weight goes on only with all the `entries` that its state has (`entries_of`, by names as in `names`). Return why
    weights begin without any although some came, None where none does.
    """
    import torch

    if any(_has_stepped(state) for state in optimiser.state.values()):
        return None
    states: dict[int, dict[str, Any]] = {}
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
    except Exception as error:  # advice: a worker that cannot take it gathers its own
        return f"{type(optimiser).__name__} cannot load what others have gathered: {described(error)}"
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{type(optimiser).__name__} of {problems[0]}{more}" if problems else None


def _small(weight: Weight) -> Any:
    """A tensor of a weight's type and number of axes, no two of which are as long, of a few elements."""
    import torch

    return torch.zeros([min(size, 2 + axis) for axis, size in enumerate(weight.shape)], dtype=weight.dtype)


def _listed(entries: Iterable[str]) -> str:
    return ", ".join(sorted(entries)) or "nothing"


def _weights(optimiser: Any, names: Mapping[int, str]) -> Iterator[tuple[Any, str]]:
    """Yield the weights in the order of the state dict, with what they are called; "" where they have no name."""
    for group in optimiser.param_groups:
        for weight in group["params"]:
            yield weight, names.get(id(weight), "")


def _has_stepped(state: Any) -> bool:
    """Whether a weight's state is that of an optimiser that has stepped: some make it when they are made."""
    return not isinstance(state, Mapping) or float(state.get("step", 1)) > 0


def _is_known(entry: str, value: Any, weight: Any) -> bool:
    """Whether an entry of a weight's state is one that another optimiser can begin with."""
    import torch

    if entry in COUNTERS and isinstance(value, int | float):  # SparseAdam counts its steps so
        return True
    if not isinstance(value, torch.Tensor):
        return False
    return value.shape == weight.shape if entry in SECOND | FIRST else entry in COUNTERS and not value.ndim


def _on_host(value: Any) -> NDArray[np.float32]:
    if isinstance(value, int | float):
        return np.array(value, np.float32)
    host: NDArray[np.float32] = value.detach().float().cpu().numpy()
    return host


MAX_KEPT_BYTES = 1 << 29  # of one vertex type, but for the vertex that was kept last


@final
class OptimiserMemory:
    """State dicts of optimisers, by the vertex whose modules they step."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[list[dict[str, Any]], int]] = {}  # with their bytes; the first kept comes first

    def __len__(self) -> int:
        return len(self._states)

    def keep(self, index: int, optimisers: Sequence[Any]) -> None:
        """Keep what the optimisers of vertex `index` remember, if that is anything."""
        self._states.pop(index, None)
        states = [optimiser.state_dict() for optimiser in optimisers]
        if not any(state["state"] for state in states):
            return
        self._states[index] = states, sum(tensor.nbytes for state in states for tensor in _tensors(state["state"]))
        while len(self._states) > 1 and sum(nbytes for _, nbytes in self._states.values()) > MAX_KEPT_BYTES:
            del self._states[next(iter(self._states))]

    def restore(self, index: int, optimisers: Sequence[Any]) -> None:
        """Let new optimisers of vertex `index` go on from what was kept of the old ones, if it was."""
        states, _ = self._states.pop(index, ([], 0))
        for optimiser, state in zip(optimisers, states, strict=False):
            optimiser.load_state_dict(state)

    def clear(self) -> None:
        self._states.clear()


def _tensors(remembered: Any) -> Iterator[Any]:
    """The tensors in what an optimiser remembers: in lists, too, as L-BFGS has them, and beside what it counts."""
    import torch

    if isinstance(remembered, torch.Tensor):
        yield remembered
    elif isinstance(remembered, Mapping):
        for each in remembered.values():
            yield from _tensors(each)
    elif isinstance(remembered, list | tuple):
        for each in remembered:
            yield from _tensors(each)


Settings = dict[str, Any]  # of one group: its rate, momentum, betas, ...


@final
class TorchRates:
    """Those of one optimiser, whose groups were made with `groups` and `defaults`, in a run of `steps` steps."""

    def __init__(
        self, schedule: TorchSchedule, defaults: Mapping[str, Any], groups: Sequence[Settings], steps: int
    ) -> None:
        self.steps = steps
        self._schedule = schedule
        self._defaults = defaults
        self._groups = groups
        self._restart()

    def at(self, place: int) -> list[Settings]:
        """Return what the scheduler sets of each group after `place` calls of its `step`, and the rate."""
        if place < self._place:
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
        self._stub.step()  # torch warns where a scheduler goes before its optimiser
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch's schedulers call in each other
            self._scheduler.step()
        self._place += 1
        self._note_changed()

    def _note_changed(self) -> None:
        for group, made, moved in zip(self._stub.param_groups, self._groups, self._changed, strict=True):
            moved.update(name for name, value in made.items() if group[name] != value)


def _stub_optimiser(defaults: Mapping[str, Any], groups: Sequence[Settings]) -> Any:
    """Return an optimiser that does nothing, with groups of these settings."""
    import torch

    class Stub(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    return Stub([{**group, "params": [torch.zeros(1)]} for group in groups], {**defaults})

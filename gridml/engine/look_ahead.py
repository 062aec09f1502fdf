"""LookAhead: trains a batch where the parameters will be once the steps of other workers have arrived.

Workers that share each batch of the program miss the steps that others take beside them. With momentum that is as if
gradients came late, at which a rate near its limit diverges. So a worker trains a batch at the parameters moved by the
steps that it expects of the others, and takes that move back afterwards: what it pushes is its own step. Chen, Yang and
Cheng (SpecTrain, arXiv 1809.02839) predict weights in the same way, against the delays of a pipeline.

Each of the others is expected to step as this worker would without a new gradient: ρ times its own last step, where ρ
is the correlation of its successive steps. With momentum ρ is nearly the momentum. Without, steps are mostly noise, ρ
is nearly 0, and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

FADING = 0.9  # per batch, of the sums that ρ is computed from
TINY = 1e-30  # so that steps of zero give a ρ of zero


@dataclass
class _Last:
    """The last step of one optimiser, and the sums over its steps from which ρ is computed. They are tensors on its
    device, so that no batch waits for the device."""

    steps: list[Any]  # a tensor for each trained parameter
    products: Any  # of each step with the one before
    squares: Any  # of the step before

    @property
    def correlation(self) -> Any:
        """ρ, in [0, 1]; 0 while unknown."""
        return (self.products / (self.squares + TINY)).clamp(0.0, 1.0)

    def followed_by(self, steps: list[Any]) -> _Last:
        """Return the state after the next step."""
        return _Last(
            steps,
            FADING * self.products + _product(self.steps, steps),
            FADING * self.squares + _product(self.steps, self.steps),
        )


@final
class LookAhead:
    """The last steps of the optimisers of one process."""

    def __init__(self) -> None:
        self._last: dict[Any, _Last] = {}  # by optimiser

    def forget(self) -> None:
        """Expect no steps, because the work of the last batch was dropped."""
        self._last.clear()

    @contextmanager
    def batch(self, optimisers: Sequence[Any], others: float) -> Iterator[None]:
        """Train a batch in this context, with the parameters moved by the expected steps of `others`. If it fails, the
        parameters are unusable, as after every failed batch."""
        import torch

        trained = {
            optimiser: [p for group in optimiser.param_groups for p in group["params"] if p.requires_grad]
            for optimiser in optimisers
        }
        last = {each: self._last[each] for each, weights in trained.items() if _fits(self._last.get(each), weights)}
        before = {each: [p.data.clone() for p in weights] for each, weights in trained.items()}
        moves = {}
        for each, known in last.items():
            far = others * known.correlation
            moves[each] = [step * far.to(step.device, step.dtype) for step in known.steps]
            torch._foreach_add_([p.data for p in trained[each]], moves[each])
        yield
        for each, move in moves.items():
            torch._foreach_sub_([p.data for p in trained[each]], move)  # read again: f may have assigned other data
        self._last = {}
        for each, weights in trained.items():
            if weights:
                steps = list(torch._foreach_sub([p.data for p in weights], before[each]))
                none = steps[0].new_zeros((), dtype=torch.float32)
                self._last[each] = last[each].followed_by(steps) if each in last else _Last(steps, none, none)


def _fits(known: _Last | None, weights: Sequence[Any]) -> bool:
    """Return whether there is a step for each parameter: f may have given it other data."""
    return known is not None and [(s.shape, s.device) for s in known.steps] == [(p.shape, p.device) for p in weights]


def _product(one: Sequence[Any], other: Sequence[Any]) -> Any:
    """Return the inner product of two steps, a tensor on the device of the first parameter."""
    # In float32, because the squares of steps in half precision would be zero.
    return sum((a.float() * b.float()).sum().to(one[0].device) for a, b in zip(one, other, strict=True))

"""Optimiser steps of f, gradient accumulation, and the check that losses are finite.

Accumulated gradients belong to vertices that are trained but not pushed yet. The optimiser step with these gradients is
taken before a snapshot of the replica for a push, because a vertex is credited only if its gradient is in the replica.

A loss on the CPU is checked before its step. On a device this check would make the host wait in every batch, so losses
stay on the device until the next snapshot. The snapshot is sent only if all of them are finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from gridml.errors import NotFiniteError, ProgramError
from gridml.model.device_memory import CPU, to_floats

MAX_ACCUMULATE = 10**6  # maximum number of batches for one optimiser step


@dataclass(frozen=True)
class StepOptions:
    """The options of `gridml.Vertex.step`, which explains them."""

    clip_norm: float | None = None
    accumulate: int | None = None
    scaler: Any = None


@dataclass
class _Window:
    """A window: the batches whose gradients are accumulated for one step of `optimisers`."""

    optimisers: list[Any]
    options: StepOptions = StepOptions()
    batches: int = 0


class _Unread(NamedTuple):
    """A loss or norm on a device that is not checked yet."""

    value: Any  # a tensor with one element
    rows: tuple[int, int]  # rows of its batch, [start, stop) of the chunk
    what: str  # its description in messages


@final
class Stepping:
    """The optimiser steps of one engine. At most one window is open, unless f calls `step` separately for several
    vertices."""

    def __init__(self, accumulate: int = 1) -> None:
        self._accumulate = accumulate
        # Open windows by the ids of their optimisers. No optimiser is in two of them.
        self._windows: dict[tuple[int, ...], _Window] = {}
        self._unread: list[_Unread] = []  # in the order of training
        self.asked: set[int] = set()  #: ids of the optimisers for which f has called step
        self.idle = False  #: True while running statistics are recomputed: no steps are taken
        self.eager = False  #: True while the cause of an error is located: losses on a device are checked at once
        self.rows = (0, 0)  #: rows of the current batch, [start, stop) of the chunk; set by the engine

    @property
    def is_accumulating(self) -> bool:
        """True while there are accumulated gradients that no step has used yet."""
        return bool(self._windows)

    @property
    def unread(self) -> int:
        """The number of losses and norms on a device that are not checked yet."""
        return len(self._unread)

    def take(self, loss: Any, optimisers: Sequence[Any], options: StepOptions) -> None:
        """Accumulate the gradients of a batch, and take the step if the batch is the last one of its window.

        Raises NotFiniteError, before any parameter changes, if the loss is NaN or infinite, or if the norm of gradients
        to be clipped is. If that number is on a device, `read` returns the error later.
        """
        _check_kind(loss)
        self._check_or_defer(loss, "the loss is")
        if self.idle:
            return
        if not loss.requires_grad:
            raise ProgramError(
                "step got a loss without gradients: it was detached, or computed under torch.no_grad(), or of "
                "parameters that do not require any. Expected the loss computed from the module's output."
            )
        batches = self._accumulate if options.accumulate is None else options.accumulate
        _check(options.clip_norm, batches)
        self.asked.update(map(id, optimisers))
        window = self._window(optimisers)
        window.options = options
        if batches > 1:  # so that the sum of the gradients is the gradient of the mean loss
            loss = loss / batches
        (loss if options.scaler is None else options.scaler.scale(loss)).backward()
        window.batches += 1
        if window.batches >= batches:
            self._close(window, strict=True)

    def finish(self) -> None:
        """Take the steps of all open windows. A batch of an incomplete window has the same weight as in a full one."""
        for window in [*self._windows.values()]:
            self._close(window, strict=False)

    def read(self) -> tuple[tuple[int, int], NotFiniteError] | None:
        """Check all deferred numbers, with one wait for the device. Return (rows, error) of the first batch whose loss
        or norm is not finite, or None. The steps from that batch on are invalid."""
        unread, self._unread = self._unread, []
        for each, value in zip(unread, to_floats([each.value for each in unread]), strict=True):
            try:
                _check_finite(value, each.what)
            except NotFiniteError as error:
                return each.rows, error
        return None

    def forget(self) -> None:
        """Drop accumulated gradients. Their vertices are not credited, so they will be trained again."""
        self._unread.clear()
        for window in self._windows.values():
            for optimiser in window.optimisers:
                optimiser.zero_grad()
        self._windows.clear()

    def _window(self, optimisers: Sequence[Any]) -> _Window:
        key = tuple(id(optimiser) for optimiser in optimisers)
        if key not in self._windows:
            if any(set(key) & set(other) for other in self._windows):
                raise ProgramError(
                    "step was called with accumulate for some of the vertices for which another call of step gathers "
                    "gradients; expected the same vertices in both, or none in common."
                )
            for optimiser in optimisers:
                optimiser.zero_grad()
            self._windows[key] = _Window([*optimisers])
        return self._windows[key]

    def _close(self, window: _Window, *, strict: bool) -> None:
        """Take a window's step. Unless `strict`, gradients that are not finite raise no error here: the master's
        admission rejects them."""
        del self._windows[tuple(id(optimiser) for optimiser in window.optimisers)]
        scaler = window.options.scaler
        if window.options.clip_norm is not None:
            self._clip(window, window.options.clip_norm, strict=strict and scaler is None)
        for optimiser in window.optimisers:
            optimiser.step() if scaler is None else scaler.step(optimiser)
        if scaler is not None:
            scaler.update()

    def _clip(self, window: _Window, clip_norm: float, *, strict: bool) -> None:
        import torch

        if window.options.scaler is not None:
            for optimiser in window.optimisers:
                window.options.scaler.unscale_(optimiser)
        parameters = [p for o in window.optimisers for group in o.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        if strict:
            self._check_or_defer(norm, "the gradients have norm")

    def _check_or_defer(self, value: Any, what: str) -> None:
        """Check a number now, or defer it to `read` if the check would wait for a device."""
        value = value.detach()
        if self.eager or value.device.type == CPU:
            _check_finite(float(value), what)
        else:
            self._unread.append(_Unread(value, self.rows, what))


def _check(clip_norm: Any, accumulate: Any) -> None:
    if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
        raise ProgramError(f"step got clip_norm={clip_norm!r}; expected the largest norm of the gradients, above 0.")
    if type(accumulate) is not int or not 1 <= accumulate <= MAX_ACCUMULATE:
        raise ProgramError(f"step got accumulate={accumulate!r}; expected a whole number of batches from 1.")


def _check_kind(loss: Any) -> None:
    """Raise ProgramError for an unusable loss, with a clearer message than that of `backward`."""
    import torch

    if not isinstance(loss, torch.Tensor):
        raise ProgramError(
            f"step got {type(loss).__name__}; expected the loss as the tensor that the loss function returns, without "
            f".item() or float(). An optimiser that takes a closure, such as L-BFGS, is stepped by "
            f"network.optimiser.step(closure)."
        )
    if loss.numel() != 1:
        raise ProgramError(
            f"step got a loss of shape {tuple(loss.shape)}; expected one number, as loss.mean() or a loss function "
            f"with reduction='mean' makes."
        )


def _check_finite(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise NotFiniteError(
            f"{what} {value}; expected a finite number. Lower the learning rate, or look at the inputs of this batch."
        )

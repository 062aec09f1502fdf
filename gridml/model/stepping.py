"""The optimiser steps that f asks for, and the gradients that are gathered for the next one.

What is gathered belongs to vertices that are trained and not pushed yet. A snapshot that leaves a worker therefore
begins with the step that was gathered for: credit is for vertices whose gradients are in the replica.

Whether a loss is finite is looked at before its step where that costs nothing. Of a device the host would have to wait
for it in every batch: there losses stay until the next snapshot, which leaves only where all of them are finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from gridml.errors import NotFiniteError, ProgramError
from gridml.model.device_memory import CPU, to_floats

MAX_ACCUMULATE = 10**6


@dataclass(frozen=True)
class StepOptions:
    """How a step is taken: see `gridml.Vertex.step`."""

    clip_norm: float | None = None
    accumulate: int | None = None
    scaler: Any = None


@dataclass
class _Window:
    """Batches whose gradients one step of these optimisers will follow."""

    optimisers: list[Any]
    options: StepOptions = StepOptions()
    batches: int = 0


class _Unread(NamedTuple):
    """A number on a device that must be finite, the rows of its batch, and what the number is."""

    value: Any
    rows: tuple[int, int]
    what: str


@final
class Stepping:
    """The windows of one engine that are not full yet: one, but where f steps several vertices apart. `idle` where no
    step is to be taken, `eager` where nothing is left on a device to be looked at later. `rows` are those of the batch
    in hand, [start, stop) of the chunk."""

    def __init__(self, accumulate: int = 1) -> None:
        self._accumulate = accumulate
        self._windows: dict[tuple[int, ...], _Window] = {}
        self._unread: list[_Unread] = []
        self.asked: set[int] = set()  # ids of the optimisers that a step was asked of
        self.idle = False
        self.eager = False
        self.rows = (0, 0)

    @property
    def is_accumulating(self) -> bool:
        """Whether there are gradients that no step has followed."""
        return bool(self._windows)

    @property
    def unread(self) -> int:
        """How many numbers wait on a device to be looked at."""
        return len(self._unread)

    def take(self, loss: Any, optimisers: Sequence[Any], options: StepOptions) -> None:
        """Gather the gradients of a batch, and take the step if it is the last one of its window.

        Raises NotFiniteError for a loss, or gradients to be clipped, that are NaN or infinite, before any parameter is
        touched; of those on a device `read` does so.
        """
        _check_kind(loss)
        self._check_or_defer(loss, "the loss is")
        if self.idle:
            return
        if not loss.requires_grad:
            raise ProgramError(
                "step got a loss without gradients: it was detached, or computed under torch.no_grad(), or of "
                "parameters that do not require any. Expected what the module's output leads to, as it is."
            )
        batches = self._accumulate if options.accumulate is None else options.accumulate
        _check(options.clip_norm, batches)
        self.asked.update(map(id, optimisers))
        window = self._window(optimisers)
        window.options = options
        if batches > 1:
            loss = loss / batches
        (loss if options.scaler is None else options.scaler.scale(loss)).backward()
        window.batches += 1
        if window.batches >= batches:
            self._close(window, strict=True)

    def finish(self) -> None:
        """Take the steps that are gathered for, though their windows are not full: each batch has the weight in them
        that it has in a full one."""
        for window in [*self._windows.values()]:
            self._close(window, strict=False)

    def read(self) -> tuple[tuple[int, int], NotFiniteError] | None:
        """Look at what was left on a device, and wait for it once. Return the rows of the first batch in which a number
        was not finite, and the error; what was stepped from there on is worthless."""
        unread, self._unread = self._unread, []
        for each, value in zip(unread, to_floats([each.value for each in unread]), strict=True):
            try:
                _check_finite(value, each.what)
            except NotFiniteError as error:
                return each.rows, error
        return None

    def forget(self) -> None:
        """Drop what is gathered: its vertices are not credited, and trained again."""
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
                    "step was called with accumulate for some of the vertices that another step gathers gradients for; "
                    "expected the same vertices in both, or none in common."
                )
            for optimiser in optimisers:
                optimiser.zero_grad()
            self._windows[key] = _Window([*optimisers])
        return self._windows[key]

    def _close(self, window: _Window, *, strict: bool) -> None:
        """Take a window's step. Where it is not `strict`, gradients that are not finite are for the master's gate."""
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
        """Have a number checked: now, or, where that would wait for a device, by `read`."""
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
    """Raise ProgramError for what is no loss to step by, in words about it: backward would say less."""
    import torch

    if not isinstance(loss, torch.Tensor):
        raise ProgramError(
            f"step got {type(loss).__name__}; expected the loss as the tensor that the loss function returns, without "
            f".item() or float()."
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

"""Learning-rate schedules, and the progress of a run that f, evaluate and schedules receive.

A schedule returns a factor: each learning rate is the one that the program's optimiser was made with, times this
factor. The schedule is a function of the credited share of the run, or of a `Progress` if its argument is annotated as
one. `by_step` makes a schedule from a function of the optimiser step, `torch_schedule` from a scheduler of torch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gridml.errors import ProgramError
from gridml.protocol.foreign import described


@dataclass(frozen=True)
class Progress:
    """The progress of a run. f and evaluate get it as an argument that is annotated `gridml.Progress`.

    Optimiser steps are counted as if one worker trained alone: one step for every `accumulate` batches, by default for
    every batch.
    """

    epoch: int = 0  #: the epoch of the current vertices, or the evaluated epoch; from 0
    version: int = -1  #: version of the replica that the vertices are trained from
    #: share of all vertices of the run, 0 to 1, that are credited in that version, or that this worker trained since
    share: float = 0.0
    step: int = 0  #: the next optimiser step, from 0
    steps: int = 1  #: optimiser steps of the run


@dataclass(frozen=True)
class StepCount:
    """The division of epochs into optimiser steps."""

    vertices: int  #: number of all vertices of an epoch
    trained: int  #: number of vertices of an epoch that f is called for; less than `vertices` with `drop_last`
    window: int  #: number of vertices in one optimiser step

    @property
    def per_epoch(self) -> int:
        return -(-self.trained // self.window)

    def at(self, credited: int, epochs: int) -> int:
        """Return the step of the next vertex when `credited` vertices of a run of `epochs` epochs are credited."""
        epoch, within = divmod(credited, self.vertices)
        return min(epoch * self.per_epoch + min(within // self.window, self.per_epoch), epochs * self.per_epoch - 1)


Schedule = Callable[[float], float] | Callable[[Progress], float]
TRIED_STEPS = 1000  # optimiser steps of the imaginary run on which a schedule is validated
DECAY = 0.4  # share of the run, at its end, over which the default schedule falls


def linear_decay(share: float) -> float:
    """Return the default learning-rate factor: 1 until 60% of the run is credited, then falling linearly to 0."""
    return min(1.0, (1.0 - share) / DECAY)


def constant(share: float) -> float:
    """Return a learning-rate factor of 1 throughout, for programs that set their own rates."""
    return 1.0


@dataclass(frozen=True)
class ByStep:
    """The schedule that `by_step` returns: a function of the optimiser step."""

    function: Callable[[int], float]

    def __call__(self, at: Progress) -> float:
        return self.function(at.step)


@dataclass(frozen=True)
class Warmup:
    """The schedule that `warmup` returns: a rising factor, multiplied by another schedule."""

    steps: int | None
    share: float | None
    then: Schedule

    def __call__(self, at: Progress) -> float:
        factor = factor_of(self.then, at)
        steps = self.steps if self.share is None else max(1, round(self.share * at.steps))
        assert steps is not None, "warmup() checks that exactly one is given"
        return factor * min(1.0, (at.step + 1) / steps)


@dataclass(frozen=True)
class TorchSchedule:
    """The schedule that `torch_schedule` returns. The torch scheduler sets the rates itself, so the factor is 1."""

    make: Callable[..., Any]  #: (optimiser) or (optimiser, steps) -> scheduler
    by_epoch: bool  #: True: the scheduler steps once for each epoch; False: once for each optimiser step

    def __call__(self, at: Progress) -> float:
        return 1.0

    def place(self, at: Progress) -> int:
        """Return the number of scheduler steps at this progress."""
        return at.epoch if self.by_epoch else at.step

    def try_on(self, optimisers: Iterable[Callable[[Any], Any] | None]) -> None:
        """Raise ProgramError if the scheduler cannot be made. `optimisers` are the functions that make the program's
        optimisers; each is tried with a stub parameter."""
        import torch

        for make in optimisers:
            try:
                optimiser = None if make is None else make([torch.nn.Parameter(torch.zeros(1, 1))])
            except Exception:  # `make` may need the real parameters; training then raises the error
                continue
            if optimiser is not None:
                self.made(optimiser, TRIED_STEPS)

    def made(self, optimiser: Any, steps: int) -> Any:
        """Return the scheduler of an optimiser in a run of `steps` steps. Raises ProgramError if `make` fails, or
        returns a scheduler that depends on more than the step."""
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        try:
            wants = "steps" in inspect.signature(self.make).parameters
        except (TypeError, ValueError):  # callables of C extensions may have no signature
            wants = False
        try:
            scheduler = self.make(optimiser, steps=steps) if wants else self.make(optimiser)
        except Exception as error:
            raise ProgramError(
                f"torch_schedule could not make its scheduler: {described(error)}. The function is given "
                f"the optimiser, and the run's number of optimiser steps if it has an argument called steps."
            ) from error
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ProgramError(
                "torch_schedule got ReduceLROnPlateau, which follows a metric that no worker has. Take a schedule by "
                "step, such as torch.optim.lr_scheduler.CosineAnnealingLR."
            )
        if not isinstance(scheduler, LRScheduler):
            raise ProgramError(
                f"torch_schedule got a function that makes a {type(scheduler).__name__}; expected a scheduler of "
                f"torch.optim.lr_scheduler, as in lambda optimiser, steps: OneCycleLR(optimiser, 0.1, "
                f"total_steps=steps)."
            )
        return scheduler


def by_step(function: Callable[[int], float]) -> Schedule:
    """Return a schedule by optimiser steps: `function(step)` is the factor, and `step` counts from 0.

    Steps are counted as in `gridml.Progress`, by vertices, so the number does not depend on how many workers share the
    work. Raises ProgramError for anything but a function.
    """
    if not callable(function):
        raise ProgramError(f"by_step got {function!r}; expected a function of the step, as in lambda step: 0.99**step.")
    return ByStep(function)


def warmup(*, steps: int | None = None, share: float | None = None, then: Schedule = linear_decay) -> Schedule:
    """Return a schedule: the factor of `then`, multiplied by a factor that rises linearly over the first optimiser
    steps and is 1 from the last of these steps on (Goyal et al., arXiv 1706.02677, section 2.2). It rises over `steps`
    steps, or over a `share` (0 to 1) of the run's steps. Raises ProgramError unless exactly one of the two is given."""
    if (steps is None) == (share is None):
        raise ProgramError(f"warmup got steps={steps!r}, share={share!r}; expected one of them, as in steps=100.")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ProgramError(f"warmup got steps={steps!r}; expected a whole number from 1.")
    if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
        raise ProgramError(f"warmup got share={share!r}; expected more than 0 and at most 1, as in share=0.05.")
    if isinstance(then, TorchSchedule) or not callable(then):
        raise ProgramError(
            f"warmup got then={then!r}; expected a schedule of gridml's or a function. To run schedulers of torch "
            f"one after the other, use torch.optim.lr_scheduler.SequentialLR."
        )
    return Warmup(steps, share, then)


def torch_schedule(make: Callable[..., Any], *, by_epoch: bool = False) -> Schedule:
    """Return a schedule of torch's: `make(optimiser)` or `make(optimiser, steps)` returns a scheduler of
    `torch.optim.lr_scheduler`, where `steps` is the number of optimiser steps of the run.

    Rates, momenta and betas are bit for bit those of the scheduler after one call of its `step` for each optimiser
    step, or, with `by_epoch`, for each epoch. The scheduler is made for a stub optimiser with the groups of the
    program's optimiser, so that a worker that starts late can replay all earlier steps at once. Raises ProgramError for
    anything but a function.
    """
    if not callable(make) or (hasattr(make, "get_last_lr") and not isinstance(make, type)):
        raise ProgramError(
            f"torch_schedule got {make!r}; expected a function that makes a scheduler for an optimiser, as in "
            f"functools.partial(torch.optim.lr_scheduler.StepLR, step_size=30)."
        )
    return TorchSchedule(make, by_epoch)


def factor_of(schedule: Schedule, at: Progress) -> float:
    """Return the factor of a schedule at this progress."""
    if isinstance(schedule, ByStep | Warmup | TorchSchedule) or takes_progress(schedule):
        return schedule(at)  # type: ignore[arg-type]
    return schedule(at.share)  # type: ignore[arg-type]


def takes_progress(function: Callable[..., Any]) -> bool:
    """Return True if the first argument of a function is annotated as a Progress."""
    try:
        return _takes_progress(function)
    except TypeError:  # a callable object that is not hashable, which the cache needs
        return _takes_progress.__wrapped__(function)


@functools.lru_cache(64)  # called for every batch
def _takes_progress(function: Callable[..., Any]) -> bool:
    try:
        hints = typing.get_type_hints(function)
        first = next(iter(inspect.signature(function).parameters), None)
    except Exception:  # evaluating annotations may raise anything, and a builtin has no signature
        return False
    return first is not None and hints.get(first) is Progress


def check_schedule(schedule: Schedule) -> None:
    """Raise ProgramError for a schedule that fails at the start, middle or end of a run, or returns an invalid
    factor."""
    wanted = "expected the factor of the learning rate, a finite number of at least 0"
    with contextlib.suppress(TypeError, ValueError):  # a builtin has no signature
        first = next(iter(inspect.signature(schedule).parameters), "")
        if first in ("epoch", "step") and not takes_progress(schedule):
            raise ProgramError(
                f"schedule takes {first}, but is called with the credited share of the run, 0 to 1. Write "
                f"schedule=gridml.by_step(lambda step: ...), or for epochs gridml.torch_schedule(lambda optimiser: "
                f"LambdaLR(optimiser, lambda epoch: ...), by_epoch=True)."
            )
    for share in (0.0, 0.5, 1.0):
        step = min(round(share * TRIED_STEPS), TRIED_STEPS - 1)
        at = Progress(share=share, step=step, steps=TRIED_STEPS)
        where = at.share if not isinstance(schedule, ByStep) else at.step
        try:
            factor = factor_of(schedule, at)
            if math.isfinite(factor) and factor >= 0:
                continue
        except Exception as error:
            raise ProgramError(f"schedule({where}) failed: {described(error)}; {wanted}.") from error
        raise ProgramError(f"schedule({where}) returned {factor!r}; {wanted}.")

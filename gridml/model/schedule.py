"""Learning-rate schedules, and the progress of a run as f, evaluate and schedules see it.

A schedule gives the factor of the rates that the program's optimisers were made with. It goes by the share of the
run that is credited, by optimiser steps, or is torch's own. It is a function of the credited share, or of a
`Progress` if its argument is annotated so.
"""

from __future__ import annotations

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
    """How far a run is. f and evaluate get it as an argument that is annotated `gridml.Progress`.

    `epoch` of the vertices in hand, or that was evaluated, counts from 0; `version` is that of the replica they are
    trained from; `share` (0 to 1) of all vertices of the run are credited, as far as the worker knows, with its own.
    `step` (from 0) of `steps` optimiser steps is the one that comes next, as one worker alone would count them: of
    vertices that fill a batch, or as many batches as `accumulate` says.
    """

    epoch: int = 0
    version: int = -1
    share: float = 0.0
    step: int = 0
    steps: int = 1


@dataclass(frozen=True)
class StepCount:
    """How many optimiser steps an epoch of `vertices` has, of which the first `trained` are trained, `window` a
    step."""

    vertices: int
    trained: int
    window: int

    @property
    def per_epoch(self) -> int:
        return -(-self.trained // self.window)

    def at(self, credited: int, epochs: int) -> int:
        """The step that the next vertex belongs to when so many of `epochs` epochs are credited."""
        epoch, within = divmod(credited, self.vertices)
        return min(epoch * self.per_epoch + min(within // self.window, self.per_epoch), epochs * self.per_epoch - 1)


Schedule = Callable[[float], float] | Callable[[Progress], float]
TRIED_STEPS = 1000  # of the run that a schedule is tried on before one begins
DECAY = 0.4  # share of the run at its end over which the default schedule falls


def linear_decay(share: float) -> float:
    """The default learning-rate factor: 1 until 60% of the run is credited, then falling linearly to 0."""
    return min(1.0, (1.0 - share) / DECAY)


def constant(share: float) -> float:
    """A learning-rate factor of 1 throughout, for programs that set their own."""
    return 1.0


@dataclass(frozen=True)
class ByStep:
    """A factor for each optimiser step, counted from 0: see `by_step`."""

    function: Callable[[int], float]

    def __call__(self, at: Progress) -> float:
        return self.function(at.step)


@dataclass(frozen=True)
class Warmup:
    """A factor that rises before another schedule: see `warmup`."""

    steps: int | None
    share: float | None
    then: Schedule

    def __call__(self, at: Progress) -> float:
        factor = factor_of(self.then, at)
        steps = self.steps if self.share is None else max(1, round(self.share * at.steps))
        assert steps is not None, "warmup takes one of them"
        return factor * min(1.0, (at.step + 1) / steps)


@dataclass(frozen=True)
class TorchSchedule:
    """A scheduler of torch's, which sets rates itself, so that its factor is 1: see `torch_schedule`."""

    make: Callable[..., Any]
    by_epoch: bool

    def __call__(self, at: Progress) -> float:
        return 1.0

    def place(self, at: Progress) -> int:
        """How often the scheduler has been stepped when a run is there."""
        return at.epoch if self.by_epoch else at.step

    def try_on(self, optimisers: Iterable[Callable[[Any], Any] | None]) -> None:
        """Raise ProgramError where no scheduler can be made of what these functions make, each of one parameter."""
        import torch

        for make in optimisers:
            try:
                optimiser = None if make is None else make([torch.nn.Parameter(torch.zeros(1, 1))])
            except Exception:  # it wants others, and is made of them where they are
                continue
            if optimiser is not None:
                self.made(optimiser, TRIED_STEPS)

    def made(self, optimiser: Any, steps: int) -> Any:
        """Return the scheduler of an optimiser in a run of so many steps. Raises ProgramError where `make` fails, or
        makes what needs more than a step to go on."""
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        try:
            wants = "steps" in inspect.signature(self.make).parameters
        except (TypeError, ValueError):  # what is not written in Python need not tell
            wants = False
        try:
            scheduler = self.make(optimiser, steps=steps) if wants else self.make(optimiser)
        except Exception as error:
            raise ProgramError(
                f"torch_schedule could not make its scheduler: {described(error)}. It is given the optimiser, and the "
                f"run's optimiser steps if it has an argument called steps."
            ) from error
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ProgramError(
                "torch_schedule got ReduceLROnPlateau, which follows a metric that no worker has. Take a schedule by "
                "step, such as torch.optim.lr_scheduler.CosineAnnealingLR."
            )
        if not isinstance(scheduler, LRScheduler):
            raise ProgramError(
                f"torch_schedule got what makes a {type(scheduler).__name__}; expected a scheduler of "
                f"torch.optim.lr_scheduler, as in lambda optimiser, steps: OneCycleLR(optimiser, 0.1, "
                f"total_steps=steps)."
            )
        return scheduler


def by_step(function: Callable[[int], float]) -> Schedule:
    """A schedule by optimiser steps: `function(step)` is the factor, and `step` counts from 0.

    Steps are those of one worker alone, as `gridml.Progress` counts them: where several share the work, so many
    vertices as fill one make one. Raises ProgramError for what is no function.
    """
    if not callable(function):
        raise ProgramError(f"by_step got {function!r}; expected a function of the step, as in lambda step: 0.99**step.")
    return ByStep(function)


def warmup(*, steps: int | None = None, share: float | None = None, then: Schedule = linear_decay) -> Schedule:
    """A schedule that rises linearly over the first `steps` optimiser steps, or over the first `share` (0 to 1) of
    them, and has its full factor at the last of these; it multiplies that of `then` (Goyal et al., arXiv 1706.02677,
    section 2.2). Raises ProgramError unless exactly one of both is given."""
    if (steps is None) == (share is None):
        raise ProgramError(f"warmup got steps={steps!r}, share={share!r}; expected one of them, as in steps=100.")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ProgramError(f"warmup got steps={steps!r}; expected a whole number from 1.")
    if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
        raise ProgramError(f"warmup got share={share!r}; expected more than 0 and at most 1, as in share=0.05.")
    if isinstance(then, TorchSchedule) or not callable(then):
        raise ProgramError(
            f"warmup got then={then!r}; expected a schedule of gridml's or a function. Torch's own are put one after "
            f"the other by torch.optim.lr_scheduler.SequentialLR."
        )
    return Warmup(steps, share, then)


def torch_schedule(make: Callable[..., Any], *, by_epoch: bool = False) -> Schedule:
    """A schedule of torch's own: `make(optimiser)` or `make(optimiser, steps)` returns a scheduler of
    `torch.optim.lr_scheduler`, where `steps` is how many optimiser steps the run has.

    Rates, momenta and betas are what the scheduler gives them, bit for bit, after one call of its `step` for each
    optimiser step, or `by_epoch` for each epoch. It never sees the program's optimiser but one with the same groups,
    so that a worker which comes late goes through all steps before it at once. Raises ProgramError for what is no
    function.
    """
    if not callable(make) or (hasattr(make, "get_last_lr") and not isinstance(make, type)):
        raise ProgramError(
            f"torch_schedule got {make!r}; expected what makes the scheduler of an optimiser, as in "
            f"functools.partial(torch.optim.lr_scheduler.StepLR, step_size=30)."
        )
    return TorchSchedule(make, by_epoch)


def factor_of(schedule: Schedule, at: Progress) -> float:
    """The factor of a schedule when a run is there."""
    if isinstance(schedule, ByStep | Warmup | TorchSchedule) or takes_progress(schedule):
        return schedule(at)  # type: ignore[arg-type]
    return schedule(at.share)  # type: ignore[arg-type]


def takes_progress(function: Callable[..., Any]) -> bool:
    """Whether the first argument of a function is annotated as a Progress."""
    try:
        return _takes_progress(function)
    except TypeError:  # an object that is called and cannot be hashed
        return _takes_progress.__wrapped__(function)


@functools.lru_cache(64)  # it is asked for every batch
def _takes_progress(function: Callable[..., Any]) -> bool:
    try:
        hints = typing.get_type_hints(function)
        first = next(iter(inspect.signature(function).parameters), None)
    except Exception:  # annotations can be anything, and a builtin has none
        return False
    return first is not None and hints.get(first) is Progress


def check_schedule(schedule: Schedule) -> None:
    """Raise ProgramError for a schedule that fails, or gives what is no factor, somewhere in a run."""
    wanted = "expected the factor of the learning rate, a finite number of at least 0"
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

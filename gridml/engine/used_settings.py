"""The settings that workers train with in place of the program's own: batch, learning rates and schedule.

The figures come from the functions that a worker calls before each batch (`pace`), so the text that a run prints cannot
differ from what f is given. docs/training.md lists everything that gridml changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gridml.engine.pace import batch_size, next_batch, rate_scale
from gridml.model.layers import layers_of
from gridml.model.program import Program
from gridml.model.schedule import DECAY, Schedule, TorchSchedule, Warmup, constant, linear_decay

PAGE = "docs/training.md"  # which has the full list, under "What gridml changes"
MAX_RATES = 3  # learning rates that are listed one by one


@dataclass(frozen=True)
class ProgramSettings:
    """What a program says of its batch and its learning rates, and what it allows."""

    batch: int | None  #: vertices of a batch; None: f takes one vertex at a time
    least: int  #: vertices of the smallest batch of a worker that is one of several
    fewest: int  #: vertices of the smallest batch of any worker
    accumulate: int  #: batches of an optimiser step
    rates: tuple[float, ...] | None  #: distinct rates of the optimisers, () without one; None: not known
    by_batch: bool  #: whether a layer takes statistics of its batch
    schedule: Schedule

    @property
    def has_any(self) -> bool:
        """Whether there is a batch of several vertices, or a learning rate."""
        return (self.batch or 1) > 1 or self.rates != ()


@dataclass(frozen=True)
class UsedSettings:
    """What each of `workers` that train at a time uses."""

    workers: int
    batch: int  #: vertices of a batch, as a worker aims at
    largest: int  #: vertices of the largest batch that a chunk of whole batches is cut into
    rate_factor: float  #: of the optimisers' rates, beside that of the schedule


def settings_of(program: Program) -> ProgramSettings:
    """Return what a program says. Its modules and optimisers are made once, to read their learning rates."""
    declared = [m for t in program.types().values() for m in t.modules.values()]
    rates: tuple[float, ...] | None = ()
    for each in (layers_of(m) for m in declared if m.optimiser is not None):
        rates = None if rates is None or each.rates is None else tuple(dict.fromkeys((*rates, *each.rates)))
    return ProgramSettings(
        program.update.batch,
        program.least_batch,
        program.fewest,
        program.update.accumulate,
        rates,
        any(layers_of(m).by_batch for m in declared),
        program.schedule,
    )


def schedule_name(schedule: Schedule) -> str:
    """Return what programs that read events know a schedule by: linear_decay, constant, torch or own."""
    if isinstance(schedule, TorchSchedule):
        return "torch"
    return next((f.__name__ for f in (linear_decay, constant) if schedule is f), "own")


def used_settings(program: ProgramSettings, workers: int) -> tuple[UsedSettings, str]:
    """Return what each worker uses while so many train, and that in words."""
    whole = program.batch or 1
    size = batch_size(whole, program.least, workers)
    largest = max(size, next_batch(whole, size, program.fewest, alike=workers > 1))
    used = UsedSettings(workers, size, largest, rate_scale(size / whole))
    who = "1 worker" if workers == 1 else f"{workers:,} workers"
    return used, f"{who}: {_batch(program, used)}{_kept(program, used)}{_rates(program, used)}: {PAGE}"


def _batch(program: ProgramSettings, used: UsedSettings) -> str:
    if program.batch is None:
        return "one vertex at a time"
    text = f"batch {used.batch:,}"
    if used.largest > used.batch:
        text += f" to {used.largest:,}"
    if used.batch < program.batch:
        text += f" of {program.batch:,}"
    if program.accumulate > 1:
        text += f", an optimiser step every {program.accumulate:,} of them"
    return text


def _rates(program: ProgramSettings, used: UsedSettings) -> str:
    if program.rates == ():
        return ""
    factor, rates = used.rate_factor, program.rates
    by_torch = isinstance(program.schedule, TorchSchedule)
    if by_torch or rates is None or len(rates) > MAX_RATES:
        whose = "torch's scheduler" if by_torch else "the program"
        text = f"rates as {whose} sets them" + (f", times {factor:.4g}" if factor != 1 else "")
    else:
        of_each = [f"{rate * factor:.4g} of {rate:.4g}" if factor != 1 else f"{rate:.4g}" for rate in rates]
        text = f"rate{'s' * (len(rates) > 1)} {' and '.join(of_each)}"
    schedule, keeps = program.schedule, "schedule"
    if schedule_name(schedule) == "own":
        text += ", times the program's own schedule"
    if isinstance(schedule, Warmup):
        schedule, keeps = schedule.then, "then"
    if schedule is linear_decay:
        text += f", falling linearly to 0 over the last {DECAY:.0%} of the run ({keeps}=gridml.constant keeps it)"
    return f", {text}"


def _kept(program: ProgramSettings, used: UsedSettings) -> str:
    """Return why several workers do not share the batch, where they do not."""
    if used.workers == 1 or used.rate_factor < 1 or program.batch in (None, 1):
        return ""
    if program.by_batch:
        return " (not shared: a layer normalises by its batch)"
    return " (not shared: min_batch)" if program.rates != () else " (not shared: no optimiser)"

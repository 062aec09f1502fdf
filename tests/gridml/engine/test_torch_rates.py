"""Rates of torch's schedulers equal those of a plain loop, step by step, whenever workers join."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torchs

import gridml
from gridml.engine.modules import Modules
from gridml.engine.pace import rate_scale
from gridml.errors import ProgramError
from gridml.model.schedule import Progress, TorchSchedule
from gridml.model.vertex import describe

STEPS = 40
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-3)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    weight, bias = [*parameters]
    return torch.optim.AdamW([{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "lr": 1e-2}], lr=1e-3)


def warm_cosine(optimiser: Any, steps: int) -> Any:
    first = torchs.LinearLR(optimiser, 0.1, total_iters=5)
    return torchs.SequentialLR(optimiser, [first, torchs.CosineAnnealingLR(optimiser, steps - 5)], milestones=[5])


def chained(optimiser: Any) -> Any:
    return torchs.ChainedScheduler(
        [torchs.ConstantLR(optimiser, 0.1, total_iters=3), torchs.ExponentialLR(optimiser, 0.9)], optimizer=optimiser
    )


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "OneCycleLR of AdamW": (lambda o, steps: torchs.OneCycleLR(o, 0.01, total_steps=steps), ADAMW),
    "OneCycleLR of SGD": (lambda o, steps: torchs.OneCycleLR(o, 0.5, total_steps=steps, three_phase=True), SGD),
    "OneCycleLR of two groups": (lambda o, steps: torchs.OneCycleLR(o, [0.1, 0.2], total_steps=steps), two_groups),
    "StepLR": (partial(torchs.StepLR, step_size=7), SGD),
    "MultiStepLR": (partial(torchs.MultiStepLR, milestones=[3, 11, 30]), SGD),
    "ExponentialLR": (partial(torchs.ExponentialLR, gamma=0.97), ADAMW),
    "LambdaLR": (lambda o: torchs.LambdaLR(o, lambda k: 1 / (1 + k)), two_groups),
    "MultiplicativeLR": (lambda o: torchs.MultiplicativeLR(o, lambda k: 0.95), SGD),
    "CosineAnnealingLR": (lambda o, steps: torchs.CosineAnnealingLR(o, steps), two_groups),
    "CosineAnnealingWarmRestarts": (partial(torchs.CosineAnnealingWarmRestarts, T_0=9), SGD),
    "CyclicLR": (partial(torchs.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=6), SGD),
    "PolynomialLR": (lambda o, steps: torchs.PolynomialLR(o, steps, power=2.0), ADAMW),
    "LinearLR, then CosineAnnealingLR": (warm_cosine, ADAMW),
    "ConstantLR and ExponentialLR": (chained, SGD),
}


def settings_of(optimiser: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings that a step depends on."""
    names = ("lr", "momentum", "betas", "weight_decay")
    return [{name: group[name] for name in names if name in group} for group in optimiser.param_groups]


def modules_with(optimiser: Callable[..., Any]) -> Modules:
    class Network(gridml.Vertex):
        model = gridml.module(lambda: nn.Linear(3, 2), optimiser)

    modules = Modules(describe(Network))
    modules.make(0)
    return modules


def plain(make: Callable[..., Any], optimiser_of: Callable[..., Any]) -> list[list[dict[str, Any]]]:
    """Return the settings before each step of a loop that steps its optimiser, then its scheduler."""
    optimiser = optimiser_of(nn.Linear(3, 2).parameters())
    schedule = gridml.torch_schedule(make)
    assert isinstance(schedule, TorchSchedule)
    scheduler = schedule.made(optimiser, STEPS)
    seen = []
    for _ in range(STEPS):
        seen.append(settings_of(optimiser))
        optimiser.step()
        scheduler.step()
    return seen


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own call of what it warns of
@pytest.mark.parametrize(("make", "optimiser"), CASES.values(), ids=CASES)
def test_settings_equal_torchs_own_step_by_step(make: Callable[..., Any], optimiser: Callable[..., Any]) -> None:
    expected, schedule = plain(make, optimiser), gridml.torch_schedule(make)
    assert isinstance(schedule, TorchSchedule)
    modules, late = modules_with(optimiser), modules_with(optimiser)
    for step in range(STEPS):
        modules.set_rate(1.0)
        modules.follow(schedule, Progress(step=step, steps=STEPS))
        assert settings_of(modules.optimisers(0)["model"]) == expected[step], step
    for step in (17, 3, 39):  # a worker that joins late, and one that is set back
        late.set_rate(1.0)
        late.follow(schedule, Progress(step=step, steps=STEPS))
        assert settings_of(late.optimisers(0)["model"]) == expected[step], step


def test_the_rate_falls_with_the_batch_and_momentum_does_not() -> None:
    schedule = gridml.torch_schedule(CASES["OneCycleLR of SGD"][0])
    assert isinstance(schedule, TorchSchedule)
    modules = modules_with(SGD)
    (expected,) = plain(CASES["OneCycleLR of SGD"][0], SGD)[10]
    modules.follow(schedule, Progress(step=10, steps=STEPS), rate_scale(0.25))
    (settings,) = settings_of(modules.optimisers(0)["model"])
    assert settings["lr"] == expected["lr"] / 2
    assert settings["momentum"] == expected["momentum"]


def test_by_epoch_the_scheduler_is_stepped_after_each() -> None:
    schedule = gridml.torch_schedule(partial(torchs.StepLR, step_size=1, gamma=0.5), by_epoch=True)
    assert isinstance(schedule, TorchSchedule)
    modules = modules_with(SGD)
    for epoch, rate in enumerate([0.1, 0.05, 0.025]):
        modules.follow(schedule, Progress(epoch=epoch, step=9 * epoch, steps=STEPS))
        assert modules.optimisers(0)["model"].param_groups[0]["lr"] == rate


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda o: torchs.ReduceLROnPlateau(o), "follows a metric"),
        (lambda o: o, "expected a scheduler of"),
        (lambda o: torchs.OneCycleLR(o, 0.1), "could not make its scheduler: ValueError"),
    ],
    ids=["follows a metric", "is none", "fails"],
)
def test_makers_that_make_no_sense_are_refused(make: Callable[..., Any], said: str) -> None:
    schedule = gridml.torch_schedule(make)
    assert isinstance(schedule, TorchSchedule)
    with pytest.raises(ProgramError, match=said):
        modules_with(SGD).follow(schedule, Progress(steps=STEPS))

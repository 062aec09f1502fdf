"""The rates that a scheduler of torch's gives an optimiser, step by step.

The scheduler is made for an optimiser without parameters of its own that has the same groups. So it neither touches
the real one nor counts what that does, and the rates of any step can be had in any order.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

from gridml.model.schedule import TorchSchedule

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
        self._begin()

    def at(self, place: int) -> list[Settings]:
        """Return what the scheduler sets of each group after `place` calls of its `step`, and the rate."""
        if place < self._place:
            self._begin()
        while self._place < place:
            self._stepped()
        groups = zip(self._standing.param_groups, self._moved, strict=True)
        return [{name: group[name] for name in moved} for group, moved in groups]

    def _begin(self) -> None:
        self._standing = _standing_in(self._defaults, self._groups)
        self._scheduler = self._schedule.made(self._standing, self.steps)
        self._moved: list[set[str]] = [{"lr"} for _ in self._groups]
        self._place = 0
        self._look()

    def _stepped(self) -> None:
        self._standing.step()  # torch warns where a scheduler goes before its optimiser
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch's schedulers call in each other
            self._scheduler.step()
        self._place += 1
        self._look()

    def _look(self) -> None:
        for group, made, moved in zip(self._standing.param_groups, self._groups, self._moved, strict=True):
            moved.update(name for name, value in made.items() if group[name] != value)


def _standing_in(defaults: Mapping[str, Any], groups: Sequence[Settings]) -> Any:
    """Return an optimiser that does nothing, with groups of these settings."""
    import torch

    class StandingIn(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    return StandingIn([{**group, "params": [torch.zeros(1)]} for group in groups], {**defaults})

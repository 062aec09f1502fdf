"""How far a run is, as f, evaluate and learning-rate schedules are told."""

from __future__ import annotations

from dataclasses import dataclass


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

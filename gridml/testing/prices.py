"""What the actions of a worker cost in time, for simulations."""

from __future__ import annotations

from typing import Protocol

from gridml.protocol.worker_actions import Action, BeginChunk, EndChunk, TakeSnapshot


class Prices(Protocol):
    """What things cost, in seconds of a machine of speed 1."""

    @property
    def exec_s(self) -> float: ...  # to train a vertex
    @property
    def copy_s(self) -> float: ...  # to copy one,
    @property
    def start_s(self) -> float: ...  # and to begin a chunk,
    @property
    def end_s(self) -> float: ...  # and to end it
    @property
    def push_s(self) -> float | None: ...  # to push
    @property
    def boot_s(self) -> float: ...  # to come up


def seconds(action: Action, prices: Prices) -> float:
    """How long a worker is busy with an action; training is priced by its driver, who knows how many rows it was."""
    if isinstance(action, TakeSnapshot):
        return prices.push_s or 0.0
    if isinstance(action, BeginChunk):
        return prices.start_s + (action.lease.stop - action.lease.start) * prices.copy_s
    return prices.end_s if isinstance(action, EndChunk) else 0.0

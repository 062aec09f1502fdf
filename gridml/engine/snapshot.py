"""A replica at one instant, as a push takes it along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gridml.engine.mirror import Capture
from gridml.protocol.messages import Logged
from gridml.protocol.push import ReplicaPart, VertexKey


@dataclass(frozen=True)
class Snapshot:
    """The replica at one instant, in copies: modules whole, and the rows that f used since the last one. `used` are the
    module vertices that it used since then, `logged` what it logged. Where some of it is on its way from a device, its
    arrays are to be looked at only after `wait`."""

    replica: ReplicaPart
    used: frozenset[VertexKey]
    logged: tuple[Logged, ...] = ()
    arriving: Sequence[Capture] = ()

    def wait(self) -> None:
        """Return when all of it is here. May be called on any thread, and again. Raises what the device fails with."""
        for capture in self.arriving:
            capture.wait()

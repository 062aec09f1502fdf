"""A snapshot of a replica, as a push sends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gridml.engine.mirror import Capture
from gridml.protocol.messages import Logged
from gridml.protocol.push import ReplicaPart, VertexKey


@dataclass(frozen=True)
class Snapshot:
    """A copy of the replica at one instant. Arrays that come from a device are valid only after `wait`."""

    replica: ReplicaPart  #: all tensors of modules, and the rows that f used since the last snapshot
    used: frozenset[VertexKey]  #: module vertices that f used since the last snapshot
    logged: tuple[Logged, ...] = ()  #: values that f logged since the last snapshot
    arriving: Sequence[Capture] = ()  #: copies from a device that may be in progress

    def wait(self) -> None:
        """Block until all copies are complete. Thread-safe and idempotent. Raises the device's error."""
        for capture in self.arriving:
            capture.wait()

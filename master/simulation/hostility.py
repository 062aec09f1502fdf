"""Hostile messages beside those of workers on hostile machines: values that no honest one sends, in every field."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import final

from gridml.protocol.codec import InProcessPayload
from gridml.protocol.messages import Sync
from gridml.testing.hostile_values import INTEGERS, altered, nonsense

SHARE = 0.5  # of the messages and heartbeats from a hostile machine
MOST = 4  # hostile messages beside one that is honest
MOST_FIELDS = 4  # altered in one of them
# Numbers that they come under, after that of the honest message: for the most part its own, whose place they take or
# which takes theirs; a number far off makes those that follow late copies.
OFFSETS = (0,) * 20 + (-1, -1, 1, 1, 1_000)
_HEARTBEATS = tuple(value for value in INTEGERS if -(2**63) <= value < 2**63)  # what its file can hold


@final
class Hostility:
    """Draws hostile messages from a seed. `values` counts what was put into fields, or in place of a whole message."""

    def __init__(self, seed: int) -> None:
        self.values = 0
        self._rng = random.Random(f"hostile/{seed}")

    def messages(self, number: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (number, payload) of the hostile messages that come beside a worker's message."""
        rng = self._rng
        if rng.random() >= SHARE or not isinstance(payload, InProcessPayload):
            return
        assert isinstance(payload.message, Sync), "workers send syncs"
        for _ in range(rng.randint(1, MOST)):
            fields = rng.randint(0, MOST_FIELDS)
            self.values += max(1, fields)
            hostile = altered(payload.message, rng, fields) if fields else nonsense(rng)
            yield max(0, number + rng.choice(OFFSETS)), hostile

    def heartbeat(self, lease: int, upto: int) -> tuple[int, int]:
        """Return a heartbeat, at times a hostile one."""
        if self._rng.random() >= SHARE:
            return lease, upto
        self.values += 1
        return self._rng.choice(((lease, self._rng.choice(_HEARTBEATS)), (self._rng.choice(_HEARTBEATS), upto)))

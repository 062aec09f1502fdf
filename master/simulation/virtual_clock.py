"""A clock that jumps: time passes only when somebody asks for it, and what is due by then happens in its order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import final

Action = Callable[[], None]


@final
class VirtualClock:
    """Seconds since an arbitrary start, which a call returns. Actions planned for one instant happen in that order."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s
        self._planned: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now_s

    def at(self, time_s: float, action: Action) -> None:
        """Plan an action; what lies in the past happens at the next advance."""
        heapq.heappush(self._planned, (time_s, next(self._numbers), action))

    @property
    def next_s(self) -> float | None:
        """When the next planned thing is due, None if there is none."""
        return self._planned[0][0] if self._planned else None

    def sleep(self, seconds: float) -> None:
        """Let that much time pass: what stands in for time.sleep."""
        self.advance(self.now_s + seconds)

    def advance(self, until_s: float) -> int:
        """Let time pass up to `until_s` and what is due by then happen; return how many things did."""
        count, planned = 0, self._planned
        while planned and planned[0][0] <= until_s:
            time_s, _, action = heapq.heappop(planned)
            self.now_s = max(self.now_s, time_s)
            action()
            count += 1
        self.now_s = max(self.now_s, until_s)
        return count

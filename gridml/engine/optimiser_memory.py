"""What the optimisers of vertices remember whose modules a worker has let go of.

A replica can be had from the master again, and what its optimisers remember from nobody: so it is kept to go on with,
the newest of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

KEPT_BYTES = 1 << 29  # of one vertex type, but for the vertex that was kept last


@final
class OptimiserMemory:
    """State dicts of optimisers, by the vertex whose modules they step."""

    def __init__(self) -> None:
        self._states: dict[int, list[dict[str, Any]]] = {}  # the one that was kept first comes first
        self._nbytes: dict[int, int] = {}
        self._all_bytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def keep(self, index: int, optimisers: Sequence[Any]) -> None:
        """Keep what the optimisers of vertex `index` remember, if that is anything."""
        self._take(index)
        states = [optimiser.state_dict() for optimiser in optimisers]
        if not any(state["state"] for state in states):
            return
        self._states[index], self._nbytes[index] = states, _nbytes(states)
        self._all_bytes += self._nbytes[index]
        while len(self._states) > 1 and self._all_bytes > KEPT_BYTES:
            self._take(next(iter(self._states)))

    def give_back(self, index: int, optimisers: Sequence[Any]) -> None:
        """Let new optimisers of vertex `index` go on from what was kept of the old ones, if it was."""
        for optimiser, state in zip(optimisers, self._take(index), strict=False):
            optimiser.load_state_dict(state)

    def clear(self) -> None:
        self._states.clear()
        self._nbytes.clear()
        self._all_bytes = 0

    def _take(self, index: int) -> list[dict[str, Any]]:
        self._all_bytes -= self._nbytes.pop(index, 0)
        return self._states.pop(index, [])


def _nbytes(states: Sequence[dict[str, Any]]) -> int:
    """Bytes of the tensors in state dicts."""
    import torch

    remembered = (value for state in states for one in state["state"].values() for value in one.values())
    return sum(value.nbytes for value in remembered if isinstance(value, torch.Tensor))

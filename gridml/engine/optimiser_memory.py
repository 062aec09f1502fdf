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

    def __len__(self) -> int:
        return len(self._states)

    def keep(self, index: int, optimisers: Sequence[Any]) -> None:
        """Keep what the optimisers of vertex `index` remember, if that is anything."""
        states = [optimiser.state_dict() for optimiser in optimisers]
        if _nbytes(states):
            self._states[index] = states
        while len(self._states) > 1 and sum(map(_nbytes, self._states.values())) > KEPT_BYTES:
            del self._states[next(iter(self._states))]

    def give_back(self, index: int, optimisers: Sequence[Any]) -> None:
        """Let new optimisers of vertex `index` go on from what was kept of the old ones, if it was."""
        for optimiser, state in zip(optimisers, self._states.pop(index, ()), strict=False):
            optimiser.load_state_dict(state)

    def clear(self) -> None:
        self._states.clear()


def _nbytes(states: Sequence[dict[str, Any]]) -> int:
    """Bytes of the tensors in state dicts."""
    import torch

    remembered = (value for state in states for one in state["state"].values() for value in one.values())
    return sum(value.nbytes for value in remembered if isinstance(value, torch.Tensor))

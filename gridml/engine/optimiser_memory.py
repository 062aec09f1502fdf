"""What the optimisers of vertices remember whose modules a worker has let go of.

A replica can be had from the master again, and what its optimisers remember from nobody: so it is kept to go on with,
the newest of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    return sum(tensor.nbytes for state in states for tensor in _tensors(state["state"]))


def _tensors(remembered: Any) -> Iterator[Any]:
    """The tensors in what an optimiser remembers: in lists, too, as L-BFGS has them, and beside what it counts."""
    import torch

    if isinstance(remembered, torch.Tensor):
        yield remembered
    elif isinstance(remembered, Mapping):
        for each in remembered.values():
            yield from _tensors(each)
    elif isinstance(remembered, list | tuple):
        for each in remembered:
            yield from _tensors(each)

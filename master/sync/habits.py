"""What each worker's pushes were like of late: the memory of the gate."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from master.decisions.gate import REMEMBERED, Habit

WORKERS = 16  # that are remembered, those that pushed last: enough votes, and few to count at each push


class Habits:
    """The last steps of the workers that pushed last, by worker and group of tensors. It ends with its master."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, dict[str, deque[tuple[float, int]]]] = OrderedDict()
        self._habits: dict[str, dict[str, Habit]] = {}

    def add(self, worker: str, sizes: Mapping[str, float], vertices: int) -> None:
        """Take note of the step that a worker's push took, in sizes per root vertex by group."""
        steps = self._steps.setdefault(worker, {})
        self._steps.move_to_end(worker)
        habits = self._habits.setdefault(worker, {})
        for group, size in sizes.items():
            last = steps.setdefault(group, deque(maxlen=REMEMBERED))
            last.append((size, vertices))
            taken = [each for each, _ in last]
            habits[group] = Habit(max(taken), min(taken), max(n for _, n in last), len(last))
        if len(self._steps) > WORKERS:
            self.forget(next(iter(self._steps)))

    def is_settled(self, worker: str) -> bool:
        """Whether a worker has pushed so often that its steps are known."""
        return any(len(steps) >= REMEMBERED for steps in self._steps.get(worker, {}).values())

    def forget(self, worker: str) -> None:
        """What a worker does is no measure for others any more. Idempotent."""
        self._steps.pop(worker, None)
        self._habits.pop(worker, None)

    def others(self, worker: str, group: str) -> list[Habit]:
        """Return what all workers but one did in a group of tensors."""
        return [habits[group] for name, habits in self._habits.items() if name != worker and group in habits]

    def alone(self, worker: str) -> bool:
        """Whether no other worker has pushed."""
        return all(name == worker for name in self._steps)

"""Fields for stages: accumulators, which are summed over all workers, and fields that never leave a worker.

They are declared beside `gridml.array`. Only programs of stages (`gridml.model.stages`) can write them.
"""

from __future__ import annotations

from typing import Any, Literal

from gridml.aggregates.sums import Add, Maximum
from gridml.errors import ProgramError
from gridml.model.ragged import number_of, shape_of
from gridml.model.vertex import array

By = Literal["add", "max"]


class accumulator(array):
    """A sum (`by="add"`) or maximum (`by="max"`) over everything that stages of one pass do, such as the loss.

    It belongs to a context: a replicated type of one vertex. An `exchange` adds to it, `at.loss += x`, or raises it,
    `at.worst = max(at.worst, x)`; a `global_sync` reads it after the pass, and then it is 0 again. graph.add may leave
    it out. Each credited vertex is in it exactly once. Raises ProgramError for any other `by`.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...] = (), *, by: By = "add") -> None:
        super().__init__(number_of(dtype, "gridml.accumulator"), shape_of(shape, "gridml.accumulator"))
        if by not in ("add", "max"):
            raise ProgramError(f"gridml.accumulator got by={by!r}; expected 'add' or 'max'.")
        self.by = by
        self.own_rule = Add() if by == "add" else Maximum()


class derived(array):
    """A field of a replicated type that each worker computes from the others, by `apply(Type, at="mirror")`. It begins
    as 0, never travels, and graph.add does not take it."""

    travels = False

    def __init__(self, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        super().__init__(number_of(dtype, "gridml.derived"), shape_of(shape, "gridml.derived"))


class scratch(array):
    """Working memory of a context, in which a stage may keep anything while it looks at one vertex. It begins as 0,
    never travels, and graph.add does not take it."""

    travels = False

    def __init__(self, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        super().__init__(number_of(dtype, "gridml.scratch"), shape_of(shape, "gridml.scratch"))


class counter(scratch):
    """Working memory of a context that counts numbers below n, by the functions of `gridml.counters`."""

    def __init__(self, n: int) -> None:
        if type(n) is not int or n < 1:
            raise ProgramError(f"gridml.counter got {n!r}; expected how many numbers there are, from 1 on.")
        super().__init__("int32", (3, n + 1))

"""Fields for stages: accumulators, which are summed over all workers, and fields that never leave a worker.

They are declared beside `gridml.array`. Only programs of stages (`gridml.model.stages`) can write them.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from gridml.aggregates.sums import Add, Maximum
from gridml.errors import ProgramError
from gridml.model.ragged import number_of, shape_of
from gridml.model.vertex import array

By = Literal["add", "max", "min"]


class accumulator(array):
    """A sum (`by="add"`), maximum or minimum over everything that stages do, such as the loss of a pass.

    An `exchange` adds to it, `at.loss += x`, or raises it, `at.worst = max(at.worst, x)`. That of a context is read by
    a `global_sync`, that of the vertex at an edge's end by `apply` of its type, and then it is 0 again. graph.add may
    leave it out. Each credited vertex is in it exactly once.

    A minimum, `page.nearest = min(page.nearest, x)`, belongs to a local type. It begins as infinity, or as the largest
    integer. Raises ProgramError for any other `by`.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...] = (), *, by: By = "add") -> None:
        super().__init__(number_of(dtype, "gridml.accumulator"), shape_of(shape, "gridml.accumulator"))
        if by not in get_args(By):
            raise ProgramError(f"gridml.accumulator got by={by!r}; expected one of {get_args(By)}.")
        self.by = by
        self.own_rule = Add() if by == "add" else Maximum()  # a minimum is not merged: it stays with a local vertex

    @property
    def first(self) -> int | float:
        """The value with which it begins."""
        if self.by != "min":
            return 0
        return math.inf if self.dtype.kind == "f" else int(np.iinfo(self.dtype).max)


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

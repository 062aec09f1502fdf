"""Loops that numba compiles, once for a machine: the machine code is kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function of numbers and arrays as machine code that holds no lock of Python's."""
    return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True)(function))

"""Loops that numba compiles, once for a machine: the machine code is kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import caching
from numba.core.runtime import nrt

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Cache: Any = caching.FunctionCache  # neither this nor what follows from it has types


class _Kept(_Cache):  # type: ignore[misc]
    """Machine code on disk, loaded without what only compiling needs.

    Before it looks there numba fills its tables of all functions that it knows, and imports what they are for: 0.2 s of
    a process's first call. Code that is there runs without them; where there is none, numba fills them as it compiles.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            nrt.rtsys.initialize(target_context)  # counts references to arrays, which all code does
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except AttributeError:  # another numba, whose parts have other names
            return super().load_overload(sig, target_context)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function of numbers and arrays as machine code that holds no lock of Python's.

    Such a function may take its arrays one by one, however many: of a tuple, numba counts a reference whenever one is
    taken out, and what depends on which of them are None is left out of the machine code for arguments alone.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    dispatcher._cache = _Kept(function)  # as its option for keeping code does with numba's own
    return cast("Callable[_P, _R]", dispatcher)

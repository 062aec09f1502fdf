"""Compilation of kernels by numba, with the machine code cached on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar, cast, overload

import numba
from numba.core import caching
from numba.core.runtime import nrt

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Cache: Any = caching.FunctionCache  # untyped, like everything derived from it


class _LightCache(_Cache):  # type: ignore[misc]
    """A cache that loads machine code without the tables that only compilation needs.

    numba's own cache first fills the tables of all functions that numba supports, and imports their modules, which adds
    0.2 s to the first call in a process. Cached code runs without the tables. After a cache miss, numba fills them when
    it compiles.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            nrt.rtsys.initialize(target_context)  # the reference counts of arrays, which all kernels use
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except AttributeError:  # a numba version with other internals
            return super().load_overload(sig, target_context)


@overload
def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]: ...
@overload
def compiled(
    function: Callable[_P, _R], *, fast: Collection[str], keep: bool = True, inlined: bool = False
) -> Callable[_P, _R]: ...
def compiled(
    function: Callable[_P, _R], *, fast: Collection[str] | None = None, keep: bool = True, inlined: bool = False
) -> Callable[_P, _R]:
    """Compile a function of numbers and arrays to machine code that runs without the GIL.

    Kernels may take many arrays as separate arguments. numba counts a reference each time an array is read from a
    tuple, and only drops branches on None for plain arguments.

    With `fast`, flags of LLVM for floating-point numbers, a division by zero gives infinity or NaN as in numpy. Without
    `keep` the machine code is not cached: it is part of that of the functions that call it. With `inlined` it is copied
    to each call, and arrays are passed without counting references: topics are drawn in three quarters of the time. The
    function must make no arrays.
    """
    options: dict[str, Any] = {} if fast is None else {"fastmath": set(fast), "error_model": "numpy"}
    if inlined:
        options |= {"forceinline": True, "_nrt": False}
    dispatcher: Any = numba.njit(nogil=True, **options)(function)
    if keep:
        dispatcher._cache = _LightCache(function)  # as `cache=True` does with numba's own cache
    return cast("Callable[_P, _R]", dispatcher)

"""The only pickle that gridml reads: one of numpy arrays, in a package whose checksum is pinned."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, ClassVar

import numpy as np


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles that consist of numpy arrays and plain containers, and refuses all others.

    A pickle is a program: loading one calls whatever importable thing it names. The wheel's checksum is pinned, but a
    pin says which file it is, not that it is harmless, so only what rebuilds an array can be reached.
    """

    # numpy moved the function between its versions 1 and 2; taking it from an array works with both.
    RECONSTRUCT: ClassVar[Any] = np.empty(0).__reduce__()[0]
    ALLOWED: ClassVar[Mapping[tuple[str, str], Any]] = MappingProxyType(
        {
            ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
    )

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        super().__init__(file, encoding="bytes")  # the pickle was written by Python 2, whose strings are bytes

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the pickle names {module_name}.{global_name}; only numpy arrays are read from it"
            ) from None

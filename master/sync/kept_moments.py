"""The second moments that workers have gathered, for those that come new (`gridml.engine.moments`).

They are advice: nothing that is credited rests on them, so nothing waits until they are safe, and none is needed. Each
is the mean of what is here and what is brought, of which no element counts for more than `FACTOR` times what is here,
or less than one in as many: a worker that lies cannot send those who come new far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.engine.moments import COUNTERS, FIRST, SECOND
from gridml.protocol.compression import bfloat16, from_bfloat16
from gridml.protocol.push import VertexKey, module_key
from master.store.moments_file import MomentsFile
from master.store.replica import Replica

Array = NDArray[Any]
FACTOR = 4.0  # gradients that double between two askings are believed
EVERY = 16  # pushes, of which one brings them: they are half as long as a replica, and change slowly


@final
class KeptMoments:
    """Of all module vertices of a `replica`, second moments in bfloat16; in a `file`, too, for the next master."""

    def __init__(self, replica: Replica, file: MomentsFile) -> None:
        self._replica = replica
        self._file = file
        self._kept: dict[VertexKey, dict[str, Array]] = {}
        self._pushes = 0

    def resume(self) -> None:
        """Have what an earlier master kept, as far as it is of this program."""
        kept = self._file.read()
        self._take({name: values for name, values in kept.items() if self.check({name: values}) is None})

    def asks(self) -> bool:
        """Whether the worker whose push is answered is to bring its own with the next: the first, and every so many."""
        self._pushes += 1
        return self._pushes % EVERY == 1

    def check(self, moments: Mapping[str, Array]) -> str | None:
        """Return why moments cannot be of this program, by name, shape and value; None if they can."""
        for whole, values in moments.items():
            entry, _, name = whole.partition("/")
            key = module_key(name)
            tensors = self._replica.state.modules[key].tensors if key in self._replica.state.modules else {}
            if entry not in SECOND | FIRST | COUNTERS or name not in tensors:
                return f"the replica has nothing that @moments/{whole} could be of"
            if values.ndim and values.shape != tensors[name].shape:
                return f"@moments/{whole} has {values.shape}, expected {tensors[name].shape}"
            floats = from_bfloat16(values) if values.ndim else values
            if not (np.isfinite(floats).all() and (floats >= 0).all()):
                return f"@moments/{whole} has values that no mean of squares has"
        return None

    def take(self, moments: Mapping[str, Array]) -> None:
        """Have what a worker brought, that was checked, count for those who come new."""
        if moments:
            self._take(moments)
            self._file.write(self.of(self._kept))

    def _take(self, moments: Mapping[str, Array]) -> None:
        for whole, brought in moments.items():
            key = module_key(whole.partition("/")[2])
            assert key is not None, "only moments that were checked come here"
            mine = self._kept.setdefault(key, {})
            mine[whole] = mean_of(mine.get(whole), brought)

    def of(self, keys: Collection[VertexKey]) -> dict[str, Array]:
        """Return what is here of these module vertices, by "entry/NAME"."""
        return {name: values for key in keys for name, values in self._kept.get(key, {}).items()}

    def clear(self) -> None:
        """Forget all: those who began with them failed, perhaps for that."""
        self._kept.clear()
        self._file.remove()


def mean_of(kept: Array | None, brought: Array) -> Array:
    """Return what is kept after something was brought: counters as they come, elements that were zero, too."""
    if kept is None or not brought.ndim or kept.shape != brought.shape:
        return brought.copy()  # not the payload's memory, which would all be held
    old, new = from_bfloat16(kept), from_bfloat16(brought)
    bounded = np.clip(new, old / np.float32(FACTOR), old * np.float32(FACTOR))
    return bfloat16(np.where(old > 0, old / 2 + bounded / 2, new).astype(np.float32))

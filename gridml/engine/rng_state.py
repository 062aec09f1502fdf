"""A random number stream for each simulated worker in one process, independent of the order in which workers run.

f draws from the global generators of Python, numpy and torch. So their state is swapped before and after a call of f.
"""

from __future__ import annotations

import random
import zlib
from typing import Any, final

import numpy as np


def seed_generators(seed: str, *, torch: bool) -> None:
    """Seed the global generators of Python, numpy and, if the program uses it, torch."""
    number = zlib.crc32(seed.encode())
    random.seed(number)
    np.random.seed(number)
    if torch:
        import torch as library

        library.manual_seed(number)


@final
class RngState:
    """The state of the global generators of Python, numpy and torch, seeded for one worker."""

    def __init__(self, seed: str, *, torch: bool) -> None:
        outside = self._capture(torch=torch)  # the process's own state, which the seeding below must not change
        seed_generators(seed, torch=torch)
        self._torch = torch
        self._own = self._capture(torch=torch)
        self._restore(outside)

    def swap(self) -> None:
        """Exchange the worker's state and that of the process. Call it before f and again after f."""
        other = self._capture(torch=self._torch)
        self._restore(self._own)
        self._own = other

    @staticmethod
    def _capture(*, torch: bool) -> tuple[Any, Any, Any]:
        state = None
        if torch:
            import torch as library

            state = library.get_rng_state()
        return random.getstate(), np.random.get_state(), state

    @staticmethod
    def _restore(states: tuple[Any, Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if states[2] is not None:
            import torch as library

            library.set_rng_state(states[2])

"""Random number streams of several simulated workers in one process: each draws its own, in any order of execution.

f draws from the global generators of Python, numpy and torch, as user code does, so their state is swapped around it.
"""

from __future__ import annotations

import random
import zlib
from typing import Any, final

import numpy as np


@final
class RngState:
    """The state of the global generators of Python, numpy and torch, seeded for one worker."""

    def __init__(self, seed: str, *, torch: bool) -> None:
        number = zlib.crc32(seed.encode())  # as a worker process seeds torch
        outside = self._capture(torch=torch)  # seeding below must not disturb the process's own stream
        random.seed(number)
        np.random.seed(number)
        if torch:
            import torch as library

            library.manual_seed(number)
        self._torch = torch
        self._own = self._capture(torch=torch)
        self._restore(outside)

    def swap(self) -> None:
        """Exchange the worker's state and the process's. Call it before f and again after it."""
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

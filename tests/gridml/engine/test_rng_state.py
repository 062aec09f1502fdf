"""The engine's random numbers, separate from those of the process."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch

from gridml.engine.rng_state import RngState


def test_each_state_has_its_own_random_numbers_and_the_process_keeps_its() -> None:
    def drawn(rng: RngState | None) -> tuple[float, float, float]:
        if rng is not None:
            rng.swap()
        numbers = random.random(), float(np.random.random()), float(torch.rand(1))
        if rng is not None:
            rng.swap()
        return numbers

    def outside() -> Callable[[], tuple[float, float, float]]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return lambda: drawn(None)

    undisturbed = outside()
    expected = [undisturbed() for _ in range(2)]
    disturbed = outside()
    one, two = RngState("0/w1", torch=True), RngState("0/w2", torch=True)
    in_turn = [disturbed(), drawn(one), drawn(two), disturbed(), drawn(one)]
    assert [in_turn[0], in_turn[3]] == expected
    again = RngState("0/w1", torch=True)
    assert [drawn(again), drawn(again)] == [in_turn[1], in_turn[4]]
    assert len({*in_turn}) == 5

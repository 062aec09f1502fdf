"""Random numbers of one's own, beside those of the process."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch

from gridml.engine.dice import Dice


def test_everybody_has_random_numbers_of_their_own_and_the_process_keeps_its() -> None:
    def drawn(dice: Dice | None) -> tuple[float, float, float]:
        if dice is not None:
            dice.swap()
        found = random.random(), float(np.random.random()), float(torch.rand(1))
        if dice is not None:
            dice.swap()
        return found

    def outside() -> Callable[[], tuple[float, float, float]]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return lambda: drawn(None)

    undisturbed = outside()
    expected = [undisturbed() for _ in range(2)]
    disturbed = outside()
    one, two = Dice("0/w1", torch=True), Dice("0/w2", torch=True)
    found = [disturbed(), drawn(one), drawn(two), disturbed(), drawn(one)]
    assert [found[0], found[3]] == expected
    again = Dice("0/w1", torch=True)
    assert [drawn(again), drawn(again)] == [found[1], found[4]]
    assert len({*found}) == 5

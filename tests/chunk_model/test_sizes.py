"""The search for the best size, if a value cannot be computed."""

from __future__ import annotations

import numpy as np
import pytest

from chunk_model.lifetime import Floats
from chunk_model.sizes import Ints, _peak


@pytest.mark.parametrize("wrong", [lambda k: k > 50, lambda k: k < 20, lambda k: k == 30, lambda k: k > 0])
def test_what_is_not_a_number_is_never_the_best(wrong: object) -> None:
    assert callable(wrong)

    def value(k: Ints) -> Floats:
        return np.where(wrong(k), np.nan, -np.abs(k - 40.0))

    sizes = np.arange(1, 101, 3)
    assert _peak(value, sizes) == (1 if wrong(np.array(40)) else 40)

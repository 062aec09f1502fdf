"""Sets of ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.model.ids import ascending


@given(st.lists(st.lists(st.integers(-5, 30)), min_size=1, max_size=4))
def test_each_id_once_and_in_order(parts: list[list[int]]) -> None:
    ids = ascending(*(np.array(part, np.int64) for part in parts))
    assert ids.dtype == np.int64
    assert ids.tolist() == sorted({each for part in parts for each in part})


def test_the_array_is_its_own() -> None:
    given_ids = np.array([1, 2, 5])
    ascending(given_ids)[0] = 9
    assert given_ids.tolist() == [1, 2, 5]

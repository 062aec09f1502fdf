"""Sets of ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridml.model.chunk import positions
from gridml.model.order import ascending, places


@given(st.lists(st.lists(st.integers(-5, 30)), min_size=1, max_size=4))
def test_each_id_once_and_in_order(parts: list[list[int]]) -> None:
    ids = ascending(*(np.array(part, np.int64) for part in parts))
    assert ids.dtype == np.int64
    assert ids.tolist() == sorted({each for part in parts for each in part})


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9, unique=True), st.data())
def test_the_positions_of_ids_few_or_many(given_ids: list[int], data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([3, 500]))  # of few ids, an array by id would be large
    wanted = [given_ids[each % len(given_ids)] for each in range(count)]
    found = positions(np.array(given_ids, np.int64), np.array(wanted, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [given_ids.index(each) for each in wanted]


def test_the_array_is_its_own() -> None:
    given_ids = np.array([1, 2, 5])
    ascending(given_ids)[0] = 9
    assert given_ids.tolist() == [1, 2, 5]


@given(st.sets(st.integers(0, 20)), st.lists(st.integers(-2, 25)))
def test_ids_are_found_where_they_stand(among: set[int], wanted: list[int]) -> None:
    ordered = np.array(sorted(among), np.int64)
    at, here = places(ordered, np.array(wanted, np.int64))
    assert here.tolist() == [each in among for each in wanted]
    assert at.tolist() == [sum(other < each for other in among) for each in wanted]

"""Older versions of rows, which share the memory of the newest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from master.store.replica import OlderVersion, OverwrittenRows
from master.store.versions import ReplicaState

COUNT = 12
PUSH = st.tuples(st.sampled_from(["Person", "Item"]), st.sets(st.integers(0, COUNT - 1), min_size=1))


def put(state: ReplicaState, overwritten: OverwrittenRows, version: int, type_name: str, ids: list[int]) -> None:
    """Write rows like `Replica.put`."""
    at = np.array(ids)
    columns, changed = state.arrays[type_name], state.changed[type_name]
    overwritten.add(version, type_name, at[changed[at] < version], columns)
    columns["value"][at] += 1.0 + at
    changed[at] = version


def fresh() -> ReplicaState:
    arrays = {name: {"value": np.zeros(COUNT, np.float32)} for name in ("Person", "Item")}
    return ReplicaState({}, arrays, {name: np.zeros(COUNT, np.int64) for name in arrays})


@given(st.lists(st.lists(PUSH, min_size=1, max_size=6), min_size=1, max_size=4))
def test_each_version_is_as_it_was(versions: list[list[tuple[str, set[int]]]]) -> None:
    state, overwritten = fresh(), OverwrittenRows(1 << 20)
    overwritten.restart(0)
    were = []
    for version, pushes in enumerate(versions, 1):
        were.append({name: columns["value"].copy() for name, columns in state.arrays.items()})
        for type_name, ids in pushes:
            put(state, overwritten, version, type_name, sorted(ids))
    for version, was in enumerate(were):
        older = OlderVersion(version, {}, state, overwritten)
        for name, values in was.items():
            assert older.rows(name, np.arange(COUNT))["value"].tolist() == values.tolist()


def test_a_version_of_many_pushes_has_few_records() -> None:
    state, overwritten = fresh(), OverwrittenRows(1 << 20)
    overwritten.restart(0)
    for row in range(COUNT):
        put(state, overwritten, 1, "Item", [row])
        put(state, overwritten, 1, "Person", [row])
    kept = [record.ids.tolist() for record in overwritten.since(0, "Item")]
    assert kept == [[*range(8)], [*range(8, 11)], [11]]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_there_are_few_whatever_each_push_brings(sizes: list[int]) -> None:
    overwritten, ends = OverwrittenRows(1 << 20), np.cumsum([0, *sizes])
    overwritten.restart(0)
    for begin, end in pairwise(ends):
        overwritten.add(1, "Item", np.arange(begin, end), {"value": np.zeros(ends[-1], np.float32)})
    kept = [len(record.ids) for record in overwritten.since(0, "Item")]
    assert sum(kept) == ends[-1]
    assert all(larger > 2 * smaller for larger, smaller in pairwise(kept))


def test_rows_that_were_dropped_do_not_count() -> None:
    state, overwritten = fresh(), OverwrittenRows(3 * 1100)
    overwritten.restart(0)
    for version in range(1, 7):
        put(state, overwritten, version, "Item", [version])
        put(state, overwritten, version, "Item", [version + 1])
    assert overwritten.nbytes <= overwritten.max_bytes
    assert overwritten.reach > 0
    assert overwritten.nbytes == sum(1024 + record.ids.nbytes * 3 // 2 for record in overwritten.since(-1, "Item"))

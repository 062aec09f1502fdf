"""The table of leases: one call updates every index, and its order is that of a sorted list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.state.lease_records import MAX_CANDIDATES, LeaseState, LeaseTable


def lease_of(number: int, worker: str = "w1", length: int = 10) -> LeaseState:
    """Return lease `number`, of its own range."""
    start = number * length
    return LeaseState(number, 1, 0, start, start + length, start, worker)


numbers = st.integers(1, 60)
times = st.floats(allow_nan=False, width=16)  # few enough values for some to be equal


@given(st.lists(st.tuples(numbers, st.none() | times)), st.frozensets(numbers))
def test_steal_candidates_are_the_ends_of_a_sorted_list(
    changes: list[tuple[int, float | None]], but: frozenset[int]
) -> None:
    table, plain = LeaseTable(), dict[int, float]()
    for number, due_s in changes:
        lease = table.get(number)
        if due_s is None:
            if lease is not None:
                table.end(lease)
            plain.pop(number, None)
        else:
            if lease is None:
                lease = lease_of(number)
                table.add(lease)
            table.expect(lease, due_s)
            plain[number] = due_s
    order = [number for _, number in sorted((due_s, number) for number, due_s in plain.items()) if number not in but]
    assert len(table) == len(table._expected) == len(plain)
    assert [lease.id for lease in table.steal_candidates(but)] == list(
        dict.fromkeys((*order[:MAX_CANDIDATES], *order[::-1][:MAX_CANDIDATES]))
    )


def test_a_lease_without_a_due_time_comes_first() -> None:
    table = LeaseTable(lease_of(number) for number in range(101))
    for number in range(100):
        table.expect(table[number], float(number))
    table.expect(table[100])
    assert table.steal_candidates()[0].id == 100
    table.expect(table[100], math.inf)
    assert table.steal_candidates()[MAX_CANDIDATES].id == 100


def indexes(table: LeaseTable, worker: str) -> tuple[set[int], set[int], set[int], set[int]]:
    """Return the numbers of the leases that are open, held by `worker`, expected, and reserved."""
    return (
        {lease.id for lease in table},
        {*table.of(worker)},
        {number for _, number in table._expected},
        {*table.reserved},
    )


def test_one_call_ends_a_lease_in_every_index() -> None:
    table = LeaseTable()
    first, second = lease_of(1), lease_of(2)
    for lease in (first, second):
        table.add(lease)
        table.expect(lease, 5.0)
    assert indexes(table, "w1") == ({1, 2}, {1, 2}, {1, 2}, set())
    table.end(first)
    assert indexes(table, "w1") == ({2}, {2}, {2}, set())
    assert table.get(1) is None and first.due_s is None
    with pytest.raises(KeyError):
        table.end(first)
    table.end(second)
    assert indexes(table, "w1") == (set(), set(), set(), set())
    assert (len(table), table.holders, table.steal_candidates()) == (0, 0, [])


def test_a_lease_that_was_never_expected_ends_as_well() -> None:
    table = LeaseTable([lease_of(1)])
    table.end(table[1])
    assert indexes(table, "w1") == (set(), set(), set(), set())


def test_an_ended_lease_is_kept_only_while_it_is_reserved() -> None:
    table = LeaseTable([lease_of(number) for number in (1, 2, 3)])
    for number, until_s in ((1, None), (2, 100.0), (3, 200.0)):
        lease = table[number]
        lease.reserved_until_s = until_s
        table.end(lease)
    assert indexes(table, "w1") == (set(), set(), set(), {2, 3})
    table.expire(100.0)
    assert {*table.reserved} == {3}
    table.expire(199.0)
    assert {*table.reserved} == {3}
    table.expire(200.0)
    assert table.reserved == {}


def test_a_lease_that_is_opened_again_uses_its_reservation_up() -> None:
    lease = lease_of(1)
    lease.reserved_until_s = 100.0
    table = LeaseTable(reserved=[lease])
    lease.worker = "w1.1"
    table.add(lease)
    assert indexes(table, "w1") == ({1}, set(), set(), set())
    assert table.of("w1.1") == {1: lease}


def test_leases_of_a_worker_come_in_the_order_in_which_they_were_granted() -> None:
    table = LeaseTable([lease_of(3), lease_of(1, "w2"), lease_of(2)])
    assert [*table.of("w1")] == [3, 2]
    assert (table.holders, len(table)) == (2, 3)
    assert table.of("unknown") == {}

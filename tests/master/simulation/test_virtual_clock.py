"""The virtual clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.simulation.faulty_network import VirtualClock


@given(st.lists(st.floats(0, 100), max_size=20), st.floats(0, 100))
def test_what_is_due_happens_in_its_order_and_at_its_time(planned: list[float], until_s: float) -> None:
    clock, happened = VirtualClock(), list[tuple[float, int]]()
    for number, time_s in enumerate(planned):
        clock.at(time_s, lambda number=number: happened.append((clock.now_s, number)))  # type: ignore[misc]
    due = sorted((time_s, number) for number, time_s in enumerate(planned) if time_s <= until_s)
    assert clock.advance(until_s) == len(due)
    assert happened == due
    assert clock() == until_s
    later = [time_s for time_s in planned if time_s > until_s]
    assert clock.next_s == min(later, default=None)


def test_what_happens_may_plan_more_for_the_same_instant() -> None:
    clock, happened = VirtualClock(10.0), list[str]()
    clock.at(11.0, lambda: (happened.append("one"), clock.at(11.0, lambda: happened.append("two")))[0])
    assert clock.advance(11.0) == 2
    assert happened == ["one", "two"]


def test_time_does_not_go_back() -> None:
    clock, happened = VirtualClock(10.0), list[float]()
    clock.at(3.0, lambda: happened.append(clock.now_s))  # planned in the past
    clock.advance(5.0)
    assert happened == [10.0]
    assert clock() == 10.0

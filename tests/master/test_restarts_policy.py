"""Masters that are killed in a row: each start waits longer, and finally none follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.takeover import HEALTHY_S, MAX_KILLS, MasterStart, restart_delay, without_progress


def killed(*at_s: float, credited: int = 0, evaluated: int = 0) -> list[MasterStart]:
    return [MasterStart(at, credited, evaluated) for at in at_s]


def test_the_first_restart_is_at_once_and_then_each_waits_twice_as_long() -> None:
    assert [restart_delay(n)[0] for n in range(MAX_KILLS + 1)] == [0.0, 0.0, 5.0, 10.0, 20.0, None]
    assert restart_delay(MAX_KILLS)[1] == "5 masters in a row killed before anything was credited or evaluated"


def test_what_was_credited_or_evaluated_since_begins_the_count_anew() -> None:
    before = [*killed(0, 1, 2), *killed(3, 4, credited=10)]
    assert without_progress(before, MasterStart(5, 10, 0)) == killed(3, 4, credited=10)
    assert without_progress(before, MasterStart(5, 11, 0)) == []
    assert without_progress(before, MasterStart(5, 10, 1)) == []
    assert without_progress(before, MasterStart(5, 3, 0)) == [], "of a run that was rolled back, too"


def test_a_master_that_lived_long_does_not_count() -> None:
    assert without_progress(killed(0, 10, 20 + HEALTHY_S), MasterStart(30 + HEALTHY_S, 0, 0)) == killed(20 + HEALTHY_S)
    assert without_progress(killed(0, 10), MasterStart(11 + HEALTHY_S, 0, 0)) == []


@given(st.lists(st.integers(0, int(HEALTHY_S) - 1), min_size=1, max_size=2 * MAX_KILLS))
def test_quick_ones_without_anything_done_all_count(gaps: list[int]) -> None:
    at_s = [float(sum(gaps[:n])) for n in range(len(gaps) + 1)]
    assert without_progress(killed(*at_s[:-1]), MasterStart(at_s[-1], 0, 0)) == killed(*at_s[:-1])

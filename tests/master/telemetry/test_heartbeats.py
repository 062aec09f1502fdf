"""When a worker is given up: after silence, sooner when nobody can see it, not while it notes that it trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from master.telemetry.heartbeats import Heartbeats, Note

LIMIT = 120.0


@pytest.fixture
def notes() -> dict[str, Note]:
    return {}


@pytest.fixture
def presence(notes: dict[str, Note]) -> Heartbeats:
    found = Heartbeats(notes.get, LIMIT, {"w0"})
    found.expect("w1")
    return found


def given_up(presence: Heartbeats, now: float) -> list[str]:
    return [worker for worker, _ in presence.silent(now)]


def every_second(presence: Heartbeats, until: float, then: Callable[[float], None] = lambda now: None) -> float | None:
    """The second at which somebody is given up, None when nobody is before `until`."""
    for now in range(int(until)):
        then(float(now))
        if given_up(presence, float(now)):
            return float(now)
    return None


def test_who_waits_is_not_silent(presence: Heartbeats) -> None:
    assert presence.waiting == 1
    assert every_second(presence, 1000) is None


def test_silence_has_a_limit(presence: Heartbeats) -> None:
    presence.runs("w1", 0.0)
    assert presence.waiting == 0
    assert every_second(presence, 1000) == LIMIT + 1


def test_who_notes_that_it_trains_is_not_given_up(presence: Heartbeats, notes: dict[str, Note]) -> None:
    presence.runs("w1", 0.0)
    assert every_second(presence, 1000, lambda now: notes.update(w1=(1, int(now)))) is None


def test_an_old_note_is_no_sign_of_life(presence: Heartbeats, notes: dict[str, Note]) -> None:
    notes["w1"] = (1, 64)
    presence.runs("w1", 0.0)
    assert every_second(presence, 1000) == LIMIT + 1


def test_a_letter_begins_the_silence_anew(presence: Heartbeats) -> None:
    presence.runs("w1", 0.0)
    presence.heard(["w1"], 100.0)
    assert every_second(presence, 1000) == LIMIT + 101
    assert presence.spoken == {"w1"}


def test_who_is_out_of_reach_gets_a_quarter_of_the_time(presence: Heartbeats) -> None:
    presence.runs("w1", 0.0)
    presence.lost_sight("w1")
    assert every_second(presence, 1000) == LIMIT / 4 + 1
    presence.runs("w1", 0.0)  # in reach again
    assert every_second(presence, 1000) == LIMIT + 1


def test_who_has_stopped_is_neither_alive_nor_silent(presence: Heartbeats) -> None:
    presence.runs("w1", 0.0)
    presence.stops("w1")
    assert presence.alive == set() and every_second(presence, 1000) is None
    assert presence.known == {"w0", "w1"}


def test_nobody_loses_sight_of_who_does_not_run(presence: Heartbeats) -> None:
    presence.lost_sight("w1")
    presence.lost_sight("stranger")
    assert presence.silent(1e9) == []

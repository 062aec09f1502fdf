"""Observations: validation, censoring, simultaneous deaths, and the CSV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.observations import ObservationError, Observations, read_csv
from chunk_model.traces import Life

LIVES = [Life("a", 0, 10), Life("b", 0, 10), Life("c", 5, None), Life("a", 12, 20), Life("d", 20, None)]


def test_lives_are_censored_when_they_were_last_seen() -> None:
    seen = Observations.of(LIVES)
    # d, which began at the last event, says nothing.
    assert seen.duration_s.tolist() == [10, 10, 15, 8] and seen.ended.tolist() == [True, True, False, True]
    assert seen.end_at_s is not None and seen.end_at_s.tolist() == [10, 10, 20, 20]
    assert (len(seen), seen.deaths, seen.independent_deaths, seen.exposure_s) == (4, 3, 2, 43.0)


def test_what_was_known_at_an_earlier_moment() -> None:
    seen = Observations.of(LIVES, 15)
    assert seen.duration_s.tolist() == [10, 10, 10, 3] and seen.ended.tolist() == [True, True, False, False]
    assert Observations.of(LIVES, 4).deaths == 0
    assert Observations.of(LIVES, 30).duration_s.tolist() == [10, 10, 25, 8, 10]


@pytest.mark.parametrize("lives", [[], [Life("a", 10, None)]])
def test_no_lives_by_then(lives: list[Life]) -> None:
    with pytest.raises(ObservationError, match="give a trace with lives, or a later end"):
        Observations.of(lives, 10)


def test_every_death_counts_where_moments_are_unknown() -> None:
    assert Observations([10, 10, 10], [True, True, False]).independent_deaths == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30))
def test_a_group_is_all_that_died_at_one_moment(lives: list[tuple[bool, int]]) -> None:
    ended, moments = map(np.array, zip(*lives, strict=True))
    seen = Observations(np.ones(len(lives)), ended, moments)
    groups = seen.groups()
    together = groups[:, None] == groups[None, :]
    expected = (ended[:, None] & ended[None, :] & (moments[:, None] == moments[None, :])) | np.eye(
        len(lives), dtype=bool
    )
    assert bool(np.all(together == expected))
    assert sorted(set(groups.tolist())) == list(range(len(set(groups.tolist()))))
    assert seen.independent_deaths == len(set(groups[ended].tolist()))


def test_taking_some_lives() -> None:
    seen = Observations.of(LIVES)
    assert seen.take([3, 3, 0]).duration_s.tolist() == [8, 8, 10] and seen.take(seen.ended).deaths == 3
    taken = seen.take([2])
    assert taken.end_at_s is not None and taken.end_at_s.tolist() == [20] and taken.deaths == 0


def test_zeros_become_half_the_shortest_life() -> None:
    seen = Observations([0, 4, 2, 1e-310], [True, True, False, True])
    assert seen.positive().duration_s.tolist() == [1, 4, 2, 1]
    assert Observations([0, 0], [True, False]).positive().exposure_s == pytest.approx(2e-6)
    whole = Observations([4, 2], [True, True])
    assert whole.positive() is whole


@pytest.mark.parametrize(
    ("duration", "ended", "end_at", "says"),
    [
        ([1, -2], [True, True], None, "duration_s[1] must be a finite number of seconds, at least 0, got -2"),
        ([np.nan], [True], None, "duration_s[0] must be a finite number of seconds, at least 0, got nan"),
        ([1, 2, np.inf], [True] * 3, None, "duration_s[2] must be"),
        ([1, 2], [True], None, "ended and duration_s must be of one length, got the shapes (1,) and (2,)"),
        ([1, 2], [True, True], [1], "end_at_s and duration_s must be of one length"),
        ([1, 2], [True, True], [1, np.nan], "end_at_s[1] must be a finite number of seconds, got nan"),
        ([[1, 2]], [[True, True]], None, "got an array of shape (1, 2)"),
    ],
)
def test_what_makes_no_sense_is_named(duration: object, ended: object, end_at: object, says: str) -> None:
    with pytest.raises(ObservationError) as caught:
        Observations(duration, ended, end_at)  # type: ignore[arg-type]
    assert says in str(caught.value)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_file(tmp_path: Path) -> None:
    file = written(tmp_path / "lives.csv", "duration_s,ended\n2700,1\n10.5,0\n\n3e2,True\n0,false\n")
    seen = read_csv(file)
    assert seen.duration_s.tolist() == [2700, 10.5, 300, 0] and seen.ended.tolist() == [True, False, True, False]
    assert seen.end_at_s is None


def test_columns_in_another_order_with_moments_and_what_a_spreadsheet_adds(tmp_path: Path) -> None:
    file = tmp_path / "lives.csv"
    file.write_bytes(b"\xef\xbb\xbfnode, ended ,end_at_s,duration_s\r\na,1,50,20\r\nb,1,50,30\r\n")
    seen = read_csv(file)
    assert seen.duration_s.tolist() == [20, 30] and (seen.deaths, seen.independent_deaths) == (2, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: expected the columns duration_s,ended, got nothing"),
        ("2700,1\n", "line 1: expected the columns duration_s,ended, got the columns '2700,1'"),
        ("duration_s\n1\n", "line 1: expected the columns duration_s,ended, got the columns 'duration_s'"),
        ("duration_s,ended\n", "has a header and no lives"),
        ("duration_s,ended\n1,1\n2\n", "line 3: got 1 fields, expected 2"),
        ("duration_s,ended\nx,1\n", "line 2: duration_s must be a number of seconds, at least 0, got 'x'"),
        ("duration_s,ended\n-1,1\n", "line 2: duration_s must be a number of seconds, at least 0, got '-1'"),
        ("duration_s,ended\n1,1\n\nnan,1\n", "line 4: duration_s must be"),
        ("duration_s,ended\n1,yes\n", "line 2: ended must be 1, 0, true or false, got 'yes'"),
        ("duration_s,ended,end_at_s\n1,1,inf\n", "line 2: end_at_s must be a number of seconds, got 'inf'"),
    ],
)
def test_a_csv_file_that_makes_no_sense(tmp_path: Path, text: str, says: str) -> None:
    file = written(tmp_path / "lives.csv", text)
    with pytest.raises(ObservationError) as caught:
        read_csv(file)
    assert says in str(caught.value) and str(file) in str(caught.value)


def test_a_csv_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "lives.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ObservationError, match="is not text"):
        read_csv(file)
    with pytest.raises(OSError):
        read_csv(tmp_path / "absent.csv")

"""Command lines of benchmarks: `--help` measures nothing, and invalid arguments are rejected before the start."""

from __future__ import annotations

import sys

import pytest

from benchmarks.arguments import numbers, whole_numbers, words


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *request.param.split()])


@pytest.mark.parametrize(("given", "asked"), [("", [3, 4]), ("1", [1, 4]), ("1 2", [1, 2])], indirect=["given"])
def test_what_is_not_asked_for_is_the_default(given: None, asked: list[int]) -> None:
    assert numbers("", kills=3, seed=4) == asked


@pytest.mark.parametrize(("given", "asked"), [("", [1, 2]), ("7", [7]), ("7 8 9", [7, 8, 9])], indirect=["given"])
def test_numbers_that_are_asked_for_replace_all_defaults(given: None, asked: list[int]) -> None:
    assert whole_numbers("", 1, 2) == asked


@pytest.mark.parametrize("given", ["apples", "pears apples"], indirect=True)
def test_words_are_given_as_they_are_asked_for(given: None) -> None:
    assert words("", choices=["apples", "pears"]) == sys.argv[1:]


@pytest.mark.parametrize("given", ["--help", "plums", "1 2 3"], indirect=True)
def test_help_and_nonsense_end_before_anything_is_measured(given: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        words("What is measured.", choices=["apples"])
    with pytest.raises(SystemExit):
        numbers("What is measured.", kills=3, seed=4)
    said = capsys.readouterr()
    assert "What is measured." in said.out if ended.value.code == 0 else "expected apples" in said.err

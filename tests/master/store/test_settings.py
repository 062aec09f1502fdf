"""The settings of a run: invalid ones are refused, and the back end's options are stored under its name."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gridml.errors import UsageError
from master.state.jobs import BackendFacts, BackendOptions
from master.store.settings import Settings

PROGRAM = Path("program.py")


@dataclass(frozen=True)
class FarAway(BackendOptions):
    """A back end that carries files, with Chirp as the default carrier."""

    seats: int = 3

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts(carries_files=True, carriers=("chirp",))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"workers": 0}, "--workers is 0; expected at least 1"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"chunk": 0}, "--chunk is 0"),
        ({"push_every": -1}, "--push-every is -1"),
        ({"silent_s": 0.0}, "--silence is 0.0; expected a number above 0"),
        ({"silent_s": math.inf}, "--silence is inf; expected at most 1e\\+09 seconds"),
        ({"silent_s": math.nan}, "--silence is nan; expected a number above 0"),
        ({"workers": 10**7}, "--workers is 10,000,000; expected at most 1,000,000"),
        ({"epochs": 10**12}, "--epochs is 1,000,000,000,000; expected at most"),
        ({"chunk": 2**60}, "--chunk is .*; expected at most"),
        ({"push_every": 2**60}, "--push-every is .*; expected at most"),
        ({"push_budget": 0.0}, "push_budget is 0.0"),
        ({"placement": "nonsense"}, "--placement is 'nonsense'; expected none, or one of .*parsa.*auto"),
        ({"placement": ""}, "--placement is ''; expected none"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        Settings(PROGRAM, **values)


def test_a_run_has_the_usual_carrier_of_its_back_end() -> None:
    assert Settings(PROGRAM).carrier == "directory"
    assert Settings(PROGRAM, options=FarAway()).carrier == "chirp"


def test_what_works_anywhere_works_where_files_are_carried() -> None:
    assert Settings(PROGRAM, options=FarAway(), carrier="sftp", address="submit:22").carrier == "sftp"
    with pytest.raises(UsageError, match=r"--carrier is 'sftp'; expected directory\."):
        Settings(PROGRAM, carrier="sftp")
    with pytest.raises(UsageError, match=r"--carrier is 'directory'; expected chirp or sftp\."):
        Settings(PROGRAM, options=FarAway(), carrier="directory")


def test_the_options_of_a_back_end_stand_under_its_name() -> None:
    settings = Settings(PROGRAM, backend="far", options=FarAway(seats=7), carrier="sftp", chunk=5)
    values = json.loads(json.dumps(settings.to_json()))
    assert values["far"] == {"seats": 7} and "options" not in values
    assert Settings.from_json(values, FarAway) == settings


def test_options_that_were_left_out_are_the_back_ends_defaults() -> None:
    assert FarAway.among(Settings(PROGRAM).options) == FarAway()
    assert FarAway.among(FarAway(seats=9)) == FarAway(seats=9)

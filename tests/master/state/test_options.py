"""Options of dataclass fields: names, types and defaults, and the conversion of a call's values."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from gridml.errors import UsageError
from master.state.options import (
    FIRST,
    RESUME,
    SIZES,
    WORKERS,
    Option,
    described,
    fields_of,
    in_panels,
    panel_of,
    takes,
    values_of,
)


@dataclass(frozen=True)
class Lab:
    seats: Annotated[int, Option("Seats of the lab.")] = 1
    files: Annotated[tuple[Path, ...], Option("Given again for more.", FIRST, name="file")] = ()
    size_bytes: Annotated[int, Option("A size.", SIZES, name="size", kind=str, read=lambda text: int(text[:-2]))] = 5
    both: Annotated[int, Option("Two fields.", (), read=lambda value: {"both": value, "seats": 9})] = 0
    quiet: Annotated[bool, Option("Of the terminal.", commands=(RESUME,), terminal=True)] = False
    old: Annotated[float, typer.Option("--older", help="As typer has it.")] = 2.0
    inner: int = 7


LAB = described(Lab)


def test_options_are_read_from_the_fields_of_a_dataclass() -> None:
    assert [(each.name, each.field, each.kind, each.default) for each in LAB] == [
        ("seats", "seats", int, 1),
        ("file", "files", list[Path], []),
        ("size", "size_bytes", str | None, None),
        ("both", "both", int, 0),
        ("quiet", "quiet", bool, False),
        ("old", "old", float, 2.0),
    ]
    assert [each.flags for each in LAB][-2:] == [("--quiet",), ("--old",)]
    assert LAB[-1].option.help == "As typer has it."
    assert "quiet" not in {each.name for each in described(Lab, "begin")}
    seats = LAB[0].changed(default=4, help="More seats.").optional
    assert (seats.kind, seats.default, seats.option.help) == (int | None, None, "More seats.")


def test_the_first_panel_comes_first() -> None:
    assert in_panels(LAB)[0].name == "file"
    assert panel_of(LAB[0]) == panel_of(LAB[-1]) == WORKERS


def test_values_of_a_call_become_fields() -> None:
    values = values_of("lab.run", LAB, {"file": "a", "size": "12kB", "old": 3, "seats": None})
    assert values == {"seats": 1, "file": [Path("a")], "size": "12kB", "both": 0, "quiet": False, "old": 3.0}
    fields = fields_of(Lab, {**values, "both": 2})
    assert fields == {"seats": 9, "files": (Path("a"),), "size_bytes": 12, "both": 2, "quiet": False, "old": 3.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"seat": 1},
            "seat=…, which is no option of it; did you mean seats? It takes both, file, old, seats",
        ),
        ({"quiet": True}, "lab.run got quiet=…, which is no option of it"),
        ({"inner": 1}, "which is no option of it"),
        ({"seats": 1.5}, "lab.run got seats=1.5; expected a whole number."),
        ({"seats": True}, "lab.run got seats=True; expected a whole number."),
        ({"old": "2"}, "lab.run got old='2'; expected a number."),
        ({"file": 3}, "lab.run got file=3; expected a list of Path."),
        ({"size": Path}, "expected a text."),
    ],
)
def test_invalid_options_of_a_call_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        values_of("lab.run", LAB, given)
    assert said in str(refused.value)


def test_a_call_has_the_signature_and_the_docstring_of_its_options() -> None:
    @takes(lambda: LAB)
    def call(program: str, *, file: str = "", **options: Any) -> None:
        """Run a program in the lab."""

    signature = inspect.signature(call).parameters
    assert {*signature} == {"program", "file", "size", "seats", "both", "old"} and signature["seats"].default == 1
    said = inspect.getdoc(call)
    assert said is not None and said.startswith("Run a program in the lab.\n\nOptions:\n")
    assert "    seats: Seats of the lab." in said and "quiet" not in said

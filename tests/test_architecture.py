"""The stations of a push, a lease and the settings in docs/architecture.md exist: each file, and its function."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STATION = re.compile(r"^\| (\d+) \| ([^|]+) \| `([\w/.]+\.py)`: `([\w.`, ]+)` \|", re.MULTILINE)


def stations() -> list[tuple[str, str, str]]:
    """Return (station, file, function). After its first mention, a file is named without its folders."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    whole = {Path(file).name: file for _, _, file, _ in STATION.findall(text) if "/" in file}
    return [
        (f"{name.strip()} {number}", whole[Path(file).name], function)
        for number, name, file, functions in STATION.findall(text)
        for function in functions.replace("`", "").split(", ")
    ]


def test_a_push_a_lease_and_the_settings_have_their_stations() -> None:
    assert len({station for station, _, _ in stations()}) == 14 + 12 + 7


def test_no_station_is_visited_twice() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for journey in re.split(r"^## ", text, flags=re.MULTILINE):
        places = [(Path(file).name, functions) for _, _, file, functions in STATION.findall(journey)]
        assert len(places) == len(set(places))


@pytest.mark.parametrize(("station", "file", "function"), stations())
def test_a_station_is_where_it_is_said_to_be(station: str, file: str, function: str) -> None:
    names = {
        node.name if not isinstance(node, ast.AnnAssign) else ast.unparse(node.target).removeprefix("self.")
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign)
    }
    assert set(function.split(".")) <= names, f"{station}: {file} has no {function}"

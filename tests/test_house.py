"""The ceilings of benchmarks/house.py: the code may only grow with an explanation."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.house import CEILINGS, MIN_MEDIAN_LINES, House, counts

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def counted() -> dict[str, float]:
    return counts(House(ROOT))


@pytest.mark.parametrize(("what", "most"), CEILINGS.items())
def test_a_ceiling_holds(what: str, most: float, counted: dict[str, float]) -> None:
    advice = "merge, shorten or remove; or raise the ceiling in benchmarks/house.py, and say in CHANGELOG why"
    assert counted[what] <= most, advice


def test_a_file_has_a_whole_subject(counted: dict[str, float]) -> None:
    assert counted["lines of the median file"] >= MIN_MEDIAN_LINES

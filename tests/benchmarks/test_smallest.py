"""Every benchmark runs in its smallest form, so that rarely used ones do not break unnoticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import table
from tests.support.small_benchmarks import ALONE, LEFT_OUT, benchmarks, run


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in benchmarks() if name not in {*ALONE, *LEFT_OUT}])
def test_it_runs(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


def test_what_is_named_is_there() -> None:
    assert {*benchmarks()} >= {*ALONE, *LEFT_OUT}


def test_nothing_of_the_smallest_form_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table.results() == table.RESULTS
    monkeypatch.setattr(sys, "argv", ["benchmark", "--smallest"])
    assert table.results() != table.RESULTS and table.results().is_dir()

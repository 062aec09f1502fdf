"""Rows that are recorded beside those of earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import table


def test_rows_take_the_place_of_those_with_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    first = [{"task": "a", "W": 4, "error": 1.0}, {"task": "b", "W": 4, "error": 2.0}]
    assert table.merged("some", first, ("task", "W")) == first
    table.write("some", "Some", first)
    again, more = {"task": "a", "W": 4, "error": 3.0}, {"task": "a", "W": 64, "error": 4.0}
    assert table.merged("some", [more, again], ("task", "W")) == [again, first[1], more]

"""Benchmarks that start daemons run in their smallest form, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_benchmarks import ALONE, run


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(ALONE))
def test_it_runs(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)

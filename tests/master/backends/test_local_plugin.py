"""Settings that are invalid on one machine are rejected before the run is created, with the expected values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gridml.errors import UsageError
from master.backends import local
from master.backends.local_plugin import LocalOptions, LocalPlugin
from master.store.rundir import RunDirectory
from master.store.settings import Settings


@pytest.mark.parametrize(
    ("workers", "options", "expected"),
    [
        (100_000, {}, r"--workers is 100,000; expected at most 4,096"),
        (2, {"lifetime": "normal(1s,0.1s)", "speedup": 300.0}, r"lasts 0.00333 s on average .* expected at least 1 s"),
        (2, {"lifetime": "exponential(0.01)"}, r"exponential\(0.01\) lasts 0.01 s"),
        (2, {"speedup": math.inf}, "--speedup is inf; expected at most 1,000,000"),
        (2, {"speedup": math.nan}, "--speedup is nan; expected a number above 0"),
        (2, {"speedup": 1e9}, r"--speedup is 1e\+09; expected at most"),
        (2, {"threads": 0}, "--threads is 0; expected at least 1"),
        (2, {"threads": 5000}, "--threads is 5,000; expected at most 1,024"),
    ],
)
def test_what_is_absurd_is_refused(workers: int, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        LocalPlugin().check(Settings(Path("p.py"), workers=workers, options=LocalOptions(**options)))


@pytest.mark.parametrize(
    "options", [{}, {"lifetime": "normal(45m,10m)", "speedup": 300.0}, {"lifetime": "exponential(1s)"}]
)
def test_what_makes_sense_is_not(options: dict[str, Any]) -> None:
    LocalPlugin().check(Settings(Path("p.py"), workers=64, options=LocalOptions(**options)))


def test_workers_have_the_threads_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(local, "Local", lambda *_, threads, **__: made.append(threads))
    for options in (LocalOptions(), LocalOptions(threads=3)):
        LocalPlugin().make(Settings(tmp_path / "p.py", workers=1, options=options), RunDirectory(tmp_path))
    assert made == [1, 3]

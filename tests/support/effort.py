"""How much is tried at each change, by `make test`, and how much more by `make verify`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings


def examples(whole: int) -> int:
    """Return how many of the examples that `make verify` tries a property with are tried now, by the profile in force:
    `tests/conftest.py` has how many of a hundred."""
    return max(1, whole * settings().max_examples // 100)


def first(few: int, of: Iterable[object]) -> list[ParameterSet]:
    """Parameters of which `make test` tries a few, and `make verify` all."""
    return [pytest.param(one, marks=[] if k < few else [pytest.mark.long]) for k, one in enumerate(of)]

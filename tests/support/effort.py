"""The number of examples of properties in `make test`, at each change, and in `make verify`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings


def examples(whole: int) -> int:
    """Return the number of examples for a property that `make verify` tries with `whole` examples, by the current
    profile (`tests/conftest.py` has its number for a hundred)."""
    return max(1, whole * settings().max_examples // 100)


def first(few: int, of: Iterable[object]) -> list[ParameterSet]:
    """Return parameters: a few of them for `make test`, all for `make verify`."""
    return [pytest.param(one, marks=[] if k < few else [pytest.mark.long]) for k, one in enumerate(of)]

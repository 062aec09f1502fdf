"""The choice of the method, with its reason."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.auto import Auto, AutoOptions, chosen
from gridml.placement.base import COLUMN_WEIGHTS, SHARES, Options
from gridml.placement.parsa import Parsa
from tests.support.graphs import grouped


@pytest.mark.parametrize(
    ("edges", "parts", "seconds", "name", "why"),
    [
        (1_000_000, 16, 60.0, "multilevel", r"the best method expected to take 60 s or less \(1.8 s\)"),
        (1_000_000, 160, 60.0, "multilevel", "18 s"),
        (5_000_000, 16, 60.0, "multilevel", r"\(9 s\)"),
        (40_000_000, 16, 60.0, "refined", r"\(16 s\)"),  # 12 if it fitted the caches
        (40_000_000, 16, 8.0, "parsa", "6 s"),
        (1_000_000_000, 16, 60.0, "parsa", "the fastest method, expected to take 1.5e.02 s where 60 s are allowed"),
        (10, 2, 0.0, "parsa", "the fastest"),
    ],
)
def test_the_best_method_that_there_is_time_for(edges: int, parts: int, seconds: float, name: str, why: str) -> None:
    method, reason = chosen(edges, parts, seconds)
    assert method.name == name and re.search(why, reason)


def test_it_places_as_the_chosen_one_does() -> None:
    graph = grouped(400, 200, 6)
    hurried = Auto().place(graph, 4, AutoOptions(seed=3, seconds=0.0))
    assert np.array_equal(hurried.rows, Parsa().place(graph, 4, Options(seed=3)).rows)
    assert "the fastest method" in hurried.why


def test_only_what_honours_all_that_is_asked_is_chosen() -> None:
    wanted = frozenset({COLUMN_WEIGHTS, SHARES})
    method, reason = chosen(1_000_000_000, 16, 60.0, wanted)
    assert method.name == "refined" and "fastest method that supports column weights, shares" in reason
    assert chosen(1_000_000_000, 16, 60.0, frozenset({SHARES}))[0].name == "parsa"


def test_the_traffic_of_all_takes_longer() -> None:
    assert chosen(10_000_000, 16, 60.0)[0].name == "multilevel"
    assert chosen(10_000_000, 16, 60.0, frozenset({"objective total"}))[0].name == "refined"


def test_a_time_that_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="placing may take -1 s"):
        AutoOptions(seconds=-1)

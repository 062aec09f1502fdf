"""Optimiser moments: those that are accepted from a worker, and those that new workers get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.protocol.compression import bfloat16, from_bfloat16
from master.sync.moments import (
    EXTRA_ASKED,
    MAX_VOTES,
    VOTE_EVERY,
    WeightState,
    combine,
    should_ask,
    validate,
    votes_needed,
    without_minus_zero,
)

NAME = "Network/0/net/weight"
ADAM = {NAME: WeightState((2, 2), frozenset({"step", "exp_avg", "exp_avg_sq"}))}
NADAM = {NAME: WeightState((2, 2), ADAM[NAME].entries | {"mu_product"})}
SQUARES = st.lists(st.floats(0, 2**100, width=32), min_size=4, max_size=4)


def scalar(value: float) -> np.ndarray[Any, Any]:
    return np.array(value, np.float32)


def squares(*values: float) -> np.ndarray[Any, Any]:
    return bfloat16(np.array(values, np.float32).reshape(2, 2))


def adam(*values: float, step: float = 10) -> dict[str, np.ndarray[Any, Any]]:
    of_it = {"step": scalar(step), "exp_avg": scalar(0), "exp_avg_sq": squares(*values)}
    return {f"{entry}/{NAME}": each for entry, each in of_it.items()}


def test_what_an_optimiser_has_is_taken() -> None:
    assert validate(adam(0, 1, 2, 3e38), ADAM, asked=True, steps=10)[0]
    assert validate({}, ADAM, asked=True, steps=10)[0], "no gradient has reached the weight, perhaps"
    nadam = adam(1, 1, 1, 1) | {f"mu_product/{NAME}": scalar(0.5)}
    assert validate(nadam, NADAM, asked=True, steps=10)[0]
    too_large = nadam | {f"mu_product/{NAME}": scalar(1.5)}
    assert validate(too_large, NADAM, asked=True, steps=10) == (
        False,
        f"mu_product of {NAME} is 1.5; expected a number from 0 to 1",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({f"step/{NAME}": None}, "expected exp_avg, exp_avg_sq, step"),
        ({f"step/{NAME}": None, f"exp_avg/{NAME}": None}, "the push has exp_avg_sq of"),
        ({f"exp_avg_sq/{NAME}": scalar(1)}, "has shape (); expected (2, 2)"),
        ({f"exp_avg_sq/{NAME}": squares(1, 1, 1, 1).reshape(4)}, "expected (2, 2)"),
        ({f"exp_avg_sq/{NAME}": squares(1, 1, 1, -1)}, "negative or not finite"),
        (
            {f"exp_avg_sq/{NAME}": squares(1, 1, 1, np.nan)},
            "negative or not finite",
        ),
        (
            {f"exp_avg_sq/{NAME}": squares(1, 1, 1, np.inf)},
            "negative or not finite",
        ),
        ({f"exp_avg/{NAME}": scalar(1)}, "expected 0: first moments are not shared"),
        ({f"exp_avg/{NAME}": squares(0, 0, 0, 0)}, "expected ()"),
        ({f"step/{NAME}": scalar(np.inf)}, "whole number"),
        ({f"step/{NAME}": scalar(np.nan)}, "whole number"),
        ({f"step/{NAME}": scalar(-1)}, "whole number"),
        ({f"step/{NAME}": scalar(0.5)}, "whole number"),
        ({f"step/{NAME}": scalar(641)}, "from 0 to 640"),
        ({f"step/{NAME}": np.ones(4, np.uint16)}, "has shape (4,)"),
        (
            {f"max_exp_avg_sq/{NAME}": squares(1, 1, 1, 1)},
            "expected exp_avg, exp_avg_sq, step",
        ),
        ({f"exp_avg_sq/{NAME}s": squares(1, 1, 1, 1)}, "no optimiser of the program shares them"),
        ({"exp_avg_sq/Network/1/net/weight": squares(1, 1, 1, 1)}, "no optimiser of the program shares them"),
        ({f"/{NAME}": scalar(1)}, "expected exp_avg, exp_avg_sq, step"),
    ],
)
def test_what_no_optimiser_of_the_program_has_is_left_out(change: dict[str, Any], says: str) -> None:
    brought = {name: values for name, values in (adam(1, 1, 1, 1) | change).items() if values is not None}
    is_taken, reason = validate(brought, ADAM, asked=True, steps=640)
    assert not is_taken
    assert says in reason


def test_unrequested_moments_are_ignored() -> None:
    is_taken, reason = validate(adam(1, 1, 1, 1), ADAM, asked=False, steps=640)
    assert not is_taken
    assert "did not ask for" in reason


@given(st.lists(SQUARES, min_size=2, max_size=2), SQUARES, st.integers(1, 100), st.permutations([0, 1, 2]))
def test_one_of_three_moves_nothing_beyond_what_the_others_span(
    honest: list[list[float]], lie: list[float], step: int, order: list[int]
) -> None:
    votes = [adam(*honest[0], step=40), adam(*honest[1], step=50), adam(*lie, step=step)]
    given = combine([votes[place] for place in order], 3)
    low, high = (f([from_bfloat16(vote[f"exp_avg_sq/{NAME}"]) for vote in votes[:2]], axis=0) for f in (np.min, np.max))
    squares = from_bfloat16(given[f"exp_avg_sq/{NAME}"])
    assert (low <= squares).all()
    assert (squares <= high).all()
    assert 40 <= given[f"step/{NAME}"] <= 50


def test_of_two_the_squares_are_the_smaller_and_the_steps_the_larger() -> None:
    given = combine([adam(1, 2, 3, 4, step=7), adam(4, 3, 2, 1, step=9)], 2)
    assert from_bfloat16(given[f"exp_avg_sq/{NAME}"]).ravel().tolist() == [1, 2, 2, 1]
    assert given[f"step/{NAME}"] == 9


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_whatever_is_given_is_an_array(count: int) -> None:
    given = combine([adam(1, 2, 3, 4, step=7 + vote) for vote in range(count)], count)
    assert {name: (type(values), values.shape) for name, values in given.items()} == {
        f"step/{NAME}": (np.ndarray, ()),
        f"exp_avg/{NAME}": (np.ndarray, ()),
        f"exp_avg_sq/{NAME}": (np.ndarray, (2, 2)),
    }


def test_a_weight_that_fewer_have_brought_is_not_given() -> None:
    assert combine([adam(1, 1, 1, 1), adam(1, 1, 1, 1), {}], 3) == {}
    assert [votes_needed(workers) for workers in (0, 1, 2, 3, 8)] == [1, 1, 2, 3, 3]


def test_workers_are_asked_until_three_have_voted_and_then_periodically() -> None:
    assert should_ask(votes=2, has_voted=False, is_newest=False, pushes=1)
    assert not should_ask(votes=2, has_voted=True, is_newest=False, pushes=1)
    assert not should_ask(votes=3, has_voted=False, is_newest=False, pushes=VOTE_EVERY - 1)
    assert should_ask(votes=3, has_voted=True, is_newest=False, pushes=VOTE_EVERY)
    assert not should_ask(votes=3, has_voted=True, is_newest=True, pushes=VOTE_EVERY), "rather another one"
    assert should_ask(votes=3, has_voted=True, is_newest=True, pushes=2 * VOTE_EVERY)
    assert should_ask(votes=1, has_voted=True, is_newest=True, pushes=VOTE_EVERY), "there is no other"


@pytest.mark.parametrize("votes", [0, 1, 2])
def test_no_more_are_asked_at_once_than_votes_are_missing_and_a_few(votes: int) -> None:
    asked = [
        should_ask(votes=votes, has_voted=False, is_newest=False, pushes=100 * VOTE_EVERY, pending=pending)
        for pending in range(9)
    ]
    assert asked.count(True) == MAX_VOTES - votes + EXTRA_ASKED
    assert should_ask(votes=votes, has_voted=True, is_newest=False, pushes=VOTE_EVERY, pending=9), (
        "who has voted goes on to"
    )


def test_a_zero_has_no_sign() -> None:
    assert without_minus_zero(np.array([0x8000, 0, 0x3F80], np.uint16)).tolist() == [0, 0, 0x3F80]
    assert validate(adam(-0.0, 1, 1, 1), ADAM, asked=True, steps=640)[0]

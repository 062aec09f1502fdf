"""Lives from a provider's monthly rate of interruption."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Exponential
from chunk_model.lifetime import LifetimeError
from chunk_model.parse import parse
from chunk_model.prices import MAX_SHARE, MIN_SHARE, MONTH_S, interrupted_monthly, parse_share


@given(st.floats(MIN_SHARE, MAX_SHARE))
def test_after_a_month_the_share_is_gone(share: float) -> None:
    assert 1 - interrupted_monthly(share).survival(MONTH_S) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("<5%", 0.05), ("5-10%", 0.075), (" 5% - 10 % ", 0.075), ("0.5%", 0.005)]
)
def test_a_law_by_its_share(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)
    law = parse(f"Interruptions({text})")
    assert isinstance(law, Exponential)
    assert law.mean_s == pytest.approx(interrupted_monthly(share).mean_s)
    assert parse(str(law)) == law


def test_in_a_mixture() -> None:
    law = parse("mixture(0.5*interruptions(10%),0.5*exponential(1h))")
    assert law.mean() == pytest.approx((interrupted_monthly(0.1).mean_s + 3600) / 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("interruptions(0.05)", "a percentage such as 5%"),
        ("interruptions()", "a percentage such as 5%"),
        ("interruptions(>20%)", "a percentage such as 5%"),
        ("interruptions(10-5%)", "the smaller percentage first"),
        ("interruptions(0%)", "expected 0.001 to 0.99"),
        ("interruptions(100%)", "expected 0.001 to 0.99"),
    ],
)
def test_what_is_no_share_is_refused(text: str, says: str) -> None:
    with pytest.raises(LifetimeError, match=says):
        parse(text)

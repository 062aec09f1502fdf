"""Lifetimes as text: read, written, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import Lifetime, LifetimeError
from chunk_model.observations import Observations
from chunk_model.parse import parse

seconds = st.floats(0.01, 1e7)
families: st.SearchStrategy[Lifetime] = st.one_of(
    st.builds(Normal, seconds, seconds),
    st.builds(Exponential, seconds),
    st.builds(Weibull, st.floats(0.2, 10), seconds),
    st.builds(LogNormal, seconds, st.floats(0.05, 3)),
)
lifetimes = st.recursive(
    families,
    lambda parts: st.builds(
        Mixture, st.floats(0.01, 0.99).map(lambda weight: (weight, 1 - weight)), st.tuples(parts, parts)
    ),
    max_leaves=4,
)


@given(lifetimes)
def test_text_comes_back_as_the_same_distribution(life: Lifetime) -> None:
    assert parse(str(life)) == life


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("normal(45m,10m)", Normal(2700, 600)),
        (" Normal( 45m , 600 ) ", Normal(2700, 600)),
        ("exponential(45m)", Exponential(2700)),
        ("exponential(1.5h)", Exponential(5400)),
        ("weibull(1.5,40m)", Weibull(1.5, 2400)),
        ("lognormal(45m,0.8)", LogNormal(2700, 0.8)),
        (
            "mixture(0.3*exponential(5m),0.7*weibull(1.5,2h))",
            Mixture((0.3, 0.7), (Exponential(300), Weibull(1.5, 7200))),
        ),
        ("Mixture( 1 * exponential(5m) )", Mixture((1.0,), (Exponential(300),))),
    ],
)
def test_parse(text: str, expected: Lifetime) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read the lifetime"),
        ("45m", "cannot read the lifetime"),
        ("gamma(1,2)", "cannot read the lifetime"),
        ("normal(45m", "cannot read the lifetime"),
        ("normal(45m)", "has 1 parameters, expected 2 (mean_s, sd_s)"),
        ("exponential()", "has 0 parameters, expected 1"),
        ("exponential(45x)", 'the duration "45x"'),
        ("exponential(-45m)", 'the duration "-45m"'),
        ("exponential(0)", "above 0, got 0.0"),
        ("normal(45m,0)", "Normal.sd_s must be finite"),
        ("weibull(x,40m)", '"x" is not a number'),
        ("weibull(nan,40m)", "above 0, got nan"),
        ("weibull(0.001,40m)", "no usable mean"),
        ("lognormal(45m,100)", "no usable mean"),
        ("mixture()", 'the part "" of a mixture has no weight'),
        ("mixture(exponential(5m))", 'the part "exponential(5m)" of a mixture has no weight'),
        ("mixture(x*exponential(5m))", '"x" is not a number'),
        ("mixture(0.5*exponential(5m),0.4*exponential(9m))", "sum to 1, got (0.5, 0.4)"),
        ("mixture(-1*exponential(5m),2*exponential(9m))", "must be above 0"),
        ("mixture(nan*exponential(5m))", "must be above 0"),
        ("mixture(1*gamma(5m))", 'cannot read the lifetime "gamma(5m)"'),
    ],
)
def test_a_bad_text_says_what_was_got_and_gives_an_example(text: str, says: str) -> None:
    with pytest.raises(LifetimeError) as caught:
        parse(text)
    message = str(caught.value)
    assert says in message and f'"{text}"' in message and "normal(45m,10m)" in message


def test_a_kaplan_meier_curve_is_described_but_not_read_back() -> None:
    text = str(KaplanMeier.of(Observations([60, 120, 180], [True, True, False])))
    assert text == "kaplan_meier(2 deaths, 1 censored, median 120s)"
    with pytest.raises(LifetimeError, match="give the observed lives themselves"):
        parse(text)

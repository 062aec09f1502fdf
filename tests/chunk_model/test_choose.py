"""The choice of a chunk: against dense sweeps, within bounds, with few observations, and its explanation."""

from __future__ import annotations

import doctest
import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import chunk_model
from chunk_model.choose import Choice, ChoiceError, Work, choose
from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.fit import FAMILIES, fit
from chunk_model.goodput import Costs, chunk_goodput
from chunk_model.lifetime import Lifetime
from chunk_model.observations import Observations
from tests.support.effort import examples

COSTS = Costs(exec_s=0.1, copy_s=0.01, start_s=180, end_s=10, wait_s=60, boot_s=90)
PUSHED = replace(COSTS, push_s=0.5)
LIFE = Exponential(2700.0)

scales = st.floats(0.1, 10)
simple: st.SearchStrategy[Lifetime] = st.one_of(
    st.builds(lambda mean, spread: Normal(mean, mean * spread), scales, st.floats(0.001, 2)),
    st.builds(Exponential, scales),
    st.builds(Weibull, st.floats(0.4, 10), scales),
    st.builds(LogNormal, scales, st.floats(0.03, 2)),
)
lifetimes = st.one_of(
    simple, st.builds(lambda w, a, b: Mixture((w, 1 - w), (a, b)), st.floats(0.05, 0.95), simple, simple)
)


def power(low: float, high: float) -> st.SearchStrategy[float]:
    """Draw 0, or 10 to a power from low to high."""
    return st.one_of(st.just(0.0), st.floats(low, high).map(lambda exponent: 10.0**exponent))


costs_of_any_kind = st.builds(
    Costs,
    st.floats(-6, -1).map(lambda exponent: 10.0**exponent),
    power(-7, -2),
    power(-3, -0.3),
    power(-4, -1),
    st.one_of(st.none(), power(-5, -1)),
    power(-3, 0.5),
    power(-3, -0.5),
)


def goodput(life: Lifetime, costs: Costs, choice: Choice, work: Work) -> float:
    law = partial(chunk_goodput, many=work.many)
    return law(life, costs, choice.chunk, push_every=choice.push_every)


def sweep(life: Lifetime, costs: Costs, work: Work) -> float:
    """Return the best goodput of all sizes, or of all pairs of a size and a push interval, on a dense grid."""
    law = partial(chunk_goodput, many=work.many)
    highest = max(1.0, life.quantile(1 - 1e-9) / costs.vertex_s)
    if costs.push_s is None:
        n = np.unique(np.rint(np.geomspace(1, highest, 4000 if work.many else 40_000)))
        return float(law(life, costs, n, terms=256).max())
    n = np.unique(np.rint(np.geomspace(1, highest, 100)))
    n, m = (each.ravel() for each in np.meshgrid(n, n))
    n, m = n[m <= n], m[m <= n]
    at = np.argsort(-law(life, costs, n, push_every=m, terms=64))[:50]  # 64 terms can be too kind
    return float(law(life, costs, n[at], push_every=m[at]).max())


@settings(max_examples=examples(150), deadline=None)
@given(lifetimes, costs_of_any_kind, st.booleans())
@example(Weibull(9.0, 9.0), Costs(exec_s=0.1, copy_s=0.0, start_s=0.0, push_s=0.1), True)  # a hill for each number
def test_within_a_hundredth_of_a_dense_sweep(life: Lifetime, costs: Costs, many: bool) -> None:
    work = Work(many=many)
    try:
        choice = choose(life, costs, work)
    except ChoiceError:
        assert sweep(life, costs, work) < 1e-3
        return
    assert choice.goodput == pytest.approx(goodput(life, costs, choice, work), rel=1e-9)
    assert choice.goodput >= 0.99 * sweep(life, costs, work)


@settings(deadline=None)
@given(lifetimes, costs_of_any_kind, st.booleans(), st.integers(-20, 20))
def test_all_times_longer_is_the_same_question(life: Lifetime, costs: Costs, many: bool, power_of_two: int) -> None:
    factor = 2.0**power_of_two
    scaled = Costs(*(None if value is None else value * factor for value in vars(costs).values()))  # type: ignore[arg-type]
    try:
        choice = choose(life, costs, Work(many=many))
    except ChoiceError:
        with pytest.raises(ChoiceError):
            choose(life.scaled(factor), scaled, Work(many=many))
        return
    longer = choose(life.scaled(factor), scaled, Work(many=many))
    assert longer.goodput == pytest.approx(choice.goodput, rel=1e-3)
    # Where the curve is flat rounding may decide, and pushes leave a size and an interval that are worth the same.
    if costs.push_s is None:
        assert longer.chunk == pytest.approx(choice.chunk, rel=0.02, abs=1)


@settings(deadline=None)
@given(
    lifetimes,
    costs_of_any_kind,
    st.integers(1, 10**7),
    st.one_of(st.none(), st.integers(1, 5000)),
    st.integers(1, 300),
    st.one_of(st.none(), st.integers(300, 10**6)),
    st.booleans(),
    st.integers(1, 1000),
)
def test_bounds_hold(
    life: Lifetime,
    costs: Costs,
    vertices: int,
    workers: int | None,
    batch: int,
    largest: int | None,
    many: bool,
    push_at_least: int,
) -> None:
    work = Work(vertices, workers, batch, largest, many, push_at_least)
    try:
        choice = choose(life, costs, work)
    except ChoiceError as error:
        assert "no chunk would ever finish" in str(error)
        return
    most = min(vertices, largest or vertices)
    assert 1 <= choice.chunk <= most
    unit = min(batch, vertices)
    assert choice.chunk % unit == 0
    assert choice.goodput == pytest.approx(goodput(life, costs, choice, work), rel=1e-9)
    assert [point.chunk for point in choice.curve] == sorted({point.chunk for point in choice.curve})
    assert all(0 <= point.goodput <= 1 and point.chunk % unit == 0 for point in choice.curve)
    assert choice.goodput in {point.goodput for point in choice.curve if point.chunk == choice.chunk}
    if choice.push_every is not None:
        assert choice.push_every % unit == 0 and 1 <= choice.push_every <= choice.chunk
        assert choice.push_every >= min(push_at_least, most // unit * unit)
        assert choice.push_interval_s == pytest.approx(choice.push_every * costs.exec_s)
    assert (choice.push_every is None) == (costs.push_s is None)


@settings(deadline=None)
@given(lifetimes, costs_of_any_kind, st.booleans(), st.floats(1.1, 10))
def test_a_shorter_start_is_not_worse(life: Lifetime, costs: Costs, many: bool, factor: float) -> None:
    try:
        slow = choose(life, costs, Work(many=many)).goodput
    except ChoiceError:
        slow = 0.0
    try:
        fast = choose(life, replace(costs, start_s=costs.start_s / factor), Work(many=many)).goodput
    except ChoiceError:
        fast = 0.0
    assert fast >= slow * 0.985  # each is within a hundredth of its best


def test_young_is_the_check_of_the_push_interval() -> None:
    for push_s in (0.01, 0.1, 1.0):
        choice = choose(LIFE, Costs(exec_s=1e-3, push_s=push_s, start_s=30), Work(many=True))
        assert choice.push_interval_s == pytest.approx(math.sqrt(2 * push_s * 2700), rel=0.1)


def test_pushes_are_worth_having_where_they_are_cheap() -> None:
    assert choose(LIFE, PUSHED).goodput > choose(LIFE, COSTS).goodput + 0.15


def test_the_same_question_has_the_same_answer_and_soon() -> None:
    observations = lives(300)
    began = time.process_time()
    first = choose(LIFE, PUSHED, observations=observations)
    assert time.process_time() - began < 2
    assert first == choose(LIFE, PUSHED, observations=observations)
    began = time.process_time()
    for _ in range(10):
        choose(LogNormal(2000.0, 1.0), PUSHED, Work(many=True))
    assert (time.process_time() - began) / 10 < 0.2


def test_a_chunk_is_an_eighth_of_a_share_unless_starting_is_dear() -> None:
    cheap = replace(PUSHED, start_s=0.1, end_s=0.0, wait_s=0.0, boot_s=0.0)
    work = Work(vertices=80_000, workers=100)  # 800 each, 88 s
    assert choose(LIFE, cheap, work).chunk <= 100
    dear = choose(LIFE, PUSHED, work)
    assert 400 < dear.chunk <= 800
    assert "a worker's share of the epoch (800 vertices) keeps the last wave short" in dear.reason


def test_memory_is_named_where_it_decides() -> None:
    choice = choose(LIFE, COSTS, Work(largest=1000))
    assert choice.chunk == 1000 and "It is not larger because a worker can hold 1,000 vertices" in choice.reason
    assert "It is not larger" not in choose(LIFE, COSTS, Work(largest=10**6)).reason


def test_a_limit_by_the_network_is_explained() -> None:
    choice = choose(LIFE, PUSHED, Work(largest=1000, push_at_least=5000))
    assert choice.push_every == choice.chunk == 1000
    assert any("the network takes a push every 5,000 vertices" in warning for warning in choice.warnings)


def test_the_reason_says_what_half_and_double_would_give() -> None:
    choice = choose(LIFE, COSTS)
    for size, word in ((choice.chunk // 2, "Half the size"), (2 * choice.chunk, "double")):
        assert f"{word} {100 * chunk_goodput(LIFE, COSTS, size):.3g}%" in choice.reason
    assert choice.reason.startswith(f"{choice.chunk:,} vertices a chunk (")


def test_a_chunk_that_could_never_finish() -> None:
    for costs, work, start in (
        (replace(COSTS, start_s=3600), Work(), "start 60 min"),
        (replace(PUSHED, start_s=3600), Work(), "start 60 min"),
        (replace(COSTS, boot_s=3600), Work(many=True), "boot 60 min, start 3 min"),
        (COSTS, Work(batch=10**6), "110 ms a vertex"),
    ):
        with pytest.raises(ChoiceError, match="no chunk would ever finish") as error:
            choose(Normal(300.0, 60.0), costs, work)
        assert start in str(error.value) and "workers live 5 min on average (normal(300.0s,60.0s))" in str(error.value)
        assert "Shorten the start" in str(error.value)


def test_seldom_is_not_never_and_is_warned_of() -> None:
    choice = choose(Exponential(300.0), replace(PUSHED, start_s=1200))
    assert 0 < choice.goodput < 0.05 and any("live long enough to complete any work" in w for w in choice.warnings)


def test_heavy_tails_are_warned_of() -> None:
    assert any("longest hundredth" in warning for warning in choose(LogNormal(100.0, 3.0), COSTS).warnings)
    assert choose(LIFE, COSTS).warnings == ()


def lives(count: int, seed: int = 3) -> Observations:
    """Lives of Exponential(45 min), some of them censored."""
    rng = np.random.default_rng(seed)
    life, seen = LIFE.sample(rng, count), rng.uniform(600, 20_000, count)
    return Observations(np.minimum(life, seen), life <= seen)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("costs", [COSTS, PUSHED], ids=["whole", "pushed"])
def test_how_sure_it_is_with_every_family(family: str, costs: Costs) -> None:
    observations = lives(120)
    choice = choose(fit(family, observations).lifetime, costs, observations=observations)
    assert choice.regret is not None
    median, high = choice.regret
    assert 0 <= median <= high < 0.25 and high > 0
    assert f"it is 95% sure to be within {100 * high:.2g}% of the best choice" in choice.reason
    assert choice.warnings == ()


def test_more_lives_make_surer() -> None:
    high = []
    for count in (20, 200, 2000):
        observations = lives(count)
        choice = choose(fit("exponential", observations).lifetime, COSTS, observations=observations)
        assert choice.regret is not None
        high.append(choice.regret[1])
    assert high[0] > 2 * high[1] > 4 * high[2]


def test_the_reported_regret_is_the_true_regret() -> None:
    """Over many fits to 12 lives, the loss under the true law rarely exceeds the reported one."""
    exceeded = 0
    for seed in range(60):
        observations = lives(12, seed)
        choice = choose(fit("exponential", observations).lifetime, COSTS, observations=observations)
        assert choice.regret is not None
        best = choose(LIFE, COSTS).goodput
        exceeded += 1 - chunk_goodput(LIFE, COSTS, choice.chunk) / best > choice.regret[1]
    assert exceeded <= 9


def test_deaths_at_one_instant_count_once() -> None:
    rng = np.random.default_rng(4)
    duration = np.repeat(LIFE.sample(rng, 12), 25)
    ended = np.ones(300, np.bool_)
    separate = Observations(duration, ended)
    together = Observations(duration, ended, np.repeat(np.arange(12.0), 25))
    life = fit("exponential", separate).lifetime
    sure, unsure = (choose(life, COSTS, observations=each).regret for each in (separate, together))
    assert sure is not None and unsure is not None and unsure[1] > 3 * sure[1]
    assert "300 deaths at 12 instants" in choose(life, COSTS, observations=together).reason


def test_without_deaths() -> None:
    observations = Observations(np.array([600.0, 900.0]), np.zeros(2, np.bool_))
    choice = choose(fit("exponential", observations).lifetime, COSTS, observations=observations)
    assert any("no worker has died in 25 min of observation" in warning for warning in choice.warnings)
    assert choice.regret is not None and choice.regret[1] > 0.1


def test_few_deaths_and_long_chunks_are_warned_of() -> None:
    observations = Observations(np.array([100.0, 200.0, 300.0]), np.ones(3, np.bool_))
    warnings = choose(Exponential(200.0), replace(COSTS, start_s=300), observations=observations).warnings
    assert any("only 3 independent deaths were observed" in warning for warning in warnings)
    assert any("the longest life observed is 5 min" in warning for warning in warnings)


def test_all_workers_dead_at_once() -> None:
    observations = Observations(np.full(40, 2700.0), np.ones(40, np.bool_), np.full(40, 9000.0))
    choice = choose(fit("normal", observations).lifetime, COSTS, observations=observations)
    assert 15_000 < choice.chunk < 23_000  # what fits into 45 minutes, with a margin
    assert any("only 1 independent death" in warning for warning in choice.warnings)


def test_at_an_age() -> None:
    """Machines that wear out: an old one gets smaller chunks."""
    life = Weibull(3.0, 3000.0)
    assert choose(life.after(2500), COSTS).chunk < 0.7 * choose(life, COSTS).chunk


@pytest.mark.parametrize("name", ["vertices", "workers", "batch", "largest", "push_at_least"])
@pytest.mark.parametrize("value", [0, -1, 1.5, 64.0, math.nan, math.inf])
def test_bad_work_is_refused(name: str, value: float) -> None:
    with pytest.raises(ChoiceError, match=f"Work.{name} must be a whole number from 1, got {value}"):
        Work(**{name: value})  # type: ignore[arg-type]


def test_a_batch_that_does_not_fit_into_memory() -> None:
    with pytest.raises(ChoiceError, match="a worker can hold 50 vertices, but a batch has 64"):
        Work(batch=64, largest=50)


def test_the_example_of_the_package() -> None:
    assert doctest.testmod(chunk_model).failed == 0 < doctest.testmod(chunk_model).attempted

"""Goodput: the formulas against replayed lives, explicit sums, and limits."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.goodput import ChunkError, Costs, chunk_goodput, job_s, one_chunk_safe_ends
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import Lifetime
from chunk_model.observations import Observations
from chunk_model.replay import replay

_DRAWN = Weibull(0.8, 2400.0).sample(np.random.default_rng(5), 80)
LIVES: list[Lifetime] = [
    Normal(2700.0, 600.0),
    Exponential(2700.0),
    Weibull(0.6, 2400.0),
    LogNormal(2000.0, 1.0),
    Mixture((0.3, 0.7), (Exponential(300.0), Weibull(1.5, 7200.0))),
    KaplanMeier.of(Observations(np.minimum(_DRAWN, 4000.0), _DRAWN < 4000.0)),
    Weibull(1.5, 3000.0).after(1000.0),
]
COSTS = Costs(exec_s=0.1, copy_s=0.01, start_s=180, end_s=10, wait_s=60, boot_s=90)
PUSHED = Costs(exec_s=0.1, copy_s=0.01, start_s=180, end_s=10, wait_s=60, boot_s=90, push_s=0.5)

seconds = st.floats(1.0, 1e5)
lifetimes: st.SearchStrategy[Lifetime] = st.one_of(
    st.builds(Normal, seconds, seconds),
    st.builds(Exponential, seconds),
    st.builds(Weibull, st.floats(0.3, 10), seconds),
    st.builds(LogNormal, seconds, st.floats(0.03, 2.5)),
)
times = st.one_of(st.just(0.0), st.floats(1e-3, 1e5))
pushes = st.one_of(st.none(), times)
costs_of_any_kind = st.builds(Costs, st.floats(1e-6, 1e4), times, times, times, pushes, times, times)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("life", LIVES, ids=lambda life: type(life).__name__)
def test_formulas_agree_with_replayed_lives(life: Lifetime, many: bool) -> None:
    lives = life.sample(np.random.default_rng(11), 200_000)
    law = partial(chunk_goodput, many=many)
    for costs, n, push_every in [
        (COSTS, 300, None),
        (COSTS, 12_000, None),
        (PUSHED, 8_000, None),
        (PUSHED, 100_000, 7),
        (PUSHED, 5_000, 450),
        (replace(PUSHED, copy_s=0.0), 10**8, 1_000),
    ]:
        replayed = replay(lives, costs, n, push_every, many)
        error = (replayed.high - replayed.low) / (2 * 1.96)
        assert abs(law(life, costs, n, push_every=push_every) - replayed.goodput) < 3 * error, (n, push_every)


@pytest.mark.parametrize("terms", [16, 256, 4096])
@settings(deadline=None)
@given(
    life=lifetimes,
    mean_pushes=st.floats(0.5, 2000),
    n=st.integers(1, 400),
    m=st.integers(1, 400),
    start=st.floats(0, 0.3),
    many=st.booleans(),
)
def test_the_sums_are_as_exact_as_they_say(
    life: Lifetime, mean_pushes: float, n: int, m: int, start: float, many: bool, terms: int
) -> None:
    """The midpoint rule after the first terms agrees with the sum over every push of a life."""
    mean = life.mean()
    unit = mean / mean_pushes / m
    costs = Costs(exec_s=unit, start_s=start * mean, end_s=unit, push_s=unit, boot_s=start * mean)
    m = min(m, n)
    offsets: list[float] = []
    sizes: list[int] = []
    for first in range(0, n, m):
        size = min(m, n - first)
        offsets.append(costs.start_s + (first + size) * unit + (len(offsets) + 1) * unit)
        sizes.append(size)
    cycle = offsets[-1] + unit
    lasting = life.quantile(1 - 1e-9) if many else cycle
    assume(lasting / cycle * len(sizes) < 2e5)
    begins = costs.boot_s + cycle * np.arange(math.ceil(lasting / cycle)) if many else np.zeros(1)
    credited = float(np.sum(life.survival(begins[:, None] + np.array(offsets)) * np.array(sizes)))
    paid = mean if many else life.restricted_mean(cycle)
    law = partial(chunk_goodput, many=many)
    # 1/(2k) at worst, of a sum whose pushes and chunks may both be cut short.
    kept = math.isqrt(terms) if many else terms
    assert law(life, costs, n, push_every=m, terms=terms) == pytest.approx(
        credited * unit / paid, rel=1.5 / kept, abs=1e-8
    )


@given(lifetimes, costs_of_any_kind, st.lists(st.floats(1, 1e9), min_size=1, max_size=4), st.integers(1, 10**9))
def test_goodput_is_a_share(life: Lifetime, costs: Costs, sizes: list[float], push_every: int) -> None:
    n = np.array(sizes)
    every = None if costs.push_s is None else push_every
    for goodput in (
        chunk_goodput(life, costs, n, push_every=every),
        chunk_goodput(life, costs, n, push_every=every, many=True),
        one_chunk_safe_ends(life, costs, n),
    ):
        assert goodput.shape == n.shape and goodput.dtype == np.float64
        assert bool(np.all((goodput >= 0) & (goodput <= 1)))


@given(lifetimes, costs_of_any_kind, st.integers(1, 10**6), st.floats(1.1, 5), st.booleans())
def test_what_costs_more_is_not_better(life: Lifetime, costs: Costs, n: int, factor: float, many: bool) -> None:
    law = partial(chunk_goodput, many=many)
    goodput = law(life, costs, n)
    for name in ("copy_s", "start_s", "end_s", "wait_s", "boot_s", *(() if costs.push_s is None else ("push_s",))):
        dearer = Costs(**(vars(costs) | {name: getattr(costs, name) * factor + 1}))
        assert law(life, dearer, n) <= goodput * (1 + 1e-6) + 1e-12, name


@given(st.floats(1e-2, 1e2), costs_of_any_kind, st.integers(1, 10**6), st.integers(1, 1000), st.booleans())
def test_goodput_has_no_unit_of_time(factor: float, costs: Costs, n: int, m: int, many: bool) -> None:
    life = LogNormal(2000.0, 0.7)
    scaled = Costs(*(None if value is None else value * factor for value in vars(costs).values()))  # type: ignore[arg-type]
    law = partial(chunk_goodput, many=many)
    every = None if costs.push_s is None else m
    assert law(life.scaled(factor), scaled, n, push_every=every) == pytest.approx(
        law(life, costs, n, push_every=every), rel=1e-6, abs=1e-12
    )


def test_limits() -> None:
    immortal = Exponential(1e15)
    assert chunk_goodput(immortal, COSTS, 1000) == pytest.approx(1000 * 0.1 / (180 + 1000 * 0.11 + 10 + 60), rel=1e-9)
    assert chunk_goodput(immortal, COSTS, 1000, many=True) == pytest.approx(
        1000 * 0.1 / (180 + 1000 * 0.11 + 10), rel=1e-6
    )
    for law in (chunk_goodput, partial(chunk_goodput, many=True), one_chunk_safe_ends):
        assert law(Exponential(2700), COSTS, 1e-9) < 1e-9  # the start is all there is
        assert law(Exponential(2700), Costs(exec_s=0.1), 1e-9) == pytest.approx(1, rel=1e-6)  # nothing but work
        assert law(Normal(2700, 600), COSTS, 10**9) == 0  # a chunk that no worker finishes


def test_a_hundred_million_pushes_cost_no_more_than_a_thousand() -> None:
    """A life of Exponential(μ) that pushes every δ keeps δ/(exp(δ/μ) − 1) of itself, whatever δ is."""
    life = Exponential(2700.0)
    step = 2700.0 / 10**8
    costs = Costs(exec_s=step / 2, push_s=step / 2)
    kept = (step / 2) / math.expm1(step / 2700.0) / 2700.0
    assert chunk_goodput(life, costs, 10**12, push_every=1) == pytest.approx(kept, rel=1e-9)
    assert chunk_goodput(life, costs, 10**3, push_every=1, many=True) == pytest.approx(kept, rel=1e-9)


def test_all_or_nothing_written_out() -> None:
    life, n = Weibull(1.3, 2000.0), 5_000
    after = 180 + n * 0.11 + 10
    expected = n * 0.1 * life.survival(after) / (60 + life.restricted_mean(after))
    assert chunk_goodput(life, COSTS, n) == pytest.approx(expected, rel=1e-12)
    assert job_s(COSTS, n) == pytest.approx(after)
    assert job_s(PUSHED, n, 450) == pytest.approx(after + 12 * 0.5)
    work = n * 0.11
    safe = n * 0.1 * life.survival(work) / (60 + 180 + life.restricted_mean(work) + 10 * life.survival(work))
    assert one_chunk_safe_ends(life, COSTS, n) == pytest.approx(safe, rel=1e-12)


def test_young() -> None:
    """Over an exponential life, and with nothing but pushes to pay, the best interval is √(2cM) as pushes get cheap."""
    mean, push_s = 2700.0, 0.02
    costs = Costs(exec_s=1e-3, push_s=push_s)
    m = np.unique(np.rint(np.geomspace(10, 10**6, 20_000)))
    best = m[int(np.argmax(chunk_goodput(Exponential(mean), costs, 10**9, push_every=m, terms=64)))] * 1e-3
    assert best == pytest.approx(math.sqrt(2 * push_s * mean), rel=0.02)


def test_shapes_broadcast() -> None:
    n, m = np.array([[100], [1000], [10_000]]), np.array([10, 1000])
    goodput = chunk_goodput(Exponential(2700), PUSHED, n, push_every=m)
    assert goodput.shape == (3, 2)
    assert goodput[2, 1] == pytest.approx(chunk_goodput(Exponential(2700), PUSHED, 10_000, push_every=1000))
    assert isinstance(chunk_goodput(Exponential(2700), PUSHED, 100, push_every=10), float)
    assert chunk_goodput(Exponential(2700), COSTS, np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("law", [chunk_goodput, partial(chunk_goodput, many=True)])
def test_bad_input_is_refused(law: object) -> None:
    assert callable(law)
    for n in (0, -1, math.nan, math.inf):
        with pytest.raises(ChunkError, match="n, the vertices of a chunk, must be above 0 and finite"):
            law(Exponential(10), COSTS, n)
    with pytest.raises(ChunkError, match="push_every, the vertices between two pushes, must be above 0"):
        law(Exponential(10), PUSHED, 10, push_every=0)
    with pytest.raises(ChunkError, match="give push_s, what one costs"):
        law(Exponential(10), COSTS, 10, push_every=5)

"""Every merge rule fulfils the contract, and its own further promises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.aggregates import (
    Aggregate,
    Contraction,
    Merge,
    TensorMerge,
    add,
    by_name,
    clipped,
    easgd,
    fedbuff,
    kernels,
    maximum,
    mean,
    nesterov,
    owned,
    pooled,
    rounds,
    rule_for,
    stale_mean,
)
from gridml.errors import ProgramError, UsageError
from gridml.testing.aggregates import (
    CHECKS,
    DTYPES,
    FLOAT_CHECKS,
    FRESH,
    STALE,
    TOLERANCE,
    FlatResult,
    FlatRules,
    copied,
    make_case,
    same,
)

RULES: list[Aggregate] = [
    mean(), stale_mean(), stale_mean(kappa=2, rho=1), fedbuff(), fedbuff(least=1), nesterov(), easgd(), add(),
    maximum(), pooled(), pooled(variance=True), clipped(), clipped(radius=0.1), rounds(), rounds(rate=1, momentum=0),
]  # fmt: skip
CASES = [(rule, dtype) for rule in RULES for dtype in DTYPES if rule.takes(np.dtype(dtype))]
FLOATS = [(rule, dtype) for rule, dtype in CASES if dtype in TOLERANCE]


@pytest.fixture(params=["compiled", "numpy"])
def any_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run tests with numba, and as if it were not installed."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "_loop", lambda *_: None)
    yield


@pytest.mark.parametrize(("rule", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_is_kept(check: Callable[[Aggregate, str], None], rule: Aggregate, dtype: str) -> None:
    check(rule, dtype)


@pytest.mark.parametrize(("rule", "dtype"), FLOATS, ids=str)
@pytest.mark.parametrize("check", FLOAT_CHECKS, ids=lambda check: check.__name__)
def test_the_contract_is_kept_for_floats(
    check: Callable[[Aggregate, str], None], rule: Aggregate, dtype: str, any_loop: None
) -> None:
    check(rule, dtype)


@pytest.mark.parametrize(("rule", "dtype"), FLOATS, ids=str)
def test_scale_of_one_changes_nothing_and_others_are_refused(rule: Aggregate, dtype: str) -> None:
    rules, master, replica, base = make_case(rule, dtype)
    assert same(
        rules.merge(master, replica, base, STALE).tensors, rules.merge(master, replica, base, STALE, scale=1.0).tensors
    )
    for scale in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="scale is"):
            rules.merge(master, replica, base, STALE, scale=scale)


@pytest.mark.parametrize("rule", [mean(), easgd(), stale_mean(rho=1), pooled(), maximum()], ids=str)
def test_averages_stay_between_master_and_replica(rule: Aggregate) -> None:
    for seed in range(20):
        rules, master, replica, base = make_case(rule, "float64", seed)
        merged = rules.merge(master, replica, base, STALE).tensors
        for name, p in replica.items():
            low, high = np.minimum(master[name], p), np.maximum(master[name], p)
            assert (merged[name] >= low - 1e-12).all()
            assert (merged[name] <= high + 1e-12).all()


@pytest.mark.parametrize(("rule", "dtype"), FLOATS, ids=str)
def test_any_order_of_arrival_stays_finite_and_near(rule: Aggregate, dtype: str) -> None:
    """Replicas and bases between 0.5 and 1.5, merged in every order, move the master by no more than their steps."""
    rules, master, _, base = make_case(rule, dtype)
    pushes = [make_case(rule, dtype, seed)[2] for seed in (1, 2, 3)]
    for order in itertools.permutations(pushes):
        now = master
        for replica in order:
            now = dict(rules.merge(now, replica, base, STALE).tensors)
        now |= rules.flush(now, live=3) or {}
        assert all((np.abs(now[name].astype("f8")) < 6).all() for name in rules.rules)


@pytest.mark.parametrize(("rule", "dtype"), CASES, ids=str)
def test_only_rules_that_gather_pushes_have_something_to_flush(rule: Aggregate, dtype: str) -> None:
    rules, master, replica, base = make_case(rule, dtype)
    merged = master | rules.merge(master, replica, base, Merge(2, 1, 64, 64, 4)).tensors
    assert (rules.flush(merged, live=4) is not None) == isinstance(rule, nesterov | fedbuff | rounds)


@pytest.mark.parametrize(("rule", "dtype"), CASES, ids=str)
def test_adopting_keeps_what_was_trained_since_the_push(rule: Aggregate, dtype: str) -> None:
    _, master, replica, base = make_case(rule, dtype)
    pushed, newest, local = (party["w.running_var"] for party in (base, master, replica))
    out = np.empty_like(local)
    rule.adopt(local, pushed, newest, out)
    if isinstance(rule, maximum):
        expected = np.maximum(local, newest)
    elif isinstance(rule, easgd):
        expected = local - 0.9 * (pushed - newest)
    else:
        expected = newest + (local - pushed)
        if rule == pooled(variance=True):
            expected = np.where(expected > 0, expected, newest)
    np.testing.assert_allclose(out, expected, rtol=TOLERANCE.get(dtype, 0), atol=TOLERANCE.get(dtype, 0))


def one(rule: Aggregate, v: Any, p: Any, b: Any, how: Merge, dtype: str = "float64", **more: Any) -> FlatResult:
    rules = FlatRules({"w": rule})
    master = {"w": np.asarray(v, dtype)}
    start = rules.buffers(master)
    return rules.merge(master | start, {"w": np.asarray(p, dtype)}, {"w": np.asarray(b, dtype)}, how, **more)


def test_mean_is_the_papers() -> None:
    assert one(mean(), [1.0, 4.0], [3.0, 8.0], [9.0, -1.0], STALE).tensors["w"].tolist() == [2.0, 6.0]


def test_stale_mean_is_the_formula() -> None:
    v, p, b, tau = 1.25, 3.5, 0.75, 192 / 64
    alpha = 5 / (5 + tau)
    rho = 1 + (2 - 1) * (1 - alpha)
    assert one(stale_mean(), v, p, b, STALE).tensors["w"] == pytest.approx(v + alpha * (b - v) + alpha * rho * (p - b))


def by_rows(contraction: float, together: float) -> NDArray[Any]:
    """Two rows of three numbers, the first hardly pulled, merged by stale_mean: v = 1, b = 0, p = 1, and τ = 3."""
    pulled = Contraction(np.array([1e-9, contraction]), np.array([1e-9, together]))
    v, b, p, out = np.ones((2, 3)), np.zeros((2, 3)), np.ones((2, 3)), np.empty((2, 3))
    assert stale_mean().merge(TensorMerge(v, p, b, out, STALE, contraction=pulled)) == pytest.approx(6)
    return out


def test_rows_that_are_hardly_pulled_are_added(any_loop: None) -> None:
    added, between = by_rows(0.05, 0.2)
    np.testing.assert_allclose(added, 2.0)
    alpha = 5 / (5 + 192 / 64)
    np.testing.assert_allclose(between, 1 - alpha * (1 - math.exp(-0.05)) + (1 - math.exp(-0.2)) / 0.2)


def test_rows_that_are_pulled_home_are_averaged(any_loop: None) -> None:
    averaged = by_rows(50.0, 200.0)[1]
    expected = float(one(stale_mean(), 1.0, 1.0, 0.0, STALE).tensors["w"])
    np.testing.assert_allclose(averaged, expected)


@given(push=st.floats(0, 1e3), others=st.floats(0, 1e3), credited=st.integers(1, 10**6))
def test_a_row_is_never_merged_past_a_sum_nor_short_of_the_mean(push: float, others: float, credited: int) -> None:
    how = Merge(2, 1, 64, credited, 4)
    pull, step = stale_mean().weights(how)
    pulls, steps = stale_mean().row_weights(how, Contraction(np.array([push]), np.array([push + others])))
    assert 0 <= pulls[0] <= pull
    assert step <= steps[0] <= 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 3), (5, 1), (1, 40_000), (40_000, 1), (333, 100), (7, 2, 3)])
def test_rows_are_blended_as_numpy_would(dtype: str, shape: tuple[int, ...], any_loop: None) -> None:
    random = np.random.default_rng(1)
    v, b, p, out = (random.standard_normal(shape).astype(dtype) for _ in range(4))
    pulls, steps = random.random((2, shape[0]))
    total = kernels.blend_rows(out, v, b, p, pulls, steps)
    v8, b8, p8 = (each.astype("f8") for each in (v, b, p))
    pull, step = (each.reshape(-1, *[1] * (len(shape) - 1)) for each in (pulls, steps))
    np.testing.assert_allclose(out, v8 + pull * (b8 - v8) + step * (p8 - b8), atol=TOLERANCE[dtype])
    assert total == pytest.approx(((p8 - b8) ** 2).sum(), rel=1e-5)
    if out.size:
        p.flat[-1] = np.inf
        assert math.isnan(kernels.blend_rows(out, v, b, p, pulls, steps))


def test_a_stale_replica_pulls_less_than_a_fresh_one() -> None:
    pulls = [
        float(one(stale_mean(), 0.0, 1.0, 0.0, Merge(2, 1, 64, others, 9)).tensors["w"])
        for others in range(0, 9000, 64)
    ]
    assert pulls[0] == 1.0
    assert all(later < earlier for earlier, later in itertools.pairwise(pulls))
    assert 0 < pulls[-1] < 0.1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), pushes=st.integers(1, 8), size=st.integers(0, 20_000))
def test_one_worker_is_exactly_its_own_replica(dtype: str, seed: int, pushes: int, size: int) -> None:
    random = np.random.default_rng(seed)
    rules = FlatRules({"w": stale_mean()})
    base = master = {"w": random.standard_normal(size).astype(dtype)}
    for version in range(pushes):
        replica = {"w": random.standard_normal(size).astype(dtype)}
        replica["w"][: size // 2] *= -0.0
        master = rules.merge(master, replica, base, Merge(version, max(0, version - 1), 64, 0, 1)).tensors
        assert master["w"].tobytes() == replica["w"].tobytes()
        if random.random() < 0.5:  # the worker may push again from an older base; no other worker was credited since
            base = master


@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3), min_size=1, max_size=6),
    data=st.data(),
)
def test_add_is_exact_for_integers_in_any_order(steps: list[list[int]], data: st.DataObject) -> None:
    start = np.array([2**50, 0, -7])
    rules = FlatRules({"w": add()})
    master = {"w": start}
    for step in data.draw(st.permutations(steps)):
        base = {"w": np.array(data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3)))}
        how = Merge(2, 1, 8, data.draw(st.integers(0, 99)), 3)
        scale = data.draw(st.sampled_from([1.0, 0.1]))
        master = rules.merge(master, {"w": base["w"] + step}, base, how, scale=scale).tensors
    assert master["w"].tolist() == (start + np.sum(steps, axis=0)).tolist()


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_adding_a_push_twice_shows(dtype: str) -> None:
    once = one(add(), [1, 2], [5, 5], [4, 2], STALE, dtype).tensors["w"]
    assert once.tolist() == [2, 5]
    assert one(add(), once, [5, 5], [4, 2], STALE, dtype).tensors["w"].tolist() == [3, 8]


def test_maximum_does_not_mind_repetition_or_order() -> None:
    for order in itertools.permutations([[3, 9], [5, 1], [5, 1], [4, 4]]):
        value: Any = [0, 0]
        for replica in order:
            value = one(maximum(), value, replica, [2, 2], STALE, "int64").tensors["w"]
        assert value.tolist() == [5, 9]


def test_fedbuff_takes_the_weighted_mean_of_a_full_buffer() -> None:
    rules = FlatRules({"w": fedbuff(rate=0.5, least=3)})
    master = {"w": np.array([10.0])}
    master |= rules.buffers(master)
    pushes = [(1.0, 64, 0), (2.0, 32, 96), (4.0, 64, 64)]
    for step, vertices, others in pushes:
        assert master["w"].tolist() == [10.0]
        base = {"w": np.array([3.0])}
        master = rules.merge(master, {"w": base["w"] + step}, base, Merge(2, 1, vertices, others, 2)).tensors
    weights = [vertices / math.sqrt(1 + others / vertices) for _, vertices, others in pushes]
    mean_step = sum(w * s for w, (s, _, _) in zip(weights, pushes, strict=True)) / sum(weights)
    assert master["w"] == pytest.approx(10 + 0.5 * mean_step)
    assert all(not master[f"w#{name}"].any() for name in ("step", "weight", "pushes"))


def test_fedbuff_waits_for_as_many_pushes_as_there_are_workers_and_flushes_the_rest() -> None:
    rules = FlatRules({"w": fedbuff()})
    master = {"w": np.zeros(2, np.float32)}
    master |= rules.buffers(master)
    for _ in range(11):
        master = rules.merge(
            master, {"w": np.ones(2, np.float32)}, {"w": np.zeros(2, np.float32)}, Merge(2, 1, 8, 0, 12)
        ).tensors
        assert not master["w"].any()
    flushed = rules.flush(master, live=12)
    assert flushed is not None
    np.testing.assert_allclose(flushed["w"], 1, rtol=1e-6)


def test_a_round_is_the_mean_of_workers_whatever_the_number_of_their_pushes() -> None:
    """One worker pushes 3 vertices, another 1 and then 2, a third half as many: the mean weighs them by vertices."""
    rule, base = rounds(), np.zeros(2)
    rules = FlatRules({"w": rule})
    master: dict[str, Any] = {"w": base} | rules.buffers({"w": base})
    for vertices, before in ((30, 0), (10, 0), (20, 10), (15, 0)):
        push = Merge(2, 1, vertices, 64, 3, before=before)
        master |= rules.merge(master, {"w": base + vertices}, {"w": base}, push).tensors
        np.testing.assert_array_equal(master["w"], base)  # until the round ends
    value = base.copy()
    assert rule.end_round(value, {name[2:]: array for name, array in master.items() if "#" in name}, 0.5)
    np.testing.assert_allclose(value, (30 * 30 + 30 * 30 + 15 * 15) / 75)


def test_late_pushes_weigh_less_and_momentum_ends_with_the_run() -> None:
    rule, base = rounds(rate=0.5, momentum=0.8), np.zeros(1)
    assert rule.at(0.0) == rule.at(0.6) == (0.5, 0.8) and rule.at(1.0) == (1.0, 0.0)
    rules = FlatRules({"w": rule})
    master: dict[str, Any] = {"w": base} | rules.buffers({"w": base})
    master |= rules.merge(master, {"w": base + 10}, {"w": base}, Merge(2, 1, 10, 64, 3, rounds=1)).tensors
    buffers = {name[2:]: array for name, array in master.items() if "#" in name}
    value = base.copy()
    assert rule.end_round(value, buffers, 0.0)
    np.testing.assert_allclose(value, 0.5 * (5 + 0.8 * 5))
    assert not rule.end_round(value, buffers, 0.0)  # nothing new was pushed


def test_nesterov_is_algorithm_3_of_the_paper() -> None:
    rate, beta, workers = 0.7, 0.9, 3
    rules = FlatRules({"w": nesterov(rate, beta)})
    master = {"w": np.array([1.0])}
    master |= rules.buffers(master)
    value, momentum, gathered = 1.0, 0.0, 0.0
    for push, step in enumerate([0.5, -1.0, 2.0, 0.25, 0.5, 3.0, 1.0]):
        gathered += step
        value += rate * step / workers
        if (push + 1) % workers == 0:
            momentum, gathered = beta * momentum + gathered / workers, 0.0
            value += rate * beta * momentum
        master = rules.merge(
            master, {"w": np.array([7 + step])}, {"w": np.array([7.0])}, Merge(2, 1, 8, 8, workers)
        ).tensors
        assert master["w"] == pytest.approx(value)
    flushed = rules.flush(master, live=workers)
    assert flushed is not None
    momentum = beta ** (1 / 3) * momentum + 1.0 / workers
    assert flushed["w#momentum"] == pytest.approx(momentum)
    assert flushed["w"] == pytest.approx(value + rate * beta / 3 * momentum)


def test_the_step_of_a_part_of_a_batch_is_added_however_stale() -> None:
    value, base, replica = (np.array(each, np.float32) for each in ([8.0, 1.0], [1.0, 1.0], [1.5, -1.0]))
    for merge in (FRESH._replace(base=8, credited_by_others=1), STALE):
        out = np.empty_like(value)
        tensor = TensorMerge(value, replica, base, out, merge._replace(added=True))
        assert gridml.stale_mean().merge(tensor) == pytest.approx(0.25 + 4.0)
        np.testing.assert_array_equal(out, [8.5, -1.0])


def test_easgd_shares_its_elasticity_among_the_workers() -> None:
    assert one(easgd(), 1.0, 3.0, 9.0, STALE).tensors["w"] == pytest.approx(1 + 0.9 / 3 * (3 - 1))
    out = np.empty(())
    easgd().adopt(np.array(5.0), np.array(4.0), np.array(2.0), out, live=3)
    assert out == pytest.approx(5 - 0.3 * (4 - 2))


@pytest.mark.parametrize("how", [FRESH, STALE], ids=["fresh", "stale"])
def test_variances_are_pooled_as_if_one_set_of_samples_had_been_seen(how: Merge) -> None:
    random = np.random.default_rng(3)
    mine, theirs = random.normal(5, 2, (400, 4)), random.normal(-1, 3, (400, 4))
    names = "bn.running_mean", "bn.running_var"
    rules = FlatRules({name: rule_for(name, np.zeros(4), None) for name in names})
    master = dict(zip(names, (mine.mean(0), mine.var(0)), strict=True))
    replica = dict(zip(names, (theirs.mean(0), theirs.var(0)), strict=True))
    merged = rules.merge(master, replica, copied(master), how).tensors
    weights = np.repeat([1 - how.weight, how.weight], 400)
    both = np.concatenate([mine, theirs])
    expected = np.average(both, axis=0, weights=weights)
    np.testing.assert_allclose(merged[names[0]], expected)
    np.testing.assert_allclose(merged[names[1]], np.average(both**2, axis=0, weights=weights) - expected**2)


def test_a_variance_without_its_mean_is_averaged() -> None:
    assert one(pooled(variance=True), 1.0, 9.0, 0.0, STALE).tensors["w"] == pytest.approx(1 + 5 / 8 * 8)


def test_rules_are_chosen_by_name_and_by_what_the_tensor_is() -> None:
    weight, count, flag = np.zeros(3, np.float32), np.zeros((), np.int64), np.zeros(3, bool)
    assert rule_for("fc.weight", weight, None) == stale_mean()
    assert rule_for("fc.weight", weight, easgd()) == easgd()
    assert rule_for("bn.num_batches_tracked", count, mean()) == maximum()
    assert rule_for("counts", count, add()) == add()
    assert rule_for("mask", flag, add()) == maximum()
    assert rule_for("bn.running_mean", weight, mean()) == pooled()
    assert rule_for("bn.running_var", weight, mean()) == pooled(variance=True)
    chosen = by_name({"*.bias": mean(), "bn.*": easgd(), "*.running_mean": add(), "*.n": add()})
    assert rule_for("fc.bias", weight, chosen) == mean()
    assert rule_for("bn.bias", weight, chosen) == mean(), "the first match wins"
    assert rule_for("bn.weight", weight, chosen) == easgd()
    assert rule_for("bn.running_var", weight, chosen) == pooled(variance=True), "bn.* does not spell it out"
    assert rule_for("bn2.running_mean", weight, chosen) == add(), "spelled out"
    assert rule_for("fc.weight", weight, chosen) == stale_mean(), "no match"
    assert rule_for("fc.n", count, chosen) == add()


def test_a_rule_that_cannot_merge_what_it_was_named_for_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"'bn.n' has dtype int64, which Mean\(\) cannot merge; expected"):
        rule_for("bn.n", np.zeros(2, np.int64), by_name({"*.n": mean()}))
    with pytest.raises(ProgramError, match="complex64"):
        rule_for("w", np.zeros(2, np.complex64), None)
    with pytest.raises(ProgramError, match="expected a rule"):
        by_name({"*": mean})  # type: ignore[dict-item]


@dataclass(frozen=True)
class Newest(gridml.Aggregate):
    """The rule in the documentation: the last push wins."""

    def merge(self, t: gridml.TensorMerge) -> float:
        t.out[...] = t.base + t.scale * (t.replica - t.base)
        return float(((t.replica - t.base).astype("float64") ** 2).sum())


def test_a_rule_of_ones_own_needs_to_merge_and_nothing_else() -> None:
    result = one(Newest(), [1.0, 4.0], [3.0, 8.0], [1.0, 5.0], STALE, scale=0.5)
    assert result.tensors["w"].tolist() == [2.0, 6.5]
    assert (result.sumsq, result.not_finite) == (13.0, None)
    assert one(Newest(), [1.0], [np.nan], [1.0], STALE).not_finite == "w"
    assert rule_for("Word/vector", np.zeros(2, np.float32), Newest()) == Newest()
    with pytest.raises(ProgramError, match="cannot merge"):
        rule_for("w", np.zeros(2, np.complex64), Newest())


@pytest.mark.parametrize(
    ("make", "settings_"),
    [
        (stale_mean, {"kappa": 0}),
        (stale_mean, {"rho": 3}),
        (fedbuff, {"least": 0}),
        (nesterov, {"momentum": 1}),
        (rounds, {"momentum": 1}),
        (rounds, {"momentum": -0.1}),
        (rounds, {"rate": 0}),
        (rounds, {"rate": float("nan")}),
        (easgd, {"elasticity": 0}),
    ],
)
def test_settings_out_of_range_are_refused(make: Any, settings_: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        make(**settings_)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 17, 16_384, 16_385, 50_001])
def test_kernel_agrees_with_numpy(dtype: str, size: int, any_loop: None) -> None:
    random = np.random.default_rng(size)
    v, b, p, out = (random.standard_normal(size).astype(dtype) for _ in range(4))
    total = kernels.blend(out, v, b, p, 0.7, 0.8)
    wide = v.astype("f8"), b.astype("f8"), p.astype("f8")
    np.testing.assert_allclose(
        out, wide[0] + 0.7 * (wide[1] - wide[0]) + 0.8 * (wide[2] - wide[1]), atol=TOLERANCE[dtype]
    )
    assert total == pytest.approx(((wide[2] - wide[1]) ** 2).sum(), rel=1e-5)
    assert kernels.fast_forward(out, b, p, 1.0) == pytest.approx(total, rel=1e-5)
    assert out.tobytes() == p.tobytes()


def test_kernel_takes_strided_read_only_and_mapped_arrays(tmp_path: Any) -> None:
    line = np.arange(24, dtype=np.float32)
    line.tofile(tmp_path / "mapped")
    mapped = np.memmap(tmp_path / "mapped", np.float32, "r", shape=(4, 6))
    out = np.empty((4, 6), np.float32)
    assert kernels.blend(out, mapped, line.reshape(6, 4).T, line.reshape(4, 6), 0.0, 1.0) > 0
    np.testing.assert_array_equal(out, 2 * line.reshape(4, 6) - line.reshape(6, 4).T)
    with pytest.raises(ValueError, match="expected 24"):
        kernels.blend(out, mapped, line[:5], line, 0.0, 1.0)
    with pytest.raises(ValueError, match="not contiguous"):
        kernels.blend(out.T, mapped, mapped, mapped, 0.0, 1.0)


@pytest.mark.parametrize("name", ["Net/0/model/bn.running_var", "Net/0/model/running_var", "bn.running_var"])
def test_statistics_of_modules_are_pooled_at_any_depth(name: str) -> None:
    assert rule_for(name, np.ones(3, np.float32), None) == pooled(variance=True)


def test_an_array_field_may_be_called_like_a_statistic() -> None:
    assert rule_for("Word/running_mean", np.ones(3, np.float32), None) == stale_mean()


def pushes_of(rule: Aggregate, steps: list[float], live: int = 3) -> list[float]:
    """Return the master's value after each push of a step of this length, from the newest version."""
    rules = FlatRules({"w": rule})
    master = {"w": np.zeros(4, np.float32)}
    master |= rules.buffers(master)
    values = []
    for step in steps:
        base = {"w": master["w"].copy()}
        pushed = {"w": base["w"] + np.float32(step)}
        master = dict(rules.merge(master, pushed, base, Merge(1, 1, 64, 0, live)).tensors)
        values.append(float(master["w"][0]))
    return values


def test_a_clipped_push_goes_no_further_from_the_centre_than_the_radius() -> None:
    usual = pushes_of(clipped(), [1.0] * 30)
    hostile = pushes_of(clipped(), [1.0] * 29 + [-1e6])
    assert hostile[-2] == usual[-2]
    assert abs(hostile[-1] - usual[-1]) < 2.0


def test_a_third_of_hostile_pushes_does_not_turn_a_clipped_run() -> None:
    steps = [1.0, 1.1, -50.0] * 60
    assert pushes_of(stale_mean(), steps)[-1] < 0
    assert pushes_of(clipped(), steps)[-1] > 0


def test_one_live_worker_is_clipped_by_nothing() -> None:
    steps = [1.0, -1e6, 3.0]
    assert pushes_of(clipped(), steps, live=1) == pushes_of(stale_mean(), steps, live=1)


def test_a_radius_that_is_none_is_refused() -> None:
    for radius in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(UsageError, match="expected a number above 0"):
            clipped(radius=radius)


@pytest.mark.parametrize("dtype", DTYPES)
def test_owned_keeps_the_masters_value_whatever_workers_push(dtype: str) -> None:
    """The laws of rules that merge do not hold for it: even a worker that is alone changes nothing."""
    rules, master, replica, base = make_case(owned(), dtype)
    for merge in (FRESH, STALE):
        assert same(rules.merge(master, replica, base, merge).tensors, master)
    if dtype in TOLERANCE:
        replica["w.running_mean"][0, 0] = math.nan
        assert rules.merge(master, replica, base, STALE).not_finite == "w.running_mean"
    local, newest = np.ones(3, dtype), np.zeros(3, dtype)
    owned().adopt(local, local.copy(), newest, local)
    assert not local.any()

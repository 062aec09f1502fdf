"""Scripts: seeded, balanced, scalable, and pure functions of their arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.families import Exponential, Normal
from chunk_model.lifetime import Lifetime
from chunk_model.traces import parse_trace, trace_lives
from gridml.errors import UsageError
from master.backends.script import PlannedLife, Replay, Script, ScriptedLives, Steady

lifetimes: st.SearchStrategy[Lifetime] = st.sampled_from([Normal(2700, 600), Exponential(2700), Normal(10, 40)])
scripts = st.builds(
    ScriptedLives,
    workers=st.integers(1, 40),
    lifetime=lifetimes,
    seed=st.integers(0, 2**40),
    graceful_share=st.floats(0, 1),
    gap_s=st.sampled_from([0.0, 30.0]),
)


def ends(script: Script, lives_each: int) -> list[bool]:
    """Return whether the first lives of every slot end gracefully."""
    return [life.graceful for slot in range(script.slots) for k in range(lives_each) if (life := script.life(slot, k))]


@given(scripts, st.integers(0, 50))
def test_the_same_seed_gives_the_same_lives_in_any_order(script: ScriptedLives, k: int) -> None:
    again = replace(script)
    forward = [script.life(slot, k, 3.0) for slot in range(script.slots)]
    assert [again.life(slot, k, 3.0) for slot in reversed(range(script.slots))] == forward[::-1]


@given(scripts)
def test_another_seed_gives_other_lives(script: ScriptedLives) -> None:
    other = replace(script, seed=script.seed + 1)
    assert [script.life(0, k).duration_s for k in range(5)] != [other.life(0, k).duration_s for k in range(5)]


def test_slots_and_lives_differ() -> None:
    script = ScriptedLives(5, Exponential(100))
    assert len({script.life(slot, k).duration_s for slot in range(5) for k in range(20)}) == 100


@given(scripts, st.integers(1, 12))
def test_graceful_ends_are_dealt_out(script: ScriptedLives, n: int) -> None:
    share = script.graceful_share
    for slot in range(script.slots):
        assert abs(sum(script.life(slot, k).graceful for k in range(n)) - n * share) <= 1 + 1e-9
    assert abs(sum(ends(script, n)) - script.slots * n * share) <= 1 + 1e-9


@given(st.integers(1, 40), st.integers(0, 1000))
def test_half_of_the_lives_end_in_sigkill_and_kinds_alternate(workers: int, seed: int) -> None:
    script = ScriptedLives(workers, Exponential(100), seed)
    for slot in range(workers):
        kinds = [script.life(slot, k).graceful for k in range(6)]
        assert kinds == [kinds[0], not kinds[0]] * 3
    assert sum(ends(script, 1)) in (workers // 2, (workers + 1) // 2)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_of_one_kind(share: float) -> None:
    assert set(ends(ScriptedLives(7, Exponential(100), graceful_share=share), 9)) == {share == 1.0}


@given(scripts, st.floats(0.01, 1000), st.integers(0, 9), st.floats(0, 1e5))
def test_speedup_divides_every_duration(script: ScriptedLives, speedup: float, k: int, free_s: float) -> None:
    fast = replace(script, speedup=speedup)
    for slot in range(script.slots):
        slow, short = script.life(slot, k, free_s), fast.life(slot, k, free_s / speedup)
        assert slow.duration_s is not None
        assert short.duration_s == pytest.approx(slow.duration_s / speedup)
        assert short.opens_s == pytest.approx(slow.opens_s / speedup)
        assert short.grace_s == pytest.approx(slow.grace_s / speedup)
        assert short.graceful == slow.graceful


@given(st.integers(1, 64), st.integers(0, 1000))
def test_the_last_quarter_joins_late_within_the_first_mean_life(workers: int, seed: int) -> None:
    script = ScriptedLives(workers, Exponential(100), seed)
    first = [script.life(slot, 0).opens_s for slot in range(workers)]
    late = workers // 4
    assert first[: workers - late] == [0.0] * (workers - late)
    assert all(10 <= opens_s <= 50 for opens_s in first[workers - late :])


def test_late_can_be_chosen() -> None:
    assert all(ScriptedLives(8, Exponential(100), late=0).life(slot, 0).opens_s == 0 for slot in range(8))
    assert all(ScriptedLives(2, Exponential(100), late=2).life(slot, 0).opens_s > 0 for slot in range(2))


def test_a_slot_is_free_again_after_a_death_or_after_a_gap() -> None:
    assert ScriptedLives(1, Exponential(100)).life(0, 1, 77.0).opens_s == 77.0
    with_gap = ScriptedLives(1, Exponential(100), gap_s=10.0)
    assert with_gap.life(0, 0, 0.0).opens_s == 0.0
    gaps = [with_gap.life(0, k, 77.0).opens_s - 77.0 for k in range(1, 400)]
    assert min(gaps) > 0 and sum(gaps) / len(gaps) == pytest.approx(10, rel=0.25)


def test_steady_machines_stay() -> None:
    script = Steady(3)
    assert [script.machine(slot) for slot in range(script.slots)] == ["slot-1", "slot-2", "slot-3"]
    assert script.life(2, 5, 9.0) == PlannedLife(opens_s=9.0) and script.life(2, 5, 9.0).ends_s(9.0) is None


def test_a_life_ends_at_the_earlier_of_its_two_ends() -> None:
    assert PlannedLife(0.0, 5.0, 20.0).ends_s(10.0) == 15.0
    assert PlannedLife(0.0, 50.0, 20.0).ends_s(10.0) == 20.0
    assert PlannedLife(0.0, None, 20.0).ends_s(10.0) == 20.0


TRACE = parse_trace(
    ["0,add,a", "0,add,b", "4000,remove,a", "6000,add,a", "6000,add,c", "8000,remove,a", "9000,remove,b"]
)


def test_replay_opens_and_closes_slots_as_the_nodes_came_and_went() -> None:
    script = Replay(TRACE, speedup=2.0, grace_s=10.0)
    assert [script.machine(slot) for slot in range(script.slots)] == ["a", "b", "c"]

    def window(slot: int, free_s: float) -> tuple[float, float | None] | None:
        life = script.life(slot, 0, free_s)
        return (life.opens_s, life.closes_s) if life else None

    assert [window(0, free_s) for free_s in (0, 1.5, 2, 2.5, 3.5, 4)] == [
        (0, 2),
        (1.5, 2),
        (3, 4),
        (3, 4),
        (3.5, 4),
        None,
    ]
    assert window(1, 0) == (0, 4.5) and window(2, 0) == (3, None) and window(2, 1e9) == (1e9, None)
    life = script.life(0, 0)
    assert life is not None and life.grace_s == 5.0 and life.duration_s is None


@given(scripts, st.integers(1, 60), st.integers(0, 5))
def test_more_machines_change_nothing_of_when_the_others_lives_end(script: ScriptedLives, workers: int, k: int) -> None:
    grown = script.grown(workers)
    assert grown.slots == max(script.slots, workers)
    for slot in range(script.slots):
        assert grown.machine(slot) == script.machine(slot)
        before, after = script.life(slot, k + 1, 1e5), grown.life(slot, k + 1, 1e5)
        assert after is not None
        assert (after.opens_s, after.duration_s) == (before.opens_s, before.duration_s)


def test_what_a_trace_has_is_all_there_is() -> None:
    script = Replay(TRACE)
    assert script.grown(100) is script and Steady(3).grown(5) == Steady(5) == Steady(5).grown(2)


def test_replay_passes_over_a_node_that_left_in_the_moment_it_came() -> None:
    script = Replay(parse_trace(["0,add,a", "5000,add,b", "5000,remove,b", "7000,add,b"]))
    life = script.life(1, 0)
    assert life is not None and life.opens_s == 7.0


@given(st.integers(2, 60), st.floats(0, 1), st.integers(0, 99))
def test_replay_deals_out_graceful_removals_in_their_order(nodes: int, share: float, seed: int) -> None:
    lines = [f"0,add,n{n}" for n in range(nodes)] + [f"{1000 + n},remove,n{n}" for n in range(nodes)]
    script = Replay(parse_trace(lines), seed, share)
    kinds = ends(script, 1)
    assert len(kinds) == nodes == len(trace_lives(script.trace))
    for n in range(1, nodes + 1):
        assert abs(sum(kinds[:n]) - n * share) <= 1 + 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda: Steady(0),
        lambda: ScriptedLives(0, Exponential(1)),
        lambda: ScriptedLives(1, Exponential(1), seed=-1),
        lambda: ScriptedLives(1, Exponential(1), graceful_share=1.1),
        lambda: ScriptedLives(1, Exponential(1), grace_s=-1.0),
        lambda: ScriptedLives(1, Exponential(1), gap_s=float("nan")),
        lambda: ScriptedLives(1, Exponential(1), late=2),
        lambda: ScriptedLives(1, Exponential(1), speedup=0.0),
        lambda: Replay(()),
        lambda: Replay(TRACE, speedup=float("inf")),
    ],
)
def test_settings_out_of_range_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError):
        make()

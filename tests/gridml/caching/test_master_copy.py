"""A worker's copy of the master's tensors, and the tensors that its pushes omit or compress."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.caching.master_copy import LARGE, MasterCopy, Unmerged
from gridml.model.vertex import describe
from gridml.protocol.compression import FORMATS
from gridml.protocol.push import PushContent, ReplicaPart, RowValues


class Network(gridml.Vertex):
    aggregate = gridml.by_name({"sum": gridml.add()})


class Gathered(gridml.Vertex):
    aggregate = gridml.by_name({"mean": gridml.stale_mean(), "*": gridml.rounds()})


class Own(gridml.Vertex):
    def aggregate(self, replica: Own, merge: gridml.Merge) -> None:  # type: ignore[override]
        """Merge as the user sees fit."""


TYPES = {cls.__name__: describe(cls) for cls in (Network, Gathered, Own)}
KEY = ("Network", 0)
WORDS = {"Word": RowValues(np.arange(2), {"count": np.arange(2)})}


def part(**values: float) -> ReplicaPart:
    """A vertex with a large backbone and a head."""
    sizes = {"backbone": 9, "head": 2, "scale": 4}
    return ReplicaPart({KEY: {name: np.full(sizes[name], value) for name, value in values.items()}}, WORDS)


def carried(copy: MasterCopy, **values: float) -> set[str]:
    return {*copy.carry(part(**values), "none")[0].replica.modules[KEY]}


def test_what_the_master_never_sent_travels() -> None:
    copy = MasterCopy(TYPES)
    assert carried(copy, backbone=1.0, head=1.0) == {"backbone", "head"}
    assert copy.carry(part(backbone=1.0), "none")[0].replica.rows == WORDS


def test_what_is_as_the_reply_brought_it_stays_at_home() -> None:
    copy = MasterCopy(TYPES)
    copy.take(part(backbone=1.0, head=1.0), fast_forward=False)
    assert carried(copy, backbone=1.0, head=2.0) == {"head"}
    copy.take(part(head=3.0), fast_forward=False)
    assert carried(copy, backbone=1.0, head=2.0) == {"head"}
    copy.take(part(backbone=2.0), fast_forward=False)
    assert carried(copy, backbone=1.0, head=3.0) == {"backbone"}


def test_a_large_tensor_is_not_held_while_it_travels() -> None:
    copy, sizes = MasterCopy(TYPES), {"weight": LARGE // 8, "bias": LARGE // 8 - 1}
    first, trained = ({KEY: {name: np.full(size, value) for name, size in sizes.items()}} for value in (1.0, 2.0))
    copy.take(ReplicaPart(first), fast_forward=False)
    content, _ = copy.carry(ReplicaPart(trained), "none")
    assert content.replica.modules[KEY].keys() == {"weight", "bias"}
    assert copy.modules[KEY].keys() == {"bias"}
    copy.take(ReplicaPart(), fast_forward=True)
    assert copy.modules[KEY]["weight"] is trained[KEY]["weight"]
    assert copy.carry(ReplicaPart(trained), "none")[0].replica.modules[KEY].keys() == {"bias"}  # all are as they were


def test_a_small_tensor_does_not_hold_the_whole_answer_that_brought_it() -> None:
    copy, answer = MasterCopy(TYPES), np.zeros(LARGE // 8 + 2)
    copy.take(ReplicaPart({KEY: {"weight": answer[2:], "bias": answer[:2]}}), fast_forward=False)
    held = weakref.ref(answer)
    del answer
    copy.carry(ReplicaPart({KEY: {"weight": np.ones(LARGE // 8), "bias": np.zeros(2)}}), "none")
    assert held() is None
    assert copy.modules[KEY].keys() == {"bias"}


def test_what_was_pushed_is_the_masters_only_after_a_fast_forward() -> None:
    copy = MasterCopy(TYPES)
    copy.take(part(backbone=1.0, head=1.0), fast_forward=False)
    assert carried(copy, backbone=1.0, head=2.0) == {"head"}
    copy.take(ReplicaPart(), fast_forward=False)  # refused, say
    assert carried(copy, backbone=1.0, head=2.0) == {"head"}
    copy.take(ReplicaPart(), fast_forward=True)
    assert carried(copy, backbone=2.0, head=2.0) == {"backbone"}
    copy.take(part(backbone=7.0), fast_forward=True)  # the reply's tensors are newer than the pushed ones
    assert carried(copy, backbone=7.0, head=3.0) == {"head"}


def test_who_has_forgotten_sends_all() -> None:
    copy = MasterCopy(TYPES)
    copy.take(part(backbone=1.0, head=1.0), fast_forward=False)
    copy.carry(part(backbone=1.0, head=2.0), "none")
    copy.forget()
    copy.take(ReplicaPart(), fast_forward=True)
    assert carried(copy, backbone=1.0, head=2.0) == {"backbone", "head"}


# --- in fewer bits


def test_a_released_vertex_is_sent_whole_again() -> None:
    copy = MasterCopy(TYPES)
    copy.take(part(backbone=1.0, head=1.0), fast_forward=False)
    copy.keep_only({KEY})
    assert carried(copy, backbone=1.0, head=2.0) == {"head"}
    copy.keep_only({("Network", 1)})
    assert carried(copy, backbone=1.0, head=1.0) == {"backbone", "head"}


def tensors(key: tuple[str, int] = KEY, **values: Any) -> ReplicaPart:
    return ReplicaPart({key: values})


def draw(size: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


@pytest.mark.parametrize("form", [*FORMATS])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_step_travels_and_both_ends_take_it_for_the_same(form: str, dtype: str) -> None:
    copy, base, trained = MasterCopy(TYPES), draw(300, dtype), draw(300, dtype, 1)
    copy.take(tensors(weight=base), fast_forward=False)
    content, rounded = copy.carry(tensors(weight=trained), form)
    step = content.steps[KEY]["weight"]
    assert not content.replica.modules
    taken = rounded.modules[KEY]["weight"]
    np.testing.assert_array_equal(taken, step.form.taken(step.codes.copy(), base))
    assert 0 < np.abs(taken - trained).max() < 0.6
    copy.take(
        ReplicaPart(), fast_forward=True
    )  # the master holds the rounded values, so the rounding error is part of the next step
    again, _ = copy.carry(tensors(weight=trained), form)
    step = again.steps[KEY]["weight"]
    assert np.abs(step.form.taken(step.codes, taken) - trained).max() < 0.1 * np.abs(taken - trained).max() + 2e-3


@pytest.mark.parametrize(
    ("name", "base", "trained"),
    [
        ("weight", draw(63), draw(63, seed=1)),
        ("weight", np.zeros((0, 9), np.float32), np.ones((0, 9), np.float32)),
        ("weight", np.arange(100), np.arange(100) + 1),
        ("weight", np.zeros(100, bool), np.ones(100, bool)),
        ("weight", draw(100), np.full(100, np.nan, np.float32)),
        ("weight", draw(100), np.full(100, np.inf, np.float32)),
        ("weight", draw(100, "float64"), np.full(100, 1e300)),
        ("weight", np.float16([65_000, *[60_000] * 99]), np.float16([65_504, *[-60_000] * 99])),  # rounds to infinity
        ("sum", draw(100), draw(100, seed=1)),
        ("running_var", draw(100), draw(100, seed=1)),
    ],
)
def test_what_may_not_be_rounded_travels_by_value(name: str, base: np.ndarray, trained: np.ndarray) -> None:
    copy = MasterCopy(TYPES)
    copy.take(tensors(**{name: base}), fast_forward=False)
    content, rounded = copy.carry(tensors(**{name: trained}), "int8")
    assert not content.steps
    assert not rounded
    assert content.replica.modules[KEY][name] is trained


def test_the_users_own_g_sees_values() -> None:
    copy, key = MasterCopy(TYPES), ("Own", 0)
    copy.take(tensors(key, weight=draw(100)), fast_forward=False)
    assert copy.carry(tensors(key, weight=draw(100, seed=1)), "int8")[0].replica.modules[key].keys() == {"weight"}


def test_what_the_master_never_sent_and_what_did_not_change_are_no_steps() -> None:
    copy, base = MasterCopy(TYPES), draw(100)
    content, _ = copy.carry(tensors(weight=base), "int8")
    assert content == PushContent(tensors(weight=base))
    copy.take(tensors(weight=base, bias=draw(3)), fast_forward=False)
    content, _ = copy.carry(tensors(weight=base.copy(), bias=draw(3, seed=1)), "int8")
    assert (content.replica.modules[KEY].keys(), content.steps) == ({"bias"}, {})


GATHERED = ("Gathered", 0)


def gathered(weight: float, mean: float = 0.0) -> ReplicaPart:
    return ReplicaPart({GATHERED: {"weight": np.full(LARGE, weight), "mean": np.full(2, mean)}})


def held_by(copy: MasterCopy, *values: float) -> Unmerged:
    copy.take(gathered(*values), fast_forward=False)
    return Unmerged(copy)


def sent(unmerged: Unmerged, copy: MasterCopy, trained: ReplicaPart) -> tuple[float, float]:
    """Push a replica; return (its weight, its mean) as they are sent."""
    part = unmerged.push(trained)
    copy.carry(part, "none")
    unmerged.pushed(part)
    return part.modules[GATHERED]["weight"][0], part.modules[GATHERED]["mean"][0]


def test_a_push_leaves_out_the_steps_that_wait_for_the_end_of_their_round() -> None:
    copy = MasterCopy(TYPES)
    unmerged = held_by(copy, 10.0)
    assert sent(unmerged, copy, gathered(13.0, 1.0)) == (13.0, 1.0)
    unmerged.answered(gathered=0, open_round=0)
    assert sent(unmerged, copy, gathered(15.0, 2.0)) == (12.0, 2.0)  # 3 of the 5 steps were pushed before
    unmerged.answered(gathered=0, open_round=0)
    assert unmerged.on(gathered(10.0)).modules[GATHERED]["weight"][0] == 15.0
    unmerged.answered(gathered=-1, open_round=1)  # a reply without a push: round 0 has ended
    assert unmerged.on(gathered(20.0)).modules[GATHERED]["weight"][0] == 20.0


def test_a_push_that_came_too_late_for_its_round_waits_for_the_next() -> None:
    copy = MasterCopy(TYPES)
    unmerged = held_by(copy, 10.0)
    sent(unmerged, copy, gathered(13.0))
    unmerged.answered(gathered=0, open_round=0)
    sent(unmerged, copy, gathered(15.0))
    unmerged.answered(gathered=1, open_round=1)  # 3 are merged, 2 are not
    assert unmerged.on(gathered(11.0)).modules[GATHERED]["weight"][0] == 13.0
    unmerged.answered(gathered=-1, open_round=1)
    assert unmerged.on(gathered(11.0)).modules[GATHERED]["weight"][0] == 13.0


def test_a_worker_that_begins_anew_forgets_its_steps() -> None:
    copy = MasterCopy(TYPES)
    unmerged = held_by(copy, 10.0)
    sent(unmerged, copy, gathered(13.0))
    unmerged.answered(gathered=0, open_round=0)
    unmerged.keep_only({GATHERED})
    assert unmerged.push(gathered(13.0)).modules[GATHERED]["weight"][0] == 10.0
    unmerged.keep_only(set())
    assert unmerged.push(gathered(13.0)).modules[GATHERED]["weight"][0] == 13.0
    unmerged.forget()
    assert unmerged.push(gathered(13.0)).modules[GATHERED]["weight"][0] == 13.0


def test_rounding_stays_with_the_worker() -> None:
    """A compressed push arrives as 12 instead of 13, so 1 of the 3 steps is pushed later."""
    copy = MasterCopy(TYPES)
    unmerged = held_by(copy, 10.0)
    unmerged.push(gathered(13.0))
    assert unmerged.pushed(gathered(12.0)).modules[GATHERED]["weight"][0] == 12.0
    unmerged.answered(gathered=0, open_round=0)
    assert unmerged.push(gathered(13.0)).modules[GATHERED]["weight"][0] == 11.0

"""Differences between two masters of a run: those that are allowed, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gridml
from gridml.model.graph import Graph
from master.state.options import RESUME, described
from master.store.settings import Settings
from master.store.spec import FIXED, differences, tensor_differences
from master.store.versions import initial

torch = pytest.importorskip("torch")


def test_what_must_not_change_is_no_option_of_resume() -> None:
    assert FIXED.keys() == {"seed", "placement"}
    changeable = [each.field for each in described(Settings, RESUME)]
    assert not FIXED.keys() & {*changeable} and {"workers", "epochs", "silent_s"} < {*changeable}


def test_differences_are_said_in_words() -> None:
    then = {"data": {"Image.pixels": "a" * 64, "Image.old": "b" * 64}, "order": {"seed": 3}}
    now = {"data": {"Image.pixels": "c" * 64}, "order": {"seed": 3, "shuffle": "all"}}
    assert differences(then, then) == []
    assert differences(then, now) == [
        "Image.pixels holds other values than then (SHA-256 aaaaaaaaaaaa, now cccccccccccc)",
        f"Image.old was {'b' * 64}, and is None",
        "shuffle was None, and is all",
    ]


def test_another_overlap_is_another_run() -> None:
    then, now = ({"data": {}, "order": {"seed": 3, "overlap": overlap}} for overlap in (True, False))
    assert differences(then, now) == ["overlap was True, and is False"]
    assert differences(now, now) == []


def network(width: int) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (lambda: network(3), []),
        (
            lambda: network(4)[:1],
            [
                "Network/0/model/0.weight was float32 (3, 2), and is float32 (4, 2)",
                "Network/0/model/0.bias was float32 (3,), and is float32 (4,)",
                *(f"Network/0/model/1.{name} was float32 (3,), and is not there" for name in ("weight", "bias")),
                *(f"Network/0/model/1.running_{name} was float32 (3,), and is not there" for name in ("mean", "var")),
                "Network/0/model/1.num_batches_tracked was int64 (), and is not there",
            ],
        ),
        (lambda: network(3).double()[:1].append(torch.nn.BatchNorm1d(3)), 2),
        (lambda: network(3).append(torch.nn.Linear(3, 1)), 2),
    ],
)
def test_tensors_that_a_program_makes_otherwise_are_named(now: Callable[[], Any], expected: list[str] | int) -> None:
    def graph(factory: Callable[[], Any]) -> Graph:
        class Network(gridml.Vertex):
            model = gridml.module(factory)

        made = Graph()
        made.add(Network)
        return made

    found = tensor_differences(graph(now), initial(graph(lambda: network(3)), 0))
    assert (len(found) if isinstance(expected, int) else found) == expected

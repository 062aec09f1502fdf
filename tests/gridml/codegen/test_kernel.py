"""Kernels as source: what is written once, and when it is written anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gridml.codegen.kernel import kernel_of
from gridml.model.loading import load
from tests.support.stage_programs import stages_in

PROGRAM = """
import math
import gridml

RATE, POWER = 0.5, 2

def scaled(x: float) -> float:
    return x * POWER

class Item(gridml.Vertex):
    total = gridml.array("float64")
    aggregate = gridml.add()

class User(gridml.Vertex):
    mass = gridml.array("float64", mutable=True)
    likes = gridml.edge(Item)

@gridml.exchange(over=User)
def share(user: User, item: Item) -> None:
    item.total += RATE * scaled(user.mass) + math.pi

def graph():
    return gridml.Graph()

program = gridml.Program(graph, [gridml.MiniBatch([share])], None, epochs=1)
"""


def test_a_kernel_is_written_anew_only_if_a_number_that_it_reads_has_changed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = load(tmp_path / "program.py")
    (stage,) = stages_in(program)
    module: dict[str, Any] = program.graph.__globals__
    first = kernel_of(stage)
    assert kernel_of(stage) is first and kernel_of(stage, exact=True) is not first
    module["RATE"] = 0.25
    changed = kernel_of(stage)
    assert dict(first.numbers)["RATE"] == 0.5 and dict(changed.numbers)["RATE"] == 0.25
    assert changed.text == first.text
    module["POWER"] = 3  # a constant of a function that is called
    assert kernel_of(stage).text != first.text
    module["POWER"], module["RATE"] = 2, 0.5
    assert kernel_of(stage) is first

"""The source of a program that is defined in the cells of a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from gridml.api.program_file import source_of_cells
from gridml.errors import ProgramError


def run_cells(cells: list[str]) -> dict[str, Any]:
    """Return the namespace of a kernel after these cells; a cell that fails stops at its error."""
    namespace: dict[str, Any] = {}
    for cell in cells:
        try:
            exec(cell, namespace)
        except ZeroDivisionError:
            continue
    return namespace


def remade(cells: list[str], name: str = "program", more: Mapping[str, Any] = {}) -> tuple[str, dict[str, Any]]:
    source = source_of_cells(cells, name, {**run_cells(cells), **more})
    made: dict[str, Any] = {}
    exec(source, made)
    return source, made


def test_what_a_program_needs_is_taken_and_nothing_else() -> None:
    cells = [
        "import math, os\nRATE = 0.5; OTHER = 2",
        "raised = []\ndef helper():\n    return RATE + math.pi\nraised.append(print)",
        "class Network:\n    size = RATE\n    def g(self):\n        return helper()",
        "def f():\n    return Network().g()\nprogram = [f, Network.size]",
        "print('begins a run', f())",
    ]
    source, made = remade(cells)
    assert made["program"][0]() == 0.5 + math.pi and made["program"][1] == 0.5
    assert "begins a run" not in source and "OTHER" not in source and "raised" not in source


def test_a_statement_sees_what_was_bound_before_it_and_a_function_what_was_bound_last() -> None:
    cells = ["x = 1", "y = x + 1", "x = 'later'", "def f():\n    return x\nprogram = (y, f)"]
    _, made = remade(cells)
    assert made["program"][0] == 2 and made["program"][1]() == "later"


def test_a_cell_that_is_run_again_counts_as_it_was_last() -> None:
    cells = [f"class Network:\n    width = {width}" for width in ("1", "1 / 0", "3")]
    cells.insert(1, "program = lambda: Network.width")
    source, made = remade(cells)
    assert made["program"]() == 3 and "1 / 0" not in source


@pytest.mark.parametrize(
    "change",
    [
        "config['rate'] = 2",
        "config.update(rate=2)",
        "config |= {'rate': 2}",
        "for key in config:\n    config[key] = 2",
    ],
)
def test_what_changes_a_value_is_taken_too(change: str) -> None:
    _, made = remade(["config = {'rate': 1}", change, "def f():\n    return config\nprogram = f"])
    assert made["program"]() == {"rate": 2}


def test_decorators_comprehensions_and_types_named_before_they_are_made() -> None:
    cells = [
        "from __future__ import annotations\ndef keep(f):\n    return f",
        "sizes = [2, 3]\ntotal = sum(size * factor for size in sizes for factor in [len(sizes)])",
        "@keep\ndef f(network: Network) -> None:\n    pass\nedge = 'Network'",
        "class Network:\n    pass",
        "program = (f, edge, total)",
    ]
    source, made = remade(cells)
    assert made["program"][2] == 10 and "class Network" in source
    assert source.index("from __future__") < source.index("def keep")


def test_names_that_no_cell_binds() -> None:
    cells = ["program = lambda: (m.pi, limit)"]
    _, made = remade(cells, more={"m": math, "limit": 3})
    assert made["program"]() == (math.pi, 3)
    with pytest.raises(ProgramError, match="the program program needs limit, and no cell that was run defines limit"):
        remade(cells, more={"m": math, "limit": object()})


def test_cells_that_no_python_reads_are_left_out() -> None:
    assert "what" not in source_of_cells(["what is this?", "program = 1"], "program", {"program": 1})

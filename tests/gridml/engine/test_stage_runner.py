"""The runner of stages: what it hands to kernels, and how changes come into force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridml.codegen.kernel import adder
from gridml.engine.stage_runner import MAX_ROWS_PER_END, StageRunner, distinct, stages_of
from gridml.model.batch import Rows
from gridml.model.chunk import ChunkEdges
from gridml.model.loading import load
from gridml.model.phases import Stages
from gridml.model.schedule import Progress
from tests.support.stage_programs import EDGE, PROGRAM, TYPES, stage_text


@pytest.mark.parametrize("rows", [10, 10 * MAX_ROWS_PER_END + 1])
def test_ends_are_distinct_and_ascend(rows: int) -> None:
    rng = np.random.default_rng(rows)
    ends = [rng.integers(0, rows, n).astype(np.int32) for n in (3, 0, 7)]
    found = distinct(ends, rows)
    assert found.dtype == np.int64
    assert found.tolist() == sorted({*np.concatenate(ends).tolist()})


def test_no_ends_are_distinct() -> None:
    assert distinct([np.empty(0, np.int32)], 5).tolist() == []


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("step", [1, 2])
def test_a_mini_batch_sees_values_that_came_after_the_one_before_it(tmp_path: Path, plain: bool, step: int) -> None:
    """Columns are kept for a chunk; those of which a kernel needs a copy, as they are not contiguous, are not."""
    stage = stage_text("user.bias += item.q[0] + at.rate", EDGE, "exchange(over=User)")
    path = tmp_path / "program.py"
    path.write_text(TYPES + stage + PROGRAM.format(stages="stage", exact=True))
    program = load(path)
    assert isinstance(program.shape, Stages)
    types = program.types()
    q, rate, bias = np.ones((2, 3 * step), np.float32)[:, ::step], np.ones(1, np.float32), np.zeros(2, np.float32)
    users = Rows(types["User"], np.arange(2), {"bias": bias}, frozenset({"bias"}), torch=False)
    items = Rows(types["Item"], np.arange(2), {"q": q}, frozenset({"q"}), torch=False)
    at = Rows(types["At"], np.arange(1), {"rate": rate}, frozenset({"rate"}), torch=False)
    users.edges["rated"] = ChunkEdges("Item", np.array([0, 1]), weight=np.ones(2, np.float32))
    runner = StageRunner(program.shape, stages_of(program.shape, plain=plain), {"User": users, "Item": items, "At": at})
    runner.run(0, 2, Progress())
    q[1], rate[0] = 5, 3
    runner.run(0, 2, Progress())
    assert bias.tolist() == [1 + 1 + 1 + 3, 1 + 1 + 5 + 3]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float32", "float64"])
def test_a_compiled_addition_of_a_log_is_that_of_numpy_bit_for_bit(dtype: str) -> None:
    rng = np.random.default_rng(0)
    at, by = rng.integers(0, 50, 1_000), (100 * rng.normal(size=1_000)).astype(dtype)
    by[:5] = 120  # an int8 passes its bound, as in numpy
    mine, numpys = np.zeros(50, dtype), np.zeros(50, dtype)
    adder()(mine, at, by, 900)
    np.add.at(numpys, at[:900], by[:900])
    assert mine.tobytes() == numpys.tobytes()

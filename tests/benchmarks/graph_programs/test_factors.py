"""Matrix factorisation of the benchmarks: plain Python and compiled code agree, and few ratings mean a larger ridge."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gridml
from benchmarks.graph_programs import one_worker
from benchmarks.graph_programs.against_libmf import passes
from benchmarks.graph_programs.factors import Settings, program
from benchmarks.graph_programs.ratings import Kind, drawn
from gridml.engine.engine import Engine

RATINGS = drawn(60, 30, 1_500, 0, Kind(2, 0.3, 1.5))


def test_plain_python_and_compiled_code_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gridml, "MiniBatch", partial(gridml.MiniBatch, exact=True))
    found = []
    for plain in (True, False):
        monkeypatch.setattr(one_worker, "Engine", partial(Engine, plain=plain))
        worker = one_worker.OneWorker(program(RATINGS, Settings()))
        for _ in range(2):
            worker.run_pass()
        found.append(worker.values["Item"])
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-4)
    assert (found[0]["moved"] > 1).any()


def test_a_ridge_is_larger_with_few_ratings_and_no_step_goes_beyond_nothing() -> None:
    ridge = one_worker.OneWorker(program(RATINGS, Settings(rate=0.5, few=10.0))).values["Item"]["ridge"]
    count = np.bincount(RATINGS.item, minlength=RATINGS.items)
    assert ridge.max() <= 2 and (np.diff(ridge[np.argsort(count)]) <= 0).all()


def test_the_error_on_what_is_held_out_falls() -> None:
    found = [each.error for each in passes(RATINGS, Settings(), 0)]
    assert found[-1] < found[0]
    assert found[-1] < 0.9 * float(RATINGS.test_stars.std())

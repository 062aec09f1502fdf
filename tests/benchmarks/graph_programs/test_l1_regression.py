"""The l1 regressions of the examples end at the optimum, as the benchmark runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix, vstack

from benchmarks.graph_programs.l1_regression import ByStages, Data


def data(rows: int) -> Data:
    """Rows of 8 of 30 features that go together, and a last one, alone with a feature of its own."""
    rng = np.random.default_rng(rows)
    base = rng.normal(size=(rows, 1))
    x = np.where(rng.random((rows, 30)) < 0.25, base + rng.normal(size=(rows, 30)), 0)
    label = np.where(x[:, :5].sum(1) + rng.normal(size=rows) > 0, 1.0, -1.0)
    alone = np.zeros((1, 31))
    alone[0, 30] = 40.0  # its slope is above the penalty
    whole = vstack([csr_matrix(np.pad(x, ((0, 0), (0, 1)))), csr_matrix(alone)]).tocsr()
    return Data("few", whole, np.append(label, 1.0))


@pytest.mark.parametrize("rows", [60, 4_000])  # of the many, lr_pairs takes curvatures of pairs from some only
@pytest.mark.parametrize("name", ["lr_newton", "lr_pairs"])
def test_weights_are_optimal(tmp_path: Path, name: str, rows: int) -> None:
    given = data(rows)
    penalty = 0.05 * given.largest if rows == 60 else 15.0
    w = ByStages(tmp_path, name)(given.rows, csc_matrix(given.rows), given.label, penalty, 1e-9)
    slope = -given.rows.T @ (given.label / (1 + np.exp(given.label * (given.rows @ w))))
    worst = np.where(w == 0, np.maximum(np.abs(slope) - penalty, 0), np.abs(slope + penalty * np.sign(w)))
    assert worst.max() < 1e-6 * given.largest
    assert 3 < np.count_nonzero(w) < 31
    assert w[30] != 0

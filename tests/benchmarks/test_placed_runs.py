"""The savings of a placement are measured in real runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import placed_runs
from benchmarks.placed_runs import Sized, play
from gridml.placement.bipartite import Bipartite


def test_a_placed_run_is_exact_and_sends_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four disjoint groups of rows, on four workers."""
    monkeypatch.setattr(placed_runs, "SIMULATED", 4)
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(800), 5)
    group = rng.permutation(800) % 4
    graph = Bipartite.from_edges(rows, group[rows] * 200 + rng.integers(0, 200, len(rows)), (800, 800))
    path = tmp_path / "graph.npz"
    np.savez(path, indptr=graph.offsets, indices=graph.neighbours, shape=(graph.rows, graph.columns))
    sized = Sized(rows=800, epochs=2, batch=16, exec_s=0.001, life_s=60.0)
    by_chance, placed = (play(path, "simulated", order, sized, 2) for order in ("none", "parsa"))
    assert by_chance.exact and placed.exact
    assert by_chance.predicted is None and placed.predicted is not None and placed.predicted < 0.5
    assert placed.down < 0.6 * by_chance.down and 0 < placed.chunks <= by_chance.chunks

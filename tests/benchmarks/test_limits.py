"""The benchmark of limits drives a master that answers all waiting workers, in groups that fit into memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import limits
from gridml.carriers import directory
from master.run import MasterRun


def test_all_that_waits_is_answered_in_one_turn_however_little_memory_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[int] = []
    turn = limits.Spent.turn

    def watched(spent: limits.Spent, run: MasterRun) -> bool:
        happened = turn(spent, run)
        assert not run.parts.mailboxes.more
        versions.append(run.parts.store.replica.version)
        return happened

    monkeypatch.setattr(directory, "GROUP_BYTES", 2_500_000)
    monkeypatch.setattr(limits.Spent, "turn", watched)
    row = limits.measure(tmp_path, 1, 5)
    assert row["pushes"] >= limits.MIN_PUSHES
    assert row["pushes/s"] > 0 and 0 < row["replicas"] < 40
    assert max(late - early for early, late in pairwise(versions)) == 3  # of five pushes, two of which fit

"""The one worker of the benchmarks trains every vertex once a pass, and keeps what comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.graph_programs.one_worker import OneWorker, Reached, judged
from gridml.model.loading import load


def test_ratings_are_counted_once_a_pass(programs: Path) -> None:
    worker = OneWorker(load(programs / "factors.py"))
    before = worker.values["Item"]["q"].copy()
    for _ in range(2):
        worker.run_pass()
    shared = worker.values["Shared"]
    assert shared["passes"].tolist() == [2]
    assert shared["last_seen"].tolist() == [240 * 20]
    assert shared["seen"].tolist() == [0]
    assert (worker.graph.tables["User"].columns["visits"] == 2 * 20).all()
    assert (worker.values["Item"]["q"] != before).all()
    assert min(worker.worker_s, worker.master_s) > 0


def test_counts_of_words_are_those_of_the_topics_that_came_home(programs: Path) -> None:
    worker = OneWorker(load(programs / "topics.py"))
    for _ in range(3):
        worker.run_pass()
    edges = worker.graph.tables["Text"].edges["words"]
    assert (edges.fields["visits"] == 3).all()
    count = np.zeros_like(worker.values["Word"]["count"])
    np.add.at(count, (edges.targets, edges.fields["topic"]), 1)
    np.testing.assert_array_equal(worker.values["Word"]["count"], count)
    np.testing.assert_array_equal(worker.values["Corpus"]["count"][0], count.sum(0))


def test_a_line_says_when_the_error_is_first_as_low_with_medians_of_seeds() -> None:
    ours = [[Reached(1, 2.0 * t, 0.9, 1.0), Reached(2, 4.0 * t, 0.7, 2.0), Reached(3, 6.0 * t, 0.6)] for t in (1, 2, 3)]
    (line,) = judged("peer", "error", ours, [[Reached(10, 8.0, 0.7)]] * 3, 2, goal=0.7)
    assert (line["gridml: passes"], line["its CPU-s"], line["gridml/peer"]) == (2, 8.0, 1.0)
    assert (line["of seeds"], line["with a master"], line["goal"]) == ("0.50 to 1.50", 1.25, 0.7)
    (line,) = judged("peer", "error", ours, [[Reached(10, 8.0, 0.5)], *[[Reached(10, 8.0, 0.7)]] * 2], 2, goal=0.7)
    assert line["gridml: passes"] == "1 of 3 seeds not in 3"
    assert judged("peer", "error", ours[:1], [], 2, goal=0.7) == []

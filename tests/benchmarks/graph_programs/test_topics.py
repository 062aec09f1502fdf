"""The topic model of the benchmarks: plain Python, compiled code and threads draw the same topics."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gridml
from benchmarks.graph_programs import one_worker, texts
from benchmarks.graph_programs.against_tomotopy import module
from benchmarks.graph_programs.topics import Settings
from gridml.engine import stage_jobs
from gridml.engine.engine import Engine

TOPICS = 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS", str(TOPICS))
    monkeypatch.setattr(gridml, "MiniBatch", partial(gridml.MiniBatch, exact=True))
    for name in ("MIN_RUN_EDGES", "MIN_RUN_ELEMENTS"):
        monkeypatch.setattr(stage_jobs, name, 100)


@pytest.mark.parametrize("few", [0, 3])
def test_topics_are_the_same_on_threads_and_as_plain_python(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    found, program = texts.drawn(), module(TOPICS).program
    drawn = []
    for plain, threads in ((True, 1), (False, 1), (False, 4)):
        monkeypatch.setattr(one_worker, "Engine", partial(Engine, plain=plain, threads=threads))
        worker = one_worker.OneWorker(program(found, Settings(size=30, few=few), 0))
        for _ in range(3):
            worker.run_pass()
        topic = np.asarray(worker.graph.tables["Text"].edges["words"].fields["topic"])
        count = np.zeros_like(worker.values["Word"]["count"])
        np.add.at(count, (found.word, topic), 1)
        np.testing.assert_array_equal(worker.values["Word"]["count"], count)
        np.testing.assert_array_equal(worker.values["Corpus"]["count"][0], count.sum(0))
        drawn.append((topic.tobytes(), worker.values["Corpus"]["alpha"].tobytes()))
    assert len(set(drawn)) == 1

"""Every example runs end to end on two real workers and reaches its reference result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gridml import compute, datasets, load
from gridml.errors import DataError

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[2] / "examples"
GRIDML = Path(sys.executable).parent / "gridml"
Metrics = list[dict[str, Any]]


def gridml(*arguments: str | Path) -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run([GRIDML, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Metrics]:
    """Run an example, check that each epoch credited every vertex once, and return the metrics of each epoch."""

    def run_example(name: str) -> Metrics:
        gridml("run", EXAMPLES / name, "--workers", "2", "--run-dir", tmp_path / "run")
        report = json.loads(gridml("report", tmp_path / "run", "--json"))
        assert report["status"] == "finished"
        for epoch in report["epochs"]:
            assert (epoch["credited"], epoch["duplicated"], epoch["lost"]) == (report["vertices"], 0, 0)
        return [epoch["metrics"] for epoch in report["epochs"]]

    return run_example


def test_mnist_one_by_one(example: Callable[[str], Metrics]) -> None:
    try:
        datasets.mnist()
    except DataError as error:
        pytest.skip(str(error))
    found = [metrics["accuracy"] for metrics in example("mnist_one_by_one.py")]
    assert len(found) == 3
    assert found[-1] > 0.86  # 0.89 in practice; 0.1 untrained
    assert found[-1] > found[0]


def test_pagerank_by_f_is_the_power_iteration_after_every_superstep(example: Callable[[str], Metrics]) -> None:
    found = example(str(EXAMPLES.parent / "tests" / "programs" / "supersteps.py"))
    assert [metrics["steps"] for metrics in found] == list(range(1, 16))
    assert [metrics["steps_least"] for metrics in found] == list(range(1, 16))
    assert max(metrics["difference"] for metrics in found) < 1e-15  # ranks are about 5e-4
    assert found[-1]["total"] == pytest.approx(1.0, abs=1e-12)
    assert found[-1]["best"] == 0


def test_recommender_predicts_ratings_it_has_not_seen(example: Callable[[str], Metrics]) -> None:
    found = example("recommender.py")
    assert found[-1]["rmse_of_the_mean"] > 1.9
    assert found[-1]["rmse"] < 0.13  # the noise alone is 0.1
    assert found[-1]["rmse"] < found[0]["rmse"] / 2


def test_word_counts_are_exact(example: Callable[[str], Metrics]) -> None:
    (found,) = example("word_counts.py")
    assert found["counted"] == 4000 * 30
    assert found["miscounted"] == 0
    assert found["accuracy"] > 0.99


def available(load: Callable[[], object]) -> None:
    """Skip the test unless a data set can be had."""
    try:
        load()
    except DataError as error:
        pytest.skip(str(error))


def test_label_propagation_ends_by_itself_with_the_bits_of_one_process(
    example: Callable[[str], Metrics], tmp_path: Path
) -> None:
    available(partial(datasets.snap, "facebook"))
    found = example("label_propagation.py")
    alone = compute(EXAMPLES / "label_propagation.py")
    assert (len(found), found[-1]) == (alone.passes, alone.metrics)
    assert load(tmp_path / "run")["Person.label"].tobytes() == alone.arrays["Person.label"].tobytes()


def test_factors_of_movielens_predict_ratings_that_were_held_out(example: Callable[[str], Metrics]) -> None:
    available(datasets.movielens)
    found = [metrics["rmse"] for metrics in example("mf.py")]
    assert len(found) == 20
    assert found[-1] < 0.915  # 0.906 with one worker, 0.908 with four; 1.13 is the deviation of the ratings
    assert found[-1] < found[0] - 0.04


def test_topics_predict_the_second_halves_of_chapters(example: Callable[[str], Metrics]) -> None:
    available(datasets.king_james)
    found = [metrics["perplexity"] for metrics in example("lda.py")]
    assert len(found) == 15
    assert found[-1] < 1280  # 1209 with one worker
    assert found[-1] < 0.78 * found[0]

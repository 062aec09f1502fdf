"""Programs of compiled stages on real workers: one worker is a plain loop, and kills lose and repeat nothing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gridml
from chunk_model.parse import parse
from gridml.errors import ProgramError, UserCodeError
from gridml.model.order import EpochOrder
from gridml.protocol import bundle
from master.backends.script import Script, ScriptedLives
from master.launch import resume, start
from master.ports.environment import Environment
from master.store.reader import opened
from master.store.settings import Settings
from master.views.report import report
from tests.support.in_ledger import credits_of

pytestmark = pytest.mark.real

Pool = Callable[[Script | None], Environment]
EPOCHS = 4


class Stopped(Exception):
    """The test ends a master."""


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_loop(program: ModuleType, seed: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Return (p, q, rate) of a loop in numpy, with the same order of users and edges, and the same rounding."""
    g, f4 = program.graph(), np.float32
    p, q = (g.tables[name].columns[field].copy() for name, field in (("User", "p"), ("Item", "q")))
    edges = g.tables["User"].edges["rated"]
    mean, rate = (g.tables["Shared"].columns[name][0] for name in ("mean", "rate"))
    ridge = f4(program.RIDGE)
    for epoch in range(EPOCHS):
        for user in EpochOrder(len(p), seed, epoch, "block", None).vertices(0, len(p)).tolist():
            for edge in range(edges.offsets[user], edges.offsets[user + 1]):
                item = edges.targets[edge]
                error = edges.weight[edge] - mean
                for f in range(program.RANK):
                    error -= p[user, f] * q[item, f]
                for f in range(program.RANK):
                    a, b = p[user, f], q[item, f]
                    p[user, f] = a + rate * (error * b - ridge * a)
                    q[item, f] = b + rate * (error * a - ridge * b)
        rate = f4(float(rate) * 0.95)
    return p, q, rate


def final(root: Path) -> dict[str, np.ndarray]:
    return dict(bundle.decode((root / "final.safetensors").read_bytes())[1])


def test_one_worker_is_a_plain_loop_bit_for_bit_however_often_it_pushes(
    programs: Path, tmp_path: Path, pool: Pool
) -> None:
    p, q, rate = plain_loop(module_of(programs / "factors.py"), seed=5)
    pushes = set()
    for number, every in enumerate((None, 32)):
        settings = Settings(programs / "factors.py", workers=1, seed=5, epochs=EPOCHS, push_every=every)
        with start(settings, tmp_path / f"run{number}", pool(None)) as run:
            run.finish()
            pushes.add(sum(1 for _ in credits_of(run.ledger)))
            users = run.parts.spec.graph.tables["User"].columns["p"]
            np.testing.assert_array_equal(np.asarray(users), p)
        tensors = final(tmp_path / f"run{number}")
        np.testing.assert_array_equal(tensors["Item/q"], q)
        assert tensors["Shared/rate"].tolist() == [rate]
    assert len(pushes) == 2


def check_exact(root: Path, epochs: int) -> int:
    """Check that each pass counted every rating once, and visited every user once for each. Return the kills."""
    found, users, rated = report(root), 240, 20
    assert found.status == "finished"
    for epoch in found.epochs:
        metrics = epoch.metrics
        assert (epoch.credited, epoch.duplicated, epoch.lost) == (users, 0, 0)
        assert metrics["seen"] == users * rated
        assert metrics["passes"] == epoch.epoch
        assert metrics["least_visits"] == metrics["most_visits"] == epoch.epoch * rated
    assert len(found.epochs) == epochs
    return found.kills


@pytest.mark.parametrize("seed", range(3))
def test_a_pass_counts_every_rating_once_whatever_dies(programs: Path, tmp_path: Path, seed: int) -> None:
    """Workers that really train, on machines that live for a fifth of a pass of the cluster, under a virtual clock."""
    gridml.simulate(
        programs / "factors.py",
        workers=6,
        cost="t_x=0.5,t_s=1,push=0.2",
        lifetime="exponential(15s)",
        seed=seed,
        run_dir=tmp_path / "run",
    )
    assert check_exact(tmp_path / "run", 6) > 20


@pytest.mark.parametrize("lifetime", [None, "exponential(2.5s)"])
def test_many_workers_that_push_a_few_times_a_pass_end_where_one_does(
    programs: Path, tmp_path: Path, lifetime: str | None
) -> None:
    """An average of 16 workers, each of which trained a 16th of a pass, would be far behind."""
    errors = []
    for workers in (1, 16):
        run = gridml.simulate(
            programs / "factors.py",
            workers=workers,
            cost="t_x=0.5,t_s=0.1,push=0.02",
            lifetime=lifetime if workers > 1 else None,
            epochs=12,
            run_dir=tmp_path / f"run{workers}",
        )
        errors.append(run.report().epochs[-1].metrics["rmse"])
    assert errors[1] < 1.2 * errors[0]


def test_workers_and_a_master_that_are_killed(programs: Path, tmp_path: Path, pool: Pool) -> None:
    settings = Settings(programs / "factors.py", workers=2, seed=1, epochs=EPOCHS, push_every=32)
    script = ScriptedLives(2, parse("exponential(2s)"), seed=3, grace_s=1.0)
    environment = pool(script)

    def tick() -> None:
        if run.ledger.credited > 300:
            raise Stopped

    with start(settings, tmp_path / "run", replace(environment, tick=tick)) as run, pytest.raises(Stopped):
        run.finish()
    with resume(tmp_path / "run", environment) as resumed:
        resumed.finish()
    check_exact(tmp_path / "run", EPOCHS)


FAILS = """
@gridml.global_sync
def fail(shared: Shared) -> None:
    if shared.passes == 2:
        raise ValueError("no more")


program = gridml.Program(graph, [gridml.MiniBatch([learn], size=16, exact=True), cool, fail], evaluate, epochs=6)
"""


def test_a_global_sync_that_fails_ends_the_run_with_its_traceback(programs: Path, tmp_path: Path, pool: Pool) -> None:
    text = (programs / "factors.py").read_text().partition("program = ")[0] + FAILS
    (tmp_path / "fails.py").write_text(text)
    settings = Settings(tmp_path / "fails.py", workers=1, seed=1)
    with start(settings, tmp_path / "run", pool(None)) as run, pytest.raises(UserCodeError, match="no more") as failed:
        run.finish()
    assert 'raise ValueError("no more")' in failed.value.traceback_text
    closed = [epoch.epoch for epoch in report(tmp_path / "run").epochs if epoch.closed_s is not None]
    assert closed == [1]  # the second pass is not half ended


def test_what_cannot_be_compiled_is_told_before_anything_starts(programs: Path, tmp_path: Path, pool: Pool) -> None:
    text = (programs / "factors.py").read_text().replace("    user.visits += 1", "    user.visits = user.p")
    (tmp_path / "wrong.py").write_text(text)
    line = text[: text.index("    user.visits = user.p")].count("\n") + 1
    with pytest.raises(ProgramError, match=rf"^wrong\.py:{line}: user\.p is an array of shape \(8,\)"):
        start(Settings(tmp_path / "wrong.py", workers=1), tmp_path / "run", pool(None))
    assert not (tmp_path / "run" / "ledger.db").exists()


def recounted(root: Path, module: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """Return (counts of words recounted from the topics that came home, visits of each token)."""
    topic, visits = (np.load(root / "fields" / f"Text:words.{name}.npy") for name in ("topic", "visits"))
    counts = np.zeros((module.WORDS, module.TOPICS), np.int64)
    np.add.at(counts, (module.tokens()[1], topic), 1)
    return counts, visits


@pytest.mark.parametrize("seed", range(2))
def test_topics_come_home_and_counts_are_those_recounted_from_them(programs: Path, tmp_path: Path, seed: int) -> None:
    gridml.simulate(
        programs / "topics.py",
        workers=5,
        cost="t_x=0.5,t_s=1,push=0.2",
        lifetime="exponential(12s)",
        seed=seed,
        run_dir=tmp_path / "run",
    )
    module, found = module_of(programs / "topics.py"), report(tmp_path / "run")
    assert found.kills > 10
    counts, visits = recounted(tmp_path / "run", module)
    np.testing.assert_array_equal(final(tmp_path / "run")["Word/count"], counts)
    np.testing.assert_array_equal(final(tmp_path / "run")["Corpus/count"], counts.sum(0)[None])
    assert set(visits.tolist()) == {5}  # each token was drawn once a pass
    for epoch in found.epochs:
        assert (epoch.duplicated, epoch.lost) == (0, 0)
        assert (epoch.metrics["counted"], epoch.metrics["apart"]) == (len(visits), 0)
    with opened(tmp_path / "run") as ledger:
        rows = ledger.execute("SELECT facts FROM events WHERE topic = 'totals' ORDER BY rowid").fetchall()
    assert [json.loads(facts)["totals"] for (facts,) in rows] == [{"Corpus.drawn": len(visits)}] * 5


def test_one_worker_draws_the_same_topics_however_often_it_pushes(programs: Path, tmp_path: Path, pool: Pool) -> None:
    found = []
    for number, every in enumerate((None, 16)):
        settings = Settings(programs / "topics.py", workers=1, seed=5, push_every=every)
        with start(settings, tmp_path / f"run{number}", pool(None)) as run:
            run.finish()
        found.append(recounted(tmp_path / f"run{number}", module_of(programs / "topics.py"))[0])
    np.testing.assert_array_equal(*found)

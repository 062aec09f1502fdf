"""Spot checks: other workers repeat a share of the pushes. Honest runs stay exact without accusations, and liars are
found."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Snapshot
from gridml.engine.rng_state import RngState
from gridml.errors import UsageError
from gridml.model.chunk import Chunk
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol.push import ReplicaPart
from gridml.protocol.worker_state import WorkerOptions
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.result import verify_credits
from master.simulation.scenario import Chances, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.views.report import report
from remote.session import SessionOptions
from remote.stepped import SteppedEngine, SteppedWorker, Trainer

COSTS = Costs(exec_s=0.01, start_s=0.5, push_s=0.02, boot_s=1.0)
HOSTILE = "w1"
UNREPEATABLE = """
    import secrets
    import numpy as np
    import gridml


    class Point(gridml.Vertex):
        value = gridml.array("float64", (50,))
        aggregate = gridml.stale_mean()


    class Sample(gridml.Vertex):
        point = gridml.edge(Point)


    @gridml.update(batch=10)
    def train(samples: gridml.Batch[Sample], point: gridml.Batch[Point]) -> None:
        point.value += np.random.default_rng(secrets.randbits(64)).normal(size=point.value.shape)


    def graph() -> gridml.Graph:
        g = gridml.Graph()
        g.add(Point, value=np.ones((1, 50)))
        g.add(Sample, point=np.zeros(1000, np.int64))
        return g


    program = gridml.Program(graph, train, epochs=2)
"""


class Drifter(SteppedEngine):
    """An engine that trains, and pushes a step of the honest length in another direction, which no bound on lengths
    detects. With `careful` it is honest when it can see that others train the same."""

    def __init__(self, program: Program, *, careful: bool) -> None:
        super().__init__(program, RngState("drifter", torch=program.uses_torch))
        self._careful = careful
        self._forgot = self._honest = False
        self._base: dict[str, np.ndarray] = {}

    def begin(self, chunk: Chunk) -> None:
        self._honest, self._forgot = self._careful and self._forgot, False
        super().begin(chunk)

    def forget_optimisers(self) -> None:
        self._forgot = True
        super().forget_optimisers()

    def _take(self, newest: ReplicaPart, pushed: Snapshot | None, live: int) -> None:
        for tensors in newest.modules.values():
            self._base.update({name: values.copy() for name, values in tensors.items()})
        super()._take(newest, pushed, live)

    def wire(self, snapshot: Snapshot) -> ReplicaPart:
        part = super().wire(snapshot)
        modules = {
            key: {name: self._pushed(name, v) for name, v in tensors.items()} for key, tensors in part.modules.items()
        }
        return ReplicaPart(modules, part.rows)

    def _pushed(self, name: str, values: np.ndarray) -> np.ndarray:
        base = self._base.get(name, values)
        if not self._honest and values.dtype.kind == "f":
            direction = np.random.default_rng(values.size).normal(size=values.shape)
            direction *= np.linalg.norm(values - base) / np.linalg.norm(direction)
            values = (base + direction).astype(values.dtype)
        self._base[name] = values.copy()
        return values


class Company:
    """A trainer of honest workers on two machines, and on a third one of workers that drift, and leave after `chunks`
    if given."""

    def __init__(self, source: Path, *, careful: bool, chunks: int | None = None) -> None:
        self._honest, self._source, self._careful = Trainer(source, COSTS), source, careful
        self._chunks = chunks

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> SteppedWorker:
        if options.worker in ("w2", "w3") or (options.worker != HOSTILE and self._chunks is None):
            return self._honest(options, mailbox, clock, speed)
        chunks = self._chunks or options.chunks
        chosen = SessionOptions(options.worker, options.kind, chunks, options.patience_s, self._source)
        engine = Drifter(load(self._source), careful=self._careful)
        return SteppedWorker(chosen, engine, mailbox, clock, COSTS, speed)


def play(
    file: Path,
    root: Path,
    trainer: Trainer | Company,
    share: float,
    *,
    chunk: int = 100,
    epochs: int | None = None,
    script: Script | None = None,
    **wrong: object,
) -> list[str]:
    """Play a run to its end, check that it is exact, and return the results of its spot checks."""
    scenario = replace(Scenario(script or Steady(3), COSTS), **wrong)  # type: ignore[arg-type]
    settings = Settings(
        file,
        "simulated",
        3,
        epochs=epochs,
        chunk=chunk,
        push_every=chunk // 2,
        options=SimulatedOptions(None, None),
        spot_checks=share,
    )
    play_scenario(settings, scenario, root, trainer=trainer)
    exact = verify_credits(root)
    assert exact.finished == exact.epochs
    with opened(root) as db:
        return [text for (text,) in db.execute("SELECT text FROM events WHERE topic = 'spot check' ORDER BY rowid")]


def quarantined(root: Path) -> dict[str, str]:
    with opened(root) as db:
        return dict(db.execute("SELECT worker, reason FROM quarantined"))


@pytest.mark.parametrize(
    ("name", "chunk"), [("perceptron", 100), ("mixture", 100), ("books", 4), ("tally", 2), ("twins", 20), ("ring", 3)]
)
def test_honest_runs_of_any_program_are_exact_without_outliers(
    name: str, chunk: int, tmp_path: Path, programs: Path
) -> None:
    file, root = programs / f"{name}.py", tmp_path / "run"
    checks = play(file, root, Trainer(file, COSTS), 0.5, chunk=chunk)
    assert len(checks) == report(root).repetitions > 0
    assert not quarantined(root)
    assert not any("no two repetitions agree" in check for check in checks)


def test_honest_runs_with_deaths_and_bad_mail_and_dying_masters_are_exact(tmp_path: Path, programs: Path) -> None:
    file, root = programs / "perceptron.py", tmp_path / "run"
    script = ScriptedLives(3, Exponential(8.0), 1)
    faults = Chances(lose=0.02, repeat=0.05, truncate=0.02, corrupt=0.02, delay_s=0.5)
    checks = play(file, root, Trainer(file, COSTS), 0.3, script=script, faults=faults, crash_every_s=4.0)
    assert checks
    assert not quarantined(root)


def test_without_repeatability_of_f_there_are_no_accusations(tmp_path: Path) -> None:
    file, root = tmp_path / "random_walk.py", tmp_path / "run"
    file.write_text(textwrap.dedent(UNREPEATABLE))
    checks = play(file, root, Trainer(file, COSTS), 0.3)
    assert any("no two repetitions agree" in check for check in checks)
    assert not quarantined(root)


def test_no_honest_worker_is_quarantined_once_steps_are_tiny(tmp_path: Path, programs: Path) -> None:
    """A network that fits its data takes tiny steps, but for a batch now and then, whose momentum makes several long
    ones."""
    file, root = programs / "perceptron.py", tmp_path / "run"
    play(file, root, Trainer(file, COSTS), 0.0, chunk=64, epochs=36)
    assert not quarantined(root)


@pytest.mark.parametrize("careful", [False, True])
def test_a_drift_as_long_as_honest_steps_is_found(careful: bool, tmp_path: Path, programs: Path) -> None:
    file, root = programs / "perceptron.py", tmp_path / "checked"
    if not careful:  # without checks the careful one does the same
        play(file, tmp_path / "run", Company(file, careful=careful), 0.0, chunk=64, epochs=12)
        assert not quarantined(tmp_path / "run"), "no bound on lengths can tell"
    epochs = 24 if careful else 12  # of 40 repetitions one in ten shows a careful one, of 80 all of six seeds
    play(file, root, Company(file, careful=careful), 0.5, chunk=64, epochs=epochs)
    (reason,) = quarantined(root).values()
    assert quarantined(root).keys() == {HOSTILE}
    assert "spot checks" in reason


def test_nothing_is_checked_unless_it_is_asked_for(tmp_path: Path, programs: Path) -> None:
    file = programs / "perceptron.py"
    assert not play(file, tmp_path / "run", Trainer(file, COSTS), 0.0)


def test_a_single_worker_is_not_checked(tmp_path: Path, programs: Path) -> None:
    file = programs / "perceptron.py"
    assert not play(file, tmp_path / "run", Trainer(file, COSTS), 0.5, script=Steady(1))


@pytest.mark.parametrize("share", [-0.1, 0.6, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(share: float, programs: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a share from 0 to 0\.5"):
        Settings(programs / "perceptron.py", spot_checks=share)


def test_a_liar_that_never_stays_is_found_by_its_machine(tmp_path: Path, programs: Path) -> None:
    """The workers of the hostile machine leave after two chunks, before they can be judged."""
    file, root = programs / "perceptron.py", tmp_path / "run"
    play(file, root, Company(file, careful=False, chunks=2), 0.5, chunk=64, epochs=12)
    names = quarantined(root)
    with opened(root) as db:
        machines = dict(db.execute("SELECT worker, machine FROM workers"))
    assert names
    assert {machines[name] for name in names} == {machines[HOSTILE]}

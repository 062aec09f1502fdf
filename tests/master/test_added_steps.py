"""Workers that share each batch: their steps are added, and together train as a plain loop does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.engine.pace import used_settings
from gridml.model.loading import load
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from remote.stepped import Trainer

VERTICES = 9_600
PROGRAM = Path(__file__).parents[1] / "programs" / "steep.py"


def played(
    root: Path, workers: int, *, push_s: float = 0.005, slower: float = 1.0, speeds: float = 0.3, kills: bool = False
) -> tuple[float, float, int]:
    """Play a run in which a vertex takes 3 ms times `slower`, and a push `push_s` times that. `speeds` is the deviation
    of the logarithm of machines' speeds. Return (excess error, duration, pushes of at most one batch)."""
    costs = Costs(exec_s=0.003 * slower, start_s=0.1, push_s=push_s * slower, boot_s=1.0)
    script: Script = Steady(workers)
    if kills:
        script = ScriptedLives(workers, Exponential(3.0), 1, grace_s=0.5, late=0)
    machines = MachineSpeeds(sigma=speeds) if workers > 1 else MachineSpeeds()
    scenario = Scenario(script, costs, machines, travel_s=0.0005, turn_s=0.001, seed=0)
    settings = Settings(PROGRAM, "simulated", workers, steps_each=0, options=SimulatedOptions(None, None))
    play_scenario(settings, scenario, root, trainer=Trainer(PROGRAM, costs, 0))
    with opened(root) as ledger:
        *_, (metrics, closed_s) = ledger.execute("SELECT metrics, closed_s FROM epochs ORDER BY epoch")
        (began_s,) = ledger.execute("SELECT min(submitted_s) FROM workers").fetchone()
        (parts,) = ledger.execute("SELECT count(*) FROM credits WHERE stop - start <= 64").fetchone()
    return json.loads(metrics)["excess"], closed_s - began_s, parts


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("workers", [4, 16])
def test_workers_that_share_batches_train_as_one_does_in_less_time(tmp_path: Path, workers: int, kills: bool) -> None:
    alone, alone_s, _ = played(tmp_path / "loop", 1)
    added, added_s, parts = played(tmp_path / "added", workers, kills=kills)
    assert added < alone
    assert alone_s / added_s > workers / 4
    assert parts > VERTICES / 64


def test_where_pushes_are_dear_replicas_are_averaged(tmp_path: Path) -> None:
    *_, parts = played(tmp_path / "run", 4, push_s=0.3)
    assert parts < 100


def test_machines_of_any_speed_share_batches(tmp_path: Path) -> None:
    """If few fast workers averaged their replicas beside others, they would pull back what these add."""
    alone, *_ = played(tmp_path / "loop", 1)
    added, _, parts = played(tmp_path / "run", 8, speeds=1.5)
    assert added < alone
    assert parts > VERTICES / 64


def test_a_run_says_what_it_uses(tmp_path: Path) -> None:
    root = tmp_path / "run"
    played(root, 4, slower=12.0)
    with opened(root) as ledger:
        lines = [text for (text,) in ledger.execute("SELECT text FROM events WHERE topic = 'training' ORDER BY rowid")]
    program = load(PROGRAM)
    assert lines == [used_settings(program, 4, adds=True)[1], used_settings(program, 4, 16)[1]]
    assert "batch 16 of 64, whose steps are added, rate 0.05 of 0.2" in lines[1]


@pytest.mark.parametrize(
    ("old", "new", "adds"),
    [
        ("", "", True),
        ("aggregate = RULE", "aggregate = gridml.by_name({'*.bias': gridml.stale_mean()})", True),
        ("aggregate = RULE", "aggregate = gridml.mean()", False),
        ("aggregate = RULE", "aggregate = gridml.stale_mean(kappa=2)", False),
        ("aggregate = RULE", "aggregate = gridml.by_name({'*.bias': gridml.mean()})", False),
        ("batch=BATCH", 'batch=BATCH, rate="fixed"', False),
        ("batch=BATCH", "batch=BATCH, accumulate=2", False),
        ("nn.Linear(WIDTH, 1)", "nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))", False),
        (", partial(torch.optim.SGD, lr=0.2, momentum=0.9)", "", False),
        ("g.add(Network)", "np.arange(COUNT) % len(g.add(Network, 2))", False),  # not every worker trains both
    ],
)
def test_steps_are_added_only_where_all_train_the_same_weights_by_rates_that_may_change(
    tmp_path: Path, old: str, new: str, adds: bool
) -> None:
    file = tmp_path / "steep.py"
    text = PROGRAM.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    program = load(file)
    assert program.adds_steps(program.build(file)) is adds

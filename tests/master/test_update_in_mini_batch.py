"""A MiniBatch of one f is the program with f itself: the same leases, credits and versions, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.model.loading import load
from master.backends.script import ScriptedLives
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.store.spec import RunSpec, identity
from remote.stepped import Trainer

COSTS = Costs(exec_s=0.01, start_s=0.5, push_s=0.1, boot_s=0.5)
COLUMNS = {
    "leases": "id, epoch, start, stop, upto, worker, closed_s",
    "credits": "epoch, start, stop, lease, version",
    "versions": "version, sha256",
}


def played(file: Path, root: Path) -> dict[str, Any]:
    """Play a run whose workers die, and return what its ledger has, and what it has trained."""
    lives = ScriptedLives(3, Exponential(8.0), seed=2, gap_s=1.0, grace_s=1.0)
    settings = Settings(file, "simulated", 3, seed=1, push_every=40)
    world = play_scenario(settings, Scenario(lives, COSTS, seed=1), root, trainer=Trainer(file, COSTS, 1))
    with opened(root) as ledger:
        rows = {table: ledger.execute(f"SELECT {named} FROM {table}").fetchall() for table, named in COLUMNS.items()}
    program = load(file)
    spec = RunSpec(settings, program, program.build(file))
    fields = {path.name: path.read_bytes() for path in (root / "fields").glob("*.npy")}
    return {**rows, "kills": world.pool.tally.kills, "identity": identity(spec), "fields": fields}


@pytest.mark.parametrize(("name", "size"), [("counts", 10), ("perceptron", 32), ("ring", 2)])
def test_the_run_is_that_of_f_itself(name: str, size: int, programs: Path, tmp_path: Path) -> None:
    text = (programs / f"{name}.py").read_text()
    assert "(graph, train," in text
    alone = f"(graph, [gridml.MiniBatch([train], size={size})],"
    written = {"bare": text, "mini-batch": text.replace("(graph, train,", alone)}
    runs = []
    for kind, program in written.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / f"{name}.py").write_text(program)
        runs.append(played(folder / f"{name}.py", folder / "run"))
    assert runs[0] == runs[1] and (runs[0]["kills"] or name == "ring")

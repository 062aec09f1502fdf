"""A run over many networks: each chunk needs a few, workers hold only those, and credits are exact under kills."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.protocol import bundle
from gridml.protocol.worker_actions import KeepOnly
from master.backends.script import PlannedLife, Script, Steady
from master.launch import start
from master.ports.environment import Environment
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from remote.session import Session
from remote.stepped import Trainer
from tests.support.in_ledger import epochs_of

COUNT, EXPERTS, EPOCHS = 1920, 16, 3  # of tests/programs/experts.py


@dataclass(frozen=True)
class Killed(Script):
    """Three machines; the first two workers of one of them are killed."""

    slots = 3  # type: ignore[assignment]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 4.0 + 2 * k if slot == 0 and k < 2 else None)


@pytest.mark.real
def test_workers_hold_the_networks_of_their_leases_and_all_is_exact(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment]
) -> None:
    """f fails in a process that has more networks, and then the run fails."""
    settings = Settings(programs / "experts.py", workers=3, chunk=104, push_every=40)
    with start(settings, tmp_path / "run", pool(Killed())) as run:
        run.finish()
        last = json.loads(epochs_of(run.ledger)[-1]["metrics"])
        failures = run.ledger._db.execute("SELECT count(*) FROM failures").fetchone()[0]
    assert failures == 0
    exact = verify_credits(tmp_path / "run")
    assert exact.finished == exact.epochs == EPOCHS
    assert last["tallies"] == [EPOCHS * COUNT // EXPERTS] * EXPERTS
    assert last["visits"] == [EPOCHS, EPOCHS]
    assert last["factors"] == pytest.approx([-1.0, 1.0] * (EXPERTS // 2), abs=0.6), "who trains beside whom is chance"


def test_one_worker_that_drops_networks_trains_as_one_that_keeps_them(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: the state of the optimisers is kept."""
    source = tmp_path / "experts.py"
    source.write_text(
        (programs / "experts.py").read_text().replace("MAX_EXPERTS = 9", "MAX_EXPERTS = 10**9")
    )  # all share a process

    def trained(name: str) -> dict[str, np.ndarray[Any, Any]]:
        costs, root = Costs(exec_s=0.01, start_s=0.2, push_s=0.02, boot_s=0.5), tmp_path / name
        settings = Settings(source, backend="simulated", workers=1, seed=1, chunk=104, push_every=40)
        play_scenario(settings, Scenario(Steady(1), costs), root, trainer=Trainer(source, costs))
        return bundle.decode((root / "final.safetensors").read_bytes())[1]

    held: list[int] = []
    keep_only = Session._keep_only

    def watched(session: Session, action: KeepOnly) -> None:
        keep_only(session, action)
        held.append(len(session._engine._modules["Expert"]._made))

    with monkeypatch.context() as patched:
        patched.setattr(Session, "_keep_only", watched)
        left = trained("left")
    monkeypatch.setattr(Session, "_keep_only", lambda session, action: None)
    kept = trained("kept")
    assert max(held) <= 6
    for name, values in kept.items():
        np.testing.assert_array_equal(left[name], values, err_msg=name)

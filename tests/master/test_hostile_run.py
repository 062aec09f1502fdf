"""A hostile worker and two honest ones, in real processes: the run ends exact, finite, and hardly worse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.hostile import HONEST, Siege, besieged
from gridml.protocol import bundle
from master.store.settings import Settings
from tests.support.hostile_attacks import ATTACKS, REPLICAS

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "programs" / "small_lenet.py"


def settings(epochs: int, workers: int = HONEST + 1) -> Settings:
    return Settings(PROGRAM, workers=workers, epochs=epochs, seed=1)


def check_finite(root: Path) -> None:
    _, tensors = bundle.decode((root / "final.safetensors").read_bytes())
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())


def test_hostile_messages_of_every_sort_spoil_no_run(tmp_path: Path) -> None:
    siege = Siege(250, seed=1)
    # The attacks end with four fifths of the credits: a step backwards, of a length that an honest one could have, is
    # made up for in the rest. Of 3 or 4 epochs the rest was too short in one run of twenty.
    ended = besieged(settings(8), tmp_path / "run", siege)
    assert siege.sent.total() >= 200 and len(siege.sent) > 25
    assert ended.accuracy > 90.0
    check_finite(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_that_would_spoil_the_model_do_not(name: str, tmp_path: Path) -> None:
    siege = Siege(60, seed=1, attacks=[name])
    ended = besieged(settings(4), tmp_path / "run", siege)
    assert siege.sent[name] > 20
    assert ended.accuracy > 85.0  # zeros made 11, 1e30 ended the run
    check_finite(tmp_path / "run")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_hostile_messages_cost_less_than_half_a_point(tmp_path: Path) -> None:
    alone = besieged(settings(24, HONEST), tmp_path / "alone", None)
    siege = Siege(10_000, seed=1)
    ended = besieged(settings(24), tmp_path / "run", siege)
    assert siege.sent.total() >= 10_000 and siege.sent.keys() > ATTACKS.keys()
    assert ended.accuracy > alone.accuracy - 0.5
    check_finite(tmp_path / "run")

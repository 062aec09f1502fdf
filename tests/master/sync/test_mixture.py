"""All kinds of vertices in one program, on two real workers: counts are exact, and training converges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from tests.support.in_ledger import epochs_of


@pytest.mark.real
def test_a_program_of_every_kind_of_vertex(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment]
) -> None:
    settings = Settings(program=programs / "mixture.py", workers=2, chunk=64, push_every=16)
    with start(settings, tmp_path / "run", pool(None)) as run:
        run.finish()
        last = json.loads(epochs_of(run.ledger)[-1]["metrics"])
    assert last["miscounted"] == 0
    assert last["misposted"] == 0
    assert last["visits"] == [3, 3]
    assert last["weights"] == pytest.approx([1.0, -1.0], abs=0.1)

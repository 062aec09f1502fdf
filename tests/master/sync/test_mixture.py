"""All kinds of vertices in one program, on two real workers: what must be exact is exact, what trains converges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings


@pytest.mark.real
def test_a_program_of_every_kind_of_vertex(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment]
) -> None:
    settings = Settings(program=programs / "mixture.py", workers=2, chunk=64, push_every=16)
    with start(settings, tmp_path / "run", pool(None)) as run:
        run.finish()
        last = json.loads(run.ledger.epochs()[-1]["metrics"])
    assert last["miscounted"] == 0
    assert last["misposted"] == 0
    assert last["visits"] == [3, 3]
    assert last["weights"] == pytest.approx([1.0, -1.0], abs=0.1)

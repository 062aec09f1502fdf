"""Workers with kept chunks die, and kept files are damaged: every vertex is still counted once."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from master.backends.script import PlannedLife, Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings

pytestmark = pytest.mark.real
ROWS = 20_000
PROGRAM = f"""
import numpy as np
import gridml

class Total(gridml.Vertex):
    sums = gridml.array("int64", (64,))
    aggregate = gridml.add()

class Row(gridml.Vertex):
    values = gridml.array("int64", (64,))
    total = gridml.edge(Total)

@gridml.update(batch=64)
def train(rows: gridml.Batch[Row], total: Total) -> None:
    total.sums = total.sums + rows.values.sum(0)

def graph() -> gridml.Graph:
    g = gridml.Graph()
    values = np.random.default_rng(0).integers(0, 1000, ({ROWS}, 64))
    g.add(Row, values=values, total=g.add(Total, sums=np.zeros((1, 64), np.int64)))
    return g

def evaluate(total: Total) -> dict[str, list[int]]:
    return {{"sums": total.sums.tolist()}}

program = gridml.Program(graph, train, evaluate, epochs=4)
"""


class Dying(Script):
    """Two machines, one of which is taken away repeatedly."""

    slots = 2  # type: ignore[assignment]

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, 0.7 + 0.3 * (k % 3) if slot else None)


def test_rows_are_counted_once_whatever_becomes_of_what_was_kept(
    tmp_path: Path, pool: Callable[[Script], Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    monkeypatch.setenv("GRIDML_WORKER_CACHE", str(kept))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    turns, damaged = [0], []

    def damage() -> None:
        """Damage one kept payload at every twentieth turn of the master's loop: truncate it, or flip a bit."""
        turns[0] += 1
        files = sorted(kept.glob("*.chunk")) if turns[0] % 20 == 0 else []
        for victim in files[len(damaged) % len(files) :][:1] if files else ():
            with contextlib.suppress(FileNotFoundError):  # its worker has just removed a damaged file
                payload = bytearray(victim.read_bytes())
                payload[len(payload) // 2] ^= 1
                victim.unlink()
                victim.write_bytes(payload if len(damaged) % 2 else payload[:100])
                damaged.append(victim.name)

    environment = replace(pool(Dying()), tick=damage)
    with start(Settings(path, workers=2, chunk=2048), tmp_path / "run", environment) as run:
        run.finish()
    assert len(damaged) >= 2
    with sqlite3.connect(f"file:{tmp_path / 'run' / 'ledger.db'}?mode=ro", uri=True) as ledger:
        (metrics,) = ledger.execute("SELECT metrics FROM epochs WHERE epoch = 3").fetchone()
        down = ledger.execute("SELECT sum(bytes_down) FROM workers").fetchone()[0]
    wanted = 4 * np.random.default_rng(0).integers(0, 1000, (ROWS, 64)).sum(0)
    assert json.loads(metrics)["sums"] == wanted.tolist()
    assert down < 4 * ROWS * 64 * 8  # some of it was not sent again

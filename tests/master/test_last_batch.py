"""The vertices of an epoch beyond its whole batches, with real workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.errors import ProgramError
from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.reader import opened
from master.store.settings import Settings

pytestmark = pytest.mark.real
Make = Callable[[Script | None], Environment]


def finished(source: Path, root: Path, pool: Make, workers: int) -> Path:
    run = start(Settings(source, workers=workers, seed=5), root, pool(None))
    with run:
        run.finish()
    with opened(root) as ledger:
        assert ledger.execute("SELECT count(*) FROM failures").fetchone() == (0,)
    return root


@pytest.mark.parametrize("workers", [1, 3])
def test_no_single_row_reaches_a_batch_norm(tmp_path: Path, programs: Path, pool: Make, workers: int) -> None:
    """Batches of 37 leave one row of a thousand: the run of one worker failed on it."""
    source = tmp_path / "crumb.py"
    source.write_text((programs / "perceptron.py").read_text().replace("1000, 32, 3", "1000, 37, 3"))
    finished(source, tmp_path / "run", pool, workers)


def test_dropped_vertices_are_credited_but_not_trained(tmp_path: Path, programs: Path, pool: Make) -> None:
    source = tmp_path / "dropping.py"
    text = (programs / "counts.py").read_text()
    source.write_text(text.replace("batch=10", "batch=64, drop_last=True"))
    root = finished(source, tmp_path / "run", pool, 3)
    with opened(root) as ledger:
        (metrics,) = ledger.execute("SELECT metrics FROM epochs ORDER BY epoch DESC LIMIT 1").fetchone()
    whole = 3000 - 3000 % 64
    assert f'"counted": {3 * whole * 4}' in metrics


def test_an_epoch_without_a_whole_batch_is_not_dropped_in_silence(tmp_path: Path, programs: Path, pool: Make) -> None:
    source = tmp_path / "dropping.py"
    source.write_text((programs / "counts.py").read_text().replace("batch=10", "batch=4000, drop_last=True"))
    with pytest.raises(ProgramError, match="there are 3,000, and a batch has 4,000"):
        start(Settings(source, workers=1), tmp_path / "run", pool(None))

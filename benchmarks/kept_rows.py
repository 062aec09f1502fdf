"""Runs of two workers that train on 200,000 rows of 1 KB for three epochs, in several variants, in turn."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from benchmarks.arguments import sized

PROGRAM = Path(__file__).parent / "programs" / "kept_rows.py"
GRIDML = str(Path(sys.executable).with_name("gridml"))
ROWS, WIDTH = sized(200_000, 2_000), 256  # float32
CACHE = "GRIDML_WORKER_CACHE"
DOWN = "SELECT sum(bytes_down) FROM workers"

Outcome = tuple[float, float]


def played(ways: Sequence[str], play: Callable[[str, Path], Outcome], repeats: int) -> dict[str, list[Outcome]]:
    """Return `repeats` results of each way. `play` is called with a way and a folder that holds `rows.npy`."""
    outcomes: dict[str, list[Outcome]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="kept-rows-") as folder:
        values = open_memmap(Path(folder) / "rows.npy", "w+", np.float32, (ROWS, WIDTH))
        values[:] = np.random.default_rng(0).integers(0, 9, (ROWS, WIDTH))
        for _ in range(repeats):
            for way in ways:
                outcomes[way].append(play(way, Path(folder)))
                print(way, outcomes[way][-1], flush=True)
    return outcomes


def environment(folder: Path, cache: str | None, *, shared: bool) -> Mapping[str, str]:
    """Return the environment of a run. `folder` holds the rows, which chunks carry or, if `shared`, name. `cache` is
    the folder in which workers keep them; None: they keep none."""
    given = {**os.environ, "ROWS": str(folder / "rows.npy"), "SHARED": str(int(shared))}
    given.pop(CACHE, None)
    return given if cache is None else {**given, CACHE: cache}


def begun(run: Path) -> list[str]:
    """Return the command line that begins a run."""
    return [GRIDML, "run", str(PROGRAM), "--workers", "2", "--run-dir", str(run)]


def asked(run: Path, query: str) -> float:
    """Return one number of a run's ledger, 0 if there is none yet."""
    with contextlib.suppress(sqlite3.OperationalError):  # the run has not created its ledger yet
        ledger = sqlite3.connect(f"file:{run / 'ledger.db'}?mode=ro", uri=True)
        with contextlib.closing(ledger):
            return ledger.execute(query).fetchone()[0] or 0
    return 0

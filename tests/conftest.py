"""What several tests need: programs in files, and runs on real worker processes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from master.backends.base import Backend
from master.backends.local import Local
from master.backends.script import Script, Steady
from master.run import Outside
from master.rundir import RunDirectory
from master.settings import Settings

PROGRAMS = Path(__file__).parent / "programs"


def worker_script() -> str:
    """The console script of this environment's workers."""
    found = shutil.which("gridml-worker", path=str(Path(sys.executable).parent))
    assert found is not None, "gridml-worker is not installed beside this Python; run pip install -e ."
    return found


def local_pool(script: Script | None = None) -> Callable[[Settings, RunDirectory], Backend]:
    """A maker of local back ends that play `script`; without one nobody dies."""

    def make(settings: Settings, directory: RunDirectory) -> Backend:
        def command(worker: str) -> list[str]:
            return [
                worker_script(),
                f"--name={worker}",
                f"--program={settings.program}",
                f"--directory={directory.root}",
                f"--parent={os.getpid()}",
            ]

        return Local(command, script or Steady(settings.workers), directory.logs)

    return make


@pytest.fixture
def programs() -> Path:
    """The folder of the tests' own programs."""
    return PROGRAMS


@pytest.fixture
def pool() -> Callable[[Script | None], Outside]:
    """Makes what a run gets from outside: real worker processes that play a script."""
    return lambda script=None: Outside(local_pool(script))

"""Lines of the table, runs of `gridml`, and the memory in use on a device."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.table import Cell

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks" / "programs"
ALONE = "--alone"  # the option of a process that runs one part for another
LOOK_S = 0.2  # between two readings of the device's memory


@dataclass(frozen=True)
class Place:
    """The device to measure on, and how thoroughly."""

    device: str  #: torch's kind: "cuda", or "cpu" for a check that everything works
    tiny: bool  #: networks of a few thousand parameters
    quick: bool  #: every figure is measured once
    limit_s: float  #: after which no further line of learning is begun
    idle_mb: float  #: memory of the device in use before anything ran

    @property
    def name(self) -> str:
        """The model of the card."""
        if self.device != "cuda":
            return "the CPU"
        import torch

        return torch.cuda.get_device_name(0)


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    part: str
    measured: str
    result: str
    goal: str = ""
    met: bool | None = None  #: None: there is no goal

    @property
    def row(self) -> Mapping[str, Cell]:
        met = "" if self.met is None else "yes" if self.met else "no"
        return {"part": self.part, "measured": self.measured, "result": self.result, "goal": self.goal, "met": met}


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """The JSON document that it printed, or the last of several, one a line."""
        try:
            return json.loads(self.output)
        except json.JSONDecodeError:
            return json.loads(self.output.strip().splitlines()[-1])


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that imports gridml from this tree, installed or not."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **(more or {})}


def ran(module: str, *arguments: str, limit_s: float = 300.0, more: Mapping[str, str] | None = None) -> Ended:
    """Run `python -m module` with these arguments to its end. Raises TimeoutExpired after `limit_s`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment(more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


gridml = partial(ran, "gridml")


def alone(part: str, *arguments: Any) -> Any:
    """Call `run_alone` of a part in a process of its own, which has the device's context to itself; return its result.

    Raises RuntimeError with the end of its errors if it fails.
    """
    ended = ran("benchmarks.devices", ALONE, part, json.dumps(arguments))
    if ended.status:
        raise RuntimeError(f"{part} {arguments} ended with {ended.status}: {ended.errors[-3000:]}")
    return ended.json


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a temporary folder. Not tempfile's own: a worker that is killed late may still write there."""
    made = Path(tempfile.mkdtemp(prefix="devices-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@dataclass
class DeviceMemory:
    """The most memory in use on the device while the context is open, in MB beyond what was in use before."""

    before_mb: float = 0.0
    peak_mb: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> DeviceMemory:
        self.before_mb = used_mb()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.peak_mb = max(self.peak_mb, used_mb() - self.before_mb)


def used_mb() -> float:
    """Return the MB in use on the first device; 0 if there is no nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return float(done.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0.0


def wait_until(condition: Any, limit_s: float, every_s: float = 0.05) -> bool:
    """Return whether a condition became true within `limit_s`."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(every_s)
    return False


def loaded(path: Path) -> ModuleType:
    """Import a program as a module, for its network and its data."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def shown(values: Sequence[float], unit: str) -> str:
    """Return some figures with three digits each."""
    return f"{', '.join(f'{value:.3g}' for value in values)} {unit}"

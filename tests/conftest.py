"""Shared fixtures: programs in files, and runs on real worker processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Script, Steady
from master.ports.environment import Environment
from master.state.jobs import Backend
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from pools.pool import Pool, personal
from pools.release import NoCondor

# How fast values are drawn and tried says something of the machine alone, which others may use as well.
# `make verify` takes the profile `whole`. Planted faults that 100 examples of `test_exchange_properties.py` found
# were found by the 21st at the latest: a worker that keeps what it should drop, a master that merges for ended leases.
hypothesis_settings.register_profile("whole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.register_profile("gridml", hypothesis_settings.get_profile("whole"), max_examples=33)
hypothesis_settings.load_profile("gridml")

PROGRAMS = Path(__file__).parent / "programs"
# Pools, booted machines and foreign servers have their own timeouts, which a busy machine would exceed.
ALONE = (
    "ami/test_boot.py",
    "benchmarks/test_smallest_alone.py",
    "master/backends/condor",
    "master/backends/test_contract.py",
    "master/sftp/test_sshd.py",
    "pools",
    "remote/test_wrong_host_key.py",
)
_ROOT = Path(__file__).parent
_BEGAN_S = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="start no further test after this time")


def pytest_runtest_setup(item: pytest.Item) -> None:
    within_s = item.config.getoption("--within")
    if within_s is not None and time.monotonic() - _BEGAN_S > within_s:
        pytest.skip(f"not begun within {within_s:g} s")


def _is_alone(path: Path) -> bool:
    return any(path.is_relative_to(_ROOT / place) for place in ALONE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the collection of other files if `-m` selects tests that run alone: collecting all takes half a minute."""
    if not config.option.markexpr.startswith("alone"):
        return None
    leads_there = any((_ROOT / place).is_relative_to(collection_path) for place in ALONE)
    return None if leads_there or _is_alone(collection_path) else True


def pytest_collection_finish() -> None:
    """Compile programs each time: Python would take one edited within a second for the cached one."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what runs alone, by the folders and files above; leave to a process of their own the tests on the pretended
    device, which changes a process for good."""
    pretends = "PRETENDED" in os.environ
    others = [item for item in items if (item.get_closest_marker("pretended") is not None) != pretends]
    config.hook.pytest_deselected(items=others)
    if pretends:
        from tests.support import pretend_device

        pretend_device.install()
    items[:] = [item for item in items if item not in set(others)]
    for item in items:
        if _is_alone(item.path):
            item.add_marker(pytest.mark.alone)


def local_pool(script: Script | None = None) -> Callable[[Settings, RunDirectory], Backend]:
    """A maker of local back ends that play `script`; without one no worker is killed."""

    def make(settings: Settings, directory: RunDirectory) -> Backend:
        return Local(worker_command(settings, directory), script or Steady(settings.workers), directory.logs)

    return make


@pytest.fixture
def command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs a gridml command in this process, where the imports, which take seconds, are done."""
    from gridml.cli.main import main

    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(words, ended.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture
def programs() -> Path:
    """The folder of the tests' own programs."""
    return PROGRAMS


@pytest.fixture
def pool() -> Callable[[Script | None], Environment]:
    """A maker of run environments: real worker processes that play a script."""
    return lambda script=None: Environment(local_pool(script))


@pytest.fixture(scope="session")
def condor_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A real HTCondor pool with 8 cores, which commands and bindings of this process find for the whole session."""
    with contextlib.ExitStack() as stack:
        try:
            pool = stack.enter_context(personal(tmp_path_factory.mktemp("condor") / "pool"))
        except NoCondor as error:
            pytest.skip(str(error))
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("CONDOR_CONFIG", str(pool.config))
        was_imported = "htcondor2" in sys.modules
        htcondor2 = pytest.importorskip("htcondor2", exc_type=ImportError)
        if was_imported:  # it has read another configuration
            htcondor2.reload_config()
        yield pool

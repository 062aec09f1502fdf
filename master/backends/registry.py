"""The registry of back ends: the only module that knows their names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from gridml.errors import GridmlError, LedgerError, UsageError
from gridml.protocol.foreign import printable
from gridml.registry import Registry
from master.ports.plugin import BackendPlugin, BatchSystem
from master.state.jobs import Backend
from master.store.reader import opened, read_facts
from master.store.rundir import RunDirectory, command
from master.store.settings import Settings, has_copy, settings_text

BACKENDS: Registry[BackendPlugin] = Registry(
    "back end",
    "gridml.backends",
    {
        "local": "master.backends.local_plugin:LocalPlugin",
        "condor": "master.backends.condor.plugin:CondorPlugin",
        "ec2": "master.backends.ec2.plugin:Ec2Plugin",
        "simulated": "master.backends.simulated_plugin:SimulatedPlugin",
    },
)


def make(settings: Settings, directory: RunDirectory) -> Backend:
    """Create the back end that `settings` name. Raises UsageError for invalid settings."""
    return BACKENDS.find(settings.backend).make(settings, directory)


def read_settings(root: Path, sha256: str | None) -> Settings:
    """Read the settings of the run in `root`; `sha256` is their digest according to the ledger.

    Raises LedgerError if they are damaged, unreadable or invalid.
    """
    run, name = RunDirectory(root), None
    try:
        values = json.loads(settings_text(run, sha256))
        name = values["backend"]
        return Settings.from_json(values, BACKENDS.find(values["backend"]).options)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, UsageError) as error:
        if isinstance(name, str) and name.isidentifier() and name not in BACKENDS.all():
            raise  # the settings are valid, but the plug-in's package is missing
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise LedgerError(
            f"{run.settings} cannot be read: {printable(why)}. It is what was written when the run began: put it back "
            f"as it was, or begin again with another --run-dir.{_restoring(run, sha256)}"
        ) from error


def _restoring(run: RunDirectory, sha256: str | None) -> str:
    if not has_copy(run, sha256):
        return ""
    path, copy, then = shlex.quote(str(run.settings)), shlex.quote(str(run.settings_copy)), command("resume", run.root)
    return (
        f" If you have changed it yourself, change its copy, too: cp {path} {copy} && {then}. If not, the copy is "
        f"what was written. Restore it: rm -rf {path} && cp {copy} {path} && {then}"
    )


def current_settings(root: Path) -> Settings:
    """Read the settings of the run in `root`. Raises LedgerError as `read_settings` does, or without a run."""
    with opened(root) as ledger:
        sha256 = read_facts(ledger).get("settings")
    return read_settings(root, sha256)


def settings_of(root: Path) -> Settings | None:
    """Return the settings of a run; None if they cannot be read, or if the back end's package is missing here.

    Commands such as `status` must work without settings.
    """
    try:
        return current_settings(root)
    except GridmlError:
        return None


def batch_of(root: Path) -> BatchSystem | None:
    """Return the batch system of a run's back end; None without one, or if the back end is missing on this machine."""
    settings = settings_of(root)
    return None if settings is None else BACKENDS.find(settings.backend).batch


def withdraw(root: Path) -> str | None:
    """Remove the jobs or machines of a run without a master, as in `BackendPlugin`."""
    settings = settings_of(root)
    return None if settings is None else BACKENDS.find(settings.backend).withdraw(settings, RunDirectory(root))


def is_batch_job() -> bool:
    """Return whether this process is a job of a batch system that restarts it after a signal."""
    return any(plugin.batch is not None and plugin.batch.runs_this_process() for plugin in BACKENDS.all().values())

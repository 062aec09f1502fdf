"""Back ends by name. This is the one place of gridml that knows their names; each brings everything else itself."""

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
    """Return the back end that `settings` names. Raises UsageError where they make no sense."""
    return BACKENDS.find(settings.backend).make(settings, directory)


def read_settings(root: Path, sha256: str | None) -> Settings:
    """Return the settings of the run in `root`, whose ledger has that SHA-256 of them.

    Raises LedgerError when they are not what was written, cannot be read, or make no sense.
    """
    run, name = RunDirectory(root), None
    try:
        values = json.loads(settings_text(run, sha256))
        name = values["backend"]
        return Settings.from_json(values, BACKENDS.find(values["backend"]).options)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, UsageError) as error:
        if isinstance(name, str) and name.isidentifier() and name not in BACKENDS.all():
            raise  # its package is missing, and the settings are whole
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
        f" If you have changed it yourself, change its copy alike: cp {path} {copy} && {then}. If not, the copy is "
        f"what was written. Restore it: rm -rf {path} && cp {copy} {path} && {then}"
    )


def settings_of(root: Path) -> Settings | None:
    """Return the settings of a run, None where they or its back end cannot be had here: what a person asks of a run
    must not depend on it."""
    try:
        with opened(root) as ledger:
            sha256 = read_facts(ledger).get("settings")
        return read_settings(root, sha256)
    except GridmlError:
        return None


def batch_of(root: Path) -> BatchSystem | None:
    """Return the batch system of a run's back end; None where it has none, or cannot be had here."""
    settings = settings_of(root)
    return None if settings is None else BACKENDS.find(settings.backend).batch


def withdraw(root: Path) -> str | None:
    """End and remove what a run that no master holds has left elsewhere, as `BackendPlugin` says."""
    settings = settings_of(root)
    return None if settings is None else BACKENDS.find(settings.backend).withdraw(settings, RunDirectory(root))


def is_batch_job() -> bool:
    """Return whether a batch system runs this process, and starts it again when it ends by a signal."""
    systems = [plugin.batch for plugin in BACKENDS.all().values() if plugin.batch is not None]
    return any(system.runs_this_process() for system in systems)

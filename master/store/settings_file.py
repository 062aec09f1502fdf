"""The file that says what was asked for, and the copy of it: a flipped bit in a path or a number makes another one of
it, so what stands in the file counts only if the ledger has its digest, or a person has changed both alike."""

from __future__ import annotations

import json

from gridml.protocol import bundle
from gridml.protocol.foreign_files import read_regular
from master.store.rundir import RunDirectory
from master.store.settings import Settings

LONGEST_SETTINGS = 1 << 20  # bytes


def write_settings(run: RunDirectory, settings: Settings) -> str:
    """Write the settings of a run, and the copy first, so that a master killed here leaves a file that counts. Return
    their SHA-256, which belongs into the ledger."""
    text = (json.dumps(settings.to_json(), indent=2) + "\n").encode()
    for path in (run.settings_copy, run.settings):
        bundle.write_atomic(path, text)
    return bundle.digest(text)


def copy_settings(run: RunDirectory) -> str:
    """Make the copy the same as the file, whose SHA-256 is returned."""
    content = read_regular(run.settings, LONGEST_SETTINGS)
    if content != _copy(run):
        bundle.write_atomic(run.settings_copy, content)
    return bundle.digest(content)


def settings_text(run: RunDirectory, sha256: str | None) -> bytes:
    """Return what the settings' file holds, if it is of that SHA-256 or the same as its copy.

    Raises ValueError if it is neither, or no file of ours, and OSError.
    """
    content = read_regular(run.settings, LONGEST_SETTINGS)
    if bundle.digest(content) != sha256 and content != _copy(run):
        raise ValueError(f"its SHA-256 is not the one in the ledger, and it is not the same as {run.settings_copy}")
    return content


def has_copy(run: RunDirectory, sha256: str | None) -> bool:
    """Return whether the copy is what was written."""
    content = _copy(run)
    return content is not None and bundle.digest(content) == sha256


def _copy(run: RunDirectory) -> bytes | None:
    try:
        return read_regular(run.settings_copy, LONGEST_SETTINGS)
    except (OSError, ValueError):
        return None

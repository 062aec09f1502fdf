"""numba, which jobs bring along for programs of stages: workers compile these, and few machines of a pool have it.

The archive holds the installed files of the Python that submits, so it fits workers of the same Python version, on the
same processor architecture. Caches of machine code are left out: they belong to one user and one machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tarfile
from pathlib import Path

from gridml.errors import StorageError, UsageError
from gridml.model.phases import Stages
from gridml.model.program import Program
from master.backends.condor.options import CondorOptions
from master.store.rundir import RunDirectory

PACKAGES = ("numba", "llvmlite")  # numba, and what it needs besides numpy
_LEFT_OUT = ("__pycache__", "tests", "..")  # `..` begins the paths of commands, such as bin/numba
_LEVEL = 1  # of gzip; level 6 takes three times as long for a tenth less


def brings_numba(has_stages: bool, options: CondorOptions) -> tuple[bool, str]:
    """Return (whether jobs bring numba, reason)."""
    if not has_stages:
        return False, "the program has no stages"
    if options.container_image is not None:
        return False, "the program's imports are in the image"
    if options.packed is not None:
        return False, "the program's imports are in the packed environment"
    if options.without_numba:
        return False, "the machines have it"
    return True, "workers compile stages with it"


def archive_name() -> str:
    """Return the name of the archive of numba as it is installed here, such as `numba-0.68.1-cp311-x86_64.tar.gz`."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"
    return f"{PACKAGES[0]}-{importlib.metadata.version(PACKAGES[0])}-{tag}.tar.gz"


def archive(directory: RunDirectory, options: CondorOptions) -> Path | None:
    """Return the archive that jobs bring along, if there is one."""
    path = directory.root / archive_name()
    return directory.place / path.name if brings_numba(path.exists(), options)[0] else None


def prepare(program: Program, options: CondorOptions, directory: RunDirectory) -> None:
    """Write the archive into the run directory, if jobs need it and it is not there. Raises UsageError if the files of
    an installed package are unknown, StorageError if the archive cannot be written."""
    path = directory.root / archive_name()
    if not brings_numba(isinstance(program.shape, Stages), options)[0] or path.exists():
        return
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=_LEVEL) as tar:
            for file, name in _installed():
                tar.add(file, name)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"numba, which jobs bring along, cannot be written to {path}: {error.strerror}") from error


def _installed() -> list[tuple[str, str]]:
    """Return (path, path relative to site-packages) of every installed file."""
    found = []
    for package in PACKAGES:
        files = importlib.metadata.files(package)
        if files is None:
            raise UsageError(
                f"jobs bring along {package}, and the list of its files is missing here: it was not installed by pip. "
                f"Give an environment that has it with --packed or --container-image; or, if the machines of the pool "
                f"have it, --without-numba."
            )
        found += [(str(file.locate()), str(file)) for file in files if not set(file.parts) & {*_LEFT_OUT}]
    return found

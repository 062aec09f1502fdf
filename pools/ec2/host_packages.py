"""Package sources of this machine (apt mirror, pip settings), for the root file systems of instances that it builds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from pools.ec2.machine import NoLocalEc2, call

_PUBLIC = "http://deb.debian.org/debian"


def debian_mirror() -> str:
    """Return the Debian mirror that this machine's apt uses, else the public one."""
    try:
        listed = call(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    except (NoLocalEc2, FileNotFoundError):
        return _PUBLIC
    return next((line for line in listed if line.rstrip("/").endswith("/debian")), _PUBLIC)


@dataclass(frozen=True)
class PipSettings:
    """The effective settings of pip on this machine. PIP_* variables override its files."""

    variables: dict[str, str]  # PIP_* variables that configure another pip alike
    paths: tuple[Path, ...]  # files and folders of this machine that the settings name


def pip_settings() -> PipSettings:
    """Read the settings of pip on this machine. Raises NoLocalEc2 if this interpreter has no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        raise NoLocalEc2(f"{' '.join(command)} ended with {said.returncode}: {said.stderr.strip()}")
    return read_pip_settings(said.stdout)


def read_pip_settings(listed: str) -> PipSettings:
    """Parse the output of `pip config list`: lines such as `global.find-links='/opt/wheels'`."""
    of_files: dict[str, str] = {}
    of_environment: dict[str, str] = {}
    for line in listed.splitlines():
        key, separator, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        if not separator or section not in ("global", "install", ":env:"):
            continue
        settings = of_environment if section == ":env:" else of_files
        # pip prints values as Python string literals; several values are separated by line breaks.
        value = quoted.strip()[1:-1].replace("\\n", " ")
        settings[f"PIP_{name.replace('-', '_').upper()}"] = value
    variables = {**of_files, **of_environment}
    words = (word for value in variables.values() for word in value.split())
    return PipSettings(variables, tuple(sorted({path for word in words if (path := _path(word)) is not None})))


def _path(word: str) -> Path | None:
    """Return the path on this machine that a word of a setting names; None if it names none."""
    if word.startswith("file://"):
        # An index is a folder "simple", whose pages link to files beside that folder, so its parent is needed.
        folder = Path(unquote(urlparse(word).path))
        return folder.parent if folder.name == "simple" else folder
    path = Path(word)
    return path if path.is_absolute() and path.exists() else None

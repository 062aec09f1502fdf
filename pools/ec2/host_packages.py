"""Where this machine gets its packages from, so that a root that is made on it gets them from there too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from pools.ec2.machine import NoLocalEc2, call

_PUBLIC = "http://deb.debian.org/debian"


def debian_mirror() -> str:
    """The Debian mirror that apt uses here, in whatever file it stands; the public one where it names none."""
    try:
        listed = call(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    except (NoLocalEc2, FileNotFoundError):
        return _PUBLIC
    return next((line for line in listed if line.rstrip("/").endswith("/debian")), _PUBLIC)


@dataclass(frozen=True)
class PipSettings:
    """What pip is told here: by its files and by PIP_* variables, the latter winning.

    `variables` say the same to a pip elsewhere; `paths` are files and folders of this machine that they name.
    """

    variables: dict[str, str]
    paths: tuple[Path, ...]


def pip_settings() -> PipSettings:
    """How pip is set on this machine. Raises NoLocalEc2 where this interpreter has no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        raise NoLocalEc2(f"{' '.join(command)} ended with {said.returncode}: {said.stderr.strip()}")
    return read_pip_settings(said.stdout)


def read_pip_settings(listed: str) -> PipSettings:
    """Understand what `pip config list` prints: lines such as `global.find-links='/opt/wheels'`."""
    of_files: dict[str, str] = {}
    of_environment: dict[str, str] = {}
    for line in listed.splitlines():
        key, separator, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        if not separator or section not in ("global", "install", ":env:"):
            continue
        settings = of_environment if section == ":env:" else of_files
        # pip prints a value as Python writes a string, with a line break between several.
        value = quoted.strip()[1:-1].replace("\\n", " ")
        settings[f"PIP_{name.replace('-', '_').upper()}"] = value
    variables = {**of_files, **of_environment}
    words = (word for value in variables.values() for word in value.split())
    return PipSettings(variables, tuple(sorted({path for word in words if (path := _path(word)) is not None})))


def _path(word: str) -> Path | None:
    """The path that a setting names, if it lies on this machine. An index's pages point at files beside its folder."""
    if word.startswith("file://"):
        folder = Path(unquote(urlparse(word).path))
        return folder.parent if folder.name == "simple" else folder
    path = Path(word)
    return path if path.is_absolute() and path.exists() else None

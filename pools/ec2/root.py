"""The root file system of instances, and the package sources of this machine from which it is made.

The lower layer is Debian with cloud-init and the dependencies of gridml; it takes minutes to build and seldom changes.
The upper layer is the result of the image's own `install.sh` with the wheel of this checkout; it takes seconds. The
name of a layer is a hash of its inputs. A layer gets its name in the last step, so a layer that exists is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from pools.ec2.machine import BUILDING, TOOLS, NoLocalEc2, call, lacking


def debian_mirror() -> str:
    """Return the Debian mirror that this machine's apt uses. Raises NoLocalEc2 if it uses none."""
    try:
        listed = call(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).splitlines()
    except FileNotFoundError:
        listed = []
    for line in listed:
        if line.rstrip("/").endswith("/debian"):
            return line
    raise NoLocalEc2(
        f"apt on this machine names the sources {', '.join(dict.fromkeys(listed)) or 'none'}; expected a mirror of "
        "Debian, whose address ends with /debian. Add one to the sources of apt, then run apt-get update."
    )


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


CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = CHECKOUT / "ami" / "image"
CONSTRAINTS = CHECKOUT / "constraints.txt"
MAKING = "GRIDML_MAKE_ROOT"
"""The environment variable that, if 1, lets tests build a root that is not cached."""
SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "libpam-systemd", "cloud-init", "openssh-server"),
    *("iproute2", "ca-certificates", "python3", "python3-venv"),
)
VENV = "/opt/gridml/venv"  # the path that install.sh uses
# Packages in the wheel, on which the upper layer depends.
_WHEELED = ("gridml", "master", "remote", "ami", "chunk_model")
_UPPER = "gridml-"  # prefix of upper layers
_MAX_AGE_S = 7 * 86_400.0  # an upper layer is removed if it was not used for this time
_Say = Callable[[str], None]

_DEBIAN = """
debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$MADE" "$MIRROR"
# Instances have no name server: one that does not answer would cost each of them half a minute.
: > "$MADE/etc/resolv.conf"
: > "$MADE/etc/machine-id"
mount -t proc proc "$MADE/proc"
mount --rbind /dev "$MADE/dev"
mount --bind /etc/resolv.conf "$MADE/etc/resolv.conf"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
chroot "$MADE" apt-get update -q
chroot "$MADE" apt-get install -q -y --no-install-recommends $PACKAGES
chroot "$MADE" apt-get clean
rm -rf "$MADE"/var/lib/apt/lists/*
"""
_PYTHON = """
chroot "$MADE" python3 -m venv "$VENV"
cp "$CONSTRAINTS" "$MADE/tmp/constraints.txt"
chroot "$MADE" "$VENV/bin/pip" install -q --no-cache-dir -c /tmp/constraints.txt $REQUIREMENTS
rm "$MADE/tmp/constraints.txt"
"""
_INSTALL = """
cp -r "$IMAGE" "$MADE/tmp/image"
cp "$WHEEL" "$CONSTRAINTS" "$MADE/tmp/image/"
chroot "$MADE" sh /tmp/image/install.sh
rm -rf "$MADE/tmp/image"
"""


@dataclass(frozen=True)
class Root:
    """A root file system as layers of an overlay."""

    layers: tuple[Path, ...]  # folders, uppermost first


def made_within_seconds(cache: Path | None = None) -> bool:
    """Return whether the lower layer, which takes minutes to build, is cached."""
    return _planned(_folder(cache)).layers[-1].is_dir()


def prepare(cache: Path | None = None, say: _Say = print) -> Root:
    """Return the root of this checkout; build it if it is not cached. Raises NoLocalEc2.

    `cache` is by default the folder `ec2` in $GRIDML_CACHE, or in ~/.cache/gridml. `say` reports progress.
    """
    root = _planned(_folder(cache))
    upper, lower = root.layers
    if not lower.is_dir():
        say("Debian and gridml's dependencies are installed for instances to boot; this takes minutes, once.")
        _make(lower, _lower)
    if not upper.is_dir():
        say("The image's install.sh is run, with the wheel of this checkout.")
        _make(upper, lambda made: _upper(made, lower))
    os.utime(upper)  # its last use, for `_remove_old`
    _remove_old(upper.parent)
    return root


def _folder(cache: Path | None) -> Path:
    return cache or Path(os.environ.get("GRIDML_CACHE") or Path.home() / ".cache" / "gridml") / "ec2"


def _planned(folder: Path) -> Root:
    lower = _hash([SUITE, *PACKAGES, VENV, _DEBIAN, _PYTHON, *_requirements(), *_pins()])
    upper = _hash([lower, _INSTALL, *_contents(IMAGE, CHECKOUT / "pyproject.toml", *(CHECKOUT / n for n in _WHEELED))])
    return Root((folder / f"{_UPPER}{upper}", folder / f"debian-{lower}"))


def _remove_old(folder: Path) -> None:
    """Remove upper layers that were not used for `_MAX_AGE_S`, because each change of gridml makes a new layer."""
    for layer in folder.glob(f"{_UPPER}*"):
        if time.time() - layer.stat().st_mtime > _MAX_AGE_S:
            shutil.rmtree(layer, ignore_errors=True)


def _hash(parts: Iterable[str | bytes]) -> str:
    """Return the hash of a layer's inputs. Lengths are hashed, too, so that the boundaries between inputs matter."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(content) + content)
    return digest.hexdigest()[:16]


def _contents(*places: Path) -> Iterable[str | bytes]:
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(CHECKOUT))
                yield path.read_bytes()


def _requirements() -> list[str]:
    """Return the requirements of the image except gridml itself."""
    lines = (line.partition("#")[0].strip() for line in (IMAGE / "packages.txt").read_text().splitlines())
    return [line for line in lines if line]


def _pins() -> list[str]:
    """Return the pinned versions of the image's requirements; other pins do not affect the layer."""
    names = {re.split("[<>=~!; ]", line)[0] for line in _requirements()}
    return [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0].strip() in names]


def _make(final: Path, fill: Callable[[Path], None]) -> None:
    """Build a layer under a temporary name, then rename it. If another process was faster, keep the layer of that
    process, because layers with the same name are equal."""
    missing = lacking({**TOOLS, "debootstrap": "debootstrap"})
    if missing:
        raise NoLocalEc2(missing)
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".making-", ignore_cleanup_errors=True) as work:
        made = Path(work) / "layer"
        made.mkdir()
        fill(made)
        if not final.is_dir():
            made.rename(final)


def _lower(made: Path) -> None:
    settings = pip_settings()
    variables = {
        **{"SUITE": SUITE, "MIRROR": debian_mirror(), "PACKAGES": " ".join(PACKAGES), "VENV": VENV},
        **{"CONSTRAINTS": str(CONSTRAINTS), "REQUIREMENTS": " ".join(_requirements())},
    }
    _run(made, f"{_DEBIAN}{_shown(settings)}{_PYTHON}", variables, settings)


def _upper(made: Path, lower: Path) -> None:
    settings = pip_settings()
    with tempfile.TemporaryDirectory() as work:
        scratch = made.parent / "scratch"
        whole = made.parent / "whole"
        scratch.mkdir()
        whole.mkdir()
        options = f"lowerdir={lower},upperdir={made},workdir={scratch}"
        mounted = f'mount -t overlay -o "{options}" overlay "$MADE"\nmount -t proc proc "$MADE/proc"\n'
        mounted += 'mount --rbind /dev "$MADE/dev"\nmount --bind /etc/resolv.conf "$MADE/etc/resolv.conf"\n'
        variables = {"IMAGE": str(IMAGE), "CONSTRAINTS": str(CONSTRAINTS), "WHEEL": str(_wheel(Path(work)))}
        _run(whole, f"{mounted}{_shown(settings)}{_INSTALL}", variables, settings)
        made.chmod(0o755)


def _wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    call([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, CHECKOUT])
    return next(folder.glob("*.whl"))


def _shown(settings: PipSettings) -> str:
    """Return shell lines that bind-mount the paths of pip's settings read-only into `$MADE` during a build."""
    lines = []
    for path in settings.paths:
        make = f'mkdir -p "$MADE{path}"' if path.is_dir() else f'mkdir -p "$MADE{path.parent}"; touch "$MADE{path}"'
        lines.append(f'{make}; mount --bind "{path}" "$MADE{path}"; mount -o remount,bind,ro "$MADE{path}"\n')
    return "".join(lines)


def _run(made: Path, script: str, variables: dict[str, str], settings: PipSettings) -> None:
    """Run shell lines in namespaces of their own, so that their mounts end with them."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        **settings.variables,
        **variables,
        "MADE": str(made),
        "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    done = subprocess.run(
        [*BUILDING, "sh", "-euc", script], env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip().splitlines()[-15:]
        raise NoLocalEc2("the root for instances cannot be made: " + " | ".join(said))

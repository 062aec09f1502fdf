"""Whether this machine can be a local EC2: root, namespaces, an overlay file system, and a few of Debian's tools."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

TOOLS = {"systemd-nspawn": "systemd-container", "ip": "iproute2", "unshare": "util-linux", "mount": "mount"}
"""What instances are booted with, and the Debian package that has it."""
MODULES = ("moto", "flask", "cryptography", "boto3")
ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
"""Prefix of a command that sees a network, mounts and processes of its own: all of them end with it."""
BUILDING = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
"""Prefix of a command whose mounts and processes end with it; it has the machine's network."""


class NoLocalEc2(Exception):
    """There is no local EC2 here; the text says why and what to do."""


def unavailable() -> str | None:
    """Why this machine cannot be a local EC2, and what to do about it; None where it can."""
    if os.geteuid() != 0:
        return "a local EC2 makes namespaces, which takes root: run it as root"
    missing = lacking(TOOLS)
    if missing:
        return missing
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        return f"a local EC2 takes {', '.join(modules)}: pip install {' '.join(modules)}"
    if "overlay" not in Path("/proc/filesystems").read_text() and not _runs("modprobe", "overlay"):
        return "instances write to an overlay file system, which this kernel does not have"
    if not _runs(*ALONE, "mount", "-t", "tmpfs", "none", "/run"):
        return (
            "this machine lets nobody make namespaces and mount in them; use a virtual machine, or a container that may"
        )
    return None


def lacking(tools: dict[str, str]) -> str | None:
    """Which tools are missing and how to get them; None where all are there. `tools` has each one's package."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return None
    return f"a local EC2 takes {', '.join(missing)}: apt-get install {' '.join(sorted({tools[t] for t in missing}))}"


def call(command: Sequence[str | Path]) -> str:
    """Run a command to its end and return what it printed. Raises NoLocalEc2 with what it said when it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-20:]
        raise NoLocalEc2(f"{' '.join(map(str, command))[:200]} ended with {done.returncode}: {' | '.join(said)}")
    return done.stdout


def _runs(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0

"""Requirements of a local EC2 on this machine: root, namespaces, an overlay file system, and a few Debian tools."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

TOOLS = {"systemd-nspawn": "systemd-container", "ip": "iproute2", "unshare": "util-linux", "mount": "mount"}
"""Tools that boot instances, and their Debian packages."""
MODULES = ("moto", "flask", "cryptography", "boto3")  # in the extra `test`; the cloud imports them
ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
"""Prefix of a command with network, mount and process namespaces of its own, all of which end with it."""
BUILDING = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
"""Prefix of a command whose mounts and processes end with it, on the machine's network."""


class NoLocalEc2(Exception):
    """A local EC2 is not possible on this machine; the text has the reason and advice."""


def unavailable() -> str | None:
    """Return why this machine cannot run a local EC2, with advice; None if it can."""
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
        return "this machine does not allow namespaces with mounts; use a virtual machine, or a privileged container"
    return None


def lacking(tools: dict[str, str]) -> str | None:
    """Return which tools are missing and how to install them, None for none. `tools` maps each to its package."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return None
    return f"a local EC2 takes {', '.join(missing)}: apt-get install {' '.join(sorted({tools[t] for t in missing}))}"


def call(command: Sequence[str | Path]) -> str:
    """Run a command and return its output. Raises NoLocalEc2 with the output if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-20:]
        raise NoLocalEc2(f"{' '.join(map(str, command))[:200]} ended with {done.returncode}: {' | '.join(said)}")
    return done.stdout


def _runs(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0

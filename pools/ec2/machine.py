"""This machine as the ground of a local EC2: its requirements, calls of its tools, and the network of instances.

with a veth pair to the bridge. All is in the network namespace of this process, and ends with that namespace.
"""

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


GATEWAY = "172.31.0.1"
"""The address of the API and of the master, as instances see it (in moto's default VPC)."""
IMDS = "169.254.169.254"  # address of the metadata service
PREFIX = 16  # length of the VPC's network prefix
_BRIDGE = "br0"
_NO_SUBNET = "10.0.0.0/8"  # moto takes addresses from this range for instances without a subnet
_NAMESPACES = Path("/run/netns")


def lay() -> None:
    """Create the bridge."""
    # Named network namespaces are mounts below /run, so /run must be private to this mount namespace.
    call(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run"])
    _ip("link", "set", "lo", "up")
    # A fixed hardware address: otherwise the bridge has that of its first port, and changes it when that port goes.
    _ip("link", "add", _BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge")
    _ip("address", "add", f"{GATEWAY}/{PREFIX}", "dev", _BRIDGE)
    _ip("address", "add", f"{IMDS}/32", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")
    _ip("route", "add", _NO_SUBNET, "dev", _BRIDGE)


def plug(name: str, address: str, connected: bool = True) -> Path:
    """Create the network namespace `name` (at most 15 characters) with `eth0` at `address`; return its file.

    Without `connected` the veth pair is not attached to the bridge: the instance boots and reaches nothing.
    """
    _ip("netns", "add", name)
    _ip("link", "add", _cable(name), "type", "veth", "peer", "name", "eth0", "netns", name)
    if connected:
        _ip("link", "set", _cable(name), "master", _BRIDGE)
    _ip("link", "set", _cable(name), "up")
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "set", "eth0", "address", mac(address))
    _ip("-n", name, "address", "add", f"{address}/{PREFIX}", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "route", "add", "default", "via", GATEWAY, "dev", "eth0", "onlink")
    _ip("-n", name, "route", "add", IMDS, "dev", "eth0")
    return _NAMESPACES / name


def unplug(name: str) -> None:
    """Remove a namespace and its veth pair."""
    _ip("netns", "delete", name)


def mac(address: str) -> str:
    """Return the hardware address of the instance at an IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


# The name has at most 15 characters, the limit for network interfaces.
def _cable(name: str) -> str:
    return f"v{name[-14:]}"


def _ip(*arguments: str) -> None:
    call(["ip", *arguments])

"""The network of a local EC2: a bridge with the provider's two addresses, and for each instance a network namespace
with a veth pair to the bridge. All is in the network namespace of this process, and ends with that namespace."""

from __future__ import annotations

from pathlib import Path

from pools.ec2.machine import call

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

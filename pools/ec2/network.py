"""The network of a local EC2: one bridge with the provider's two addresses on it, and for each instance a network
namespace with a cable to the bridge. It lies in the network namespace of this process, and is gone with it."""

from __future__ import annotations

from pathlib import Path

from pools.ec2.machine import call

GATEWAY = "172.31.0.1"
"""The address of this process, of the calls and of the master, as instances see it (moto's default VPC)."""
IMDS = "169.254.169.254"
PREFIX = 16
_BRIDGE = "br0"
_NO_SUBNET = "10.0.0.0/8"  # where moto puts an instance that is launched without a subnet
_NAMESPACES = Path("/run/netns")


def lay() -> None:
    """Lay the bridge. The name of each namespace is a mount below /run, so /run becomes this namespace's own."""
    call(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run"])
    _ip("link", "set", "lo", "up")
    # With an address of its own the bridge does not take that of whichever cable came first, and lose it with that.
    _ip("link", "add", _BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge")
    _ip("address", "add", f"{GATEWAY}/{PREFIX}", "dev", _BRIDGE)
    _ip("address", "add", f"{IMDS}/32", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")
    _ip("route", "add", _NO_SUBNET, "dev", _BRIDGE)


def plug(name: str, address: str, connected: bool = True) -> Path:
    """Make the network namespace `name` (15 letters at most) with `eth0` at `address`, and return its file.

    Where `connected` is false the cable is in no bridge: the instance comes up and reaches nobody.
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
    """Remove a namespace; its cable goes with it."""
    _ip("netns", "delete", name)


def mac(address: str) -> str:
    """The hardware address of the instance at an IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _cable(name: str) -> str:
    return f"v{name[-14:]}"


def _ip(*arguments: str) -> None:
    call(["ip", *arguments])

"""HTCondor configurations for short-lived pools on one machine: short intervals, loopback only, one user.

Most intervals are one or two seconds instead of a minute. For gridml, this is the only difference from a production
pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pools.release import Release


@dataclass(frozen=True)
class Host:
    """One host of a pool."""

    folder: Path
    user: str  # account that the daemons run as
    address: str = "127.0.0.1"
    collector: str = "127.0.0.1"
    port: int = 9618  # port of the collector, and also the shared port of this host
    daemons: str = "MASTER SHARED_PORT COLLECTOR NEGOTIATOR SCHEDD STARTD"  # DAEMON_LIST
    more: str = ""  # further lines of configuration, which override the lines of this module

    @property
    def config(self) -> Path:
        return self.folder / "condor_config"


def write(host: Host, release: Release, signing_key: str) -> None:
    """Create the folder of a host and its `condor_config`. `signing_key` authenticates the daemons of one pool."""
    for name in ("log", "spool", "execute", "run", "lock", "passwords.d", "tokens.d"):
        (host.folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwords.d", "tokens.d"):
        (host.folder / name).chmod(0o700)
    key = host.folder / "passwords.d" / "POOL"
    key.touch(mode=0o600)
    key.write_text(signing_key)
    lines = {**_places(host, release), **_network(host), **_security(host), **_QUICK, **_SLOTS}
    settings = "".join(f"{name} = {value}\n" for name, value in lines.items())
    host.config.write_text(f"use security:recommended\nuse feature:PartitionableSlot\n{settings}{host.more}")


def _places(host: Host, release: Release) -> dict[str, object]:
    folder = host.folder
    return {
        "RELEASE_DIR": release.usr,
        "LOCAL_DIR": folder,
        "BIN": release.usr / "bin",
        "SBIN": release.usr / "sbin",
        "LIB": release.usr / "lib" / "condor",
        "LIBEXEC": release.usr / "libexec" / "condor",
        "SHARE": release.usr / "share" / "condor",
        "ETC": folder,
        **{name: folder / name.lower() for name in ("LOG", "SPOOL", "EXECUTE", "RUN", "LOCK")},
        "LOCAL_CONFIG_DIR": "",
        # Tools run by root refuse to start without this, unless there is an account named condor.
        "CONDOR_IDS": "0.0",
    }


def _network(host: Host) -> dict[str, object]:
    return {
        "CONDOR_HOST": host.collector,
        "NETWORK_INTERFACE": host.address,
        # Else the first pool with workers would take port 9618 of all addresses, and a second one could not listen.
        "BIND_ALL_INTERFACES": False,
        "COLLECTOR_HOST": f"{host.collector}:{host.port}",
        "USE_SHARED_PORT": True,
        "SHARED_PORT_PORT": host.port,
        "DAEMON_SOCKET_DIR": "auto",
        "DAEMON_LIST": host.daemons,
        "UID_DOMAIN": "gridml.pool",
        "FILESYSTEM_DOMAIN": host.folder.name,  # different on each host, so that files are transferred
        "TRUST_DOMAIN": "gridml.pool",
    }


def _security(host: Host) -> dict[str, object]:
    """Authentication by the file system: the account that can write the folder is the pool's user."""
    secret, tokens = host.folder / "passwords.d", host.folder / "tokens.d"
    return {
        "SEC_DEFAULT_AUTHENTICATION_METHODS": "FS, IDTOKENS",
        "SEC_CLIENT_AUTHENTICATION_METHODS": "FS, IDTOKENS",
        "SEC_PASSWORD_DIRECTORY": secret,
        "SEC_TOKEN_POOL_SIGNING_KEY_FILE": secret / "POOL",
        "SEC_TOKEN_SYSTEM_DIRECTORY": tokens,
        "SEC_TOKEN_DIRECTORY": tokens,
        "ALLOW_ADMINISTRATOR": f"{host.user}@*, root@*, condor@*, condor_pool@*",
        "ALLOW_DAEMON": "$(ALLOW_ADMINISTRATOR)",
        "ALLOW_WRITE": "*",
        "ALLOW_READ": "*",
    }


_QUICK: dict[str, object] = {
    **dict.fromkeys(
        ("NEGOTIATOR_INTERVAL", "NEGOTIATOR_MIN_INTERVAL", "NEGOTIATOR_CYCLE_DELAY", "SCHEDD_MIN_INTERVAL"), 1
    ),
    **dict.fromkeys(("POLLING_INTERVAL", "STARTER_INITIAL_UPDATE_INTERVAL", "PERIODIC_EXPR_INTERVAL"), 1),
    **dict.fromkeys(("SCHEDD_INTERVAL", "UPDATE_INTERVAL", "STARTER_UPDATE_INTERVAL"), 2),
    **dict.fromkeys(("SHADOW_QUEUE_UPDATE_INTERVAL", "MAX_PERIODIC_EXPR_INTERVAL"), 2),
    "MASTER_UPDATE_INTERVAL": 5,
    "JOB_START_DELAY": 0,
    "GUIDANCE_KEEP_CALM_AND": True,  # without it, HTCondor 25.0 and later delays jobs with small inputs by 5 s
    "SHUTDOWN_GRACEFUL_TIMEOUT": 30,
    "MASTER_BACKOFF_CONSTANT": 1,  # restart a killed daemon at once
    "MASTER_BACKOFF_CEILING": 2,
}
_SLOTS: dict[str, object] = {
    "NUM_CPUS": 8,
    "MEMORY": 16384,
    "STARTD_ENFORCE_DISK_LIMITS": False,
    "RUNBENCHMARKS": 0,
    "BASE_CGROUP": "",
    "START": True,
    "SUSPEND": False,
    "WANT_SUSPEND": False,
    "PREEMPT": False,
    "KILL": False,
    "MachineMaxVacateTime": 10,
    "MAX_DEFAULT_LOG": "20 Mb",
}

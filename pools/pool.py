"""HTCondor pools: a personal one on loopback, or one whose worker hosts are behind firewalls.

A worker host behind a firewall is a network namespace. It can connect only to the submit host, and no host can connect
to it, as with an OSPool worker. Namespaces require root.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pools import configuration
from pools.configuration import Host
from pools.release import NoCondor, Release, find

# The account of the daemons if root starts them. If HTCondor ran as root, it would refuse root's jobs and run jobs as a
# user who cannot read root's files. So the daemons run in a user namespace that maps this account onto root: their jobs
# can read what root can read.
DAEMON_ACCOUNT = "nobody"
STOP_S = 20.0  # time from SIGQUIT to SIGKILL


def user() -> str:
    """Return the account that daemons started by this process run as."""
    return DAEMON_ACCOUNT if os.geteuid() == 0 else getpass.getuser()


def start(host: Host, release: Release, inside: Sequence[str] = ()) -> None:
    """Start a host's condor_master, which starts the other daemons. `inside` is a command prefix that enters a network
    namespace."""
    # condor_master detaches from this process, so its pid comes from a file.
    command = [*inside, *_mapped(), str(release.binary("condor_master")), "-pidfile", str(_pidfile(host))]
    environment = {
        **os.environ,
        "CONDOR_CONFIG": str(host.config),
        "HOME": str(host.folder),
        "USER": host.user,
        "LOGNAME": host.user,
    }
    environment.pop("_CONDOR_SCRATCH_DIR", None)  # set if this process is itself a job
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoCondor(f"condor_master did not start: {(done.stderr or done.stdout).strip()}")
    wait_until(lambda: pid(host) is not None, 10.0, f"condor_master left no pid; see {host.folder}/log/MasterLog")


def stop(host: Host) -> None:
    """Stop a host's daemons and their jobs at once; its folder keeps the queue. Idempotent."""
    master = pid(host)
    if master is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(master, signal.SIGQUIT)  # HTCondor's fast shutdown: jobs are killed, not vacated
        try:
            wait_until(lambda: not _alive(master), STOP_S, "")
        except NoCondor:
            os.kill(master, signal.SIGKILL)
    _pidfile(host).unlink(missing_ok=True)


def pid(host: Host) -> int | None:
    """Return the process id of a host's condor_master; None: it does not run."""
    with contextlib.suppress(OSError, ValueError):
        number = int(_pidfile(host).read_text())
        return number if _alive(number) else None
    return None


def wait_until(true: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Poll `true` every 50 ms until it holds. After `limit_s` seconds, raises NoCondor with the text `otherwise`."""
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() >= deadline:
            raise NoCondor(f"{otherwise} (waited {limit_s:g} s)")
        time.sleep(0.05)


def _mapped() -> list[str]:
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam(DAEMON_ACCOUNT)
    return ["unshare", "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}"]


def _pidfile(host: Host) -> Path:
    return host.folder / "master.pid"


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"  # a zombie has ended


READY_S = 60.0  # maximum time for a pool to start
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # the PATH of ordinary users often lacks these two folders
# Outbound connections and their replies pass; everything else is dropped.
_FIREWALL = """
table inet gridml {
  chain input {
    type filter hook input priority 0; policy drop;
    iif lo accept
    ct state established,related accept
  }
}
"""


@dataclass(frozen=True)
class Pool:
    """A running pool. As a context manager it is taken down on exit."""

    release: Release
    submit: Host  # host of the queue; in a personal pool it also has the slots
    workers: tuple[Host, ...] = ()  # hosts with slots, empty in a personal pool
    subnet: int = 0  # worker hosts have addresses in 10.<subnet>.0.0/16; unused in a personal pool

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        take_down(self)

    @property
    def config(self) -> Path:
        """The value of CONDOR_CONFIG by which HTCondor's commands and bindings find this pool."""
        return self.submit.config

    def tool(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of HTCondor on the submit host."""
        command = [str(self.release.binary(name)), *arguments]
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60)

    def environment(self) -> dict[str, str]:
        """Return the environment of a user of this pool."""
        path = f"{self.release.usr}/bin:{self.release.usr}/sbin:{os.environ.get('PATH', '')}"
        return {**os.environ, "CONDOR_CONFIG": str(self.config), "PATH": path}

    def wait(self, slots: int) -> None:
        """Wait until the queue answers and the pool has `slots` machines. Raises NoCondor."""
        # A machine has one partitionable slot; the dynamic slots of running jobs are not counted.
        there = ("-constraint", "PartitionableSlot =?= True", "-af", "Name")
        wait_until(
            lambda: (
                len(self.tool("condor_status", *there).stdout.splitlines()) >= slots
                and self.tool("condor_q").returncode == 0
            ),
            READY_S,
            f"the pool did not come up; see the logs in {self.submit.folder}/log",
        )


def personal(folder: Path, *, cpus: int = 8, more: str = "") -> Pool:
    """Start a pool of one host."""
    release = find()
    host = Host(folder.absolute(), user(), port=_free_port(), more=f"NUM_CPUS = {cpus}\n{more}")
    pool = Pool(release, host)
    configuration.write(host, release, secrets.token_urlsafe(48))
    _save(pool)
    start(host, release)
    try:
        pool.wait(1)
    except NoCondor:
        take_down(pool)
        raise
    return pool


def firewalled(folder: Path, *, workers: int = 4, more: str = "", subnet: int = 77) -> Pool:
    """Start a pool of a submit host and `workers` worker hosts behind firewalls; `more` configures the worker hosts."""
    if os.geteuid() != 0:
        raise NoCondor("network namespaces take root: run it as root, or use a personal pool (make pool)")
    ip = shutil.which("ip", path=_PATH)
    if ip is None:
        raise NoCondor("network namespaces take ip: install iproute2")
    release, key, folder = find(), secrets.token_urlsafe(48), folder.absolute()
    nft = _nft(release)
    center = f"10.{subnet}.0.1"
    submit = Host(
        folder / "submit",
        user(),
        center,
        center,
        daemons="MASTER SHARED_PORT COLLECTOR NEGOTIATOR SCHEDD",
        more="NETWORK_HOSTNAME = submit.gridml.pool\n",
    )
    hosts = tuple(_worker(submit, subnet, i, more) for i in range(1, workers + 1))
    pool = Pool(release, submit, hosts, subnet)
    take_down(pool)  # remove the leftovers of an earlier pool
    try:
        _ip("addr", "add", f"{center}/32", "dev", "lo")
        configuration.write(submit, release, key)
        _save(pool)
        start(submit, release)
        for i, host in enumerate(hosts, 1):
            _connect_host(subnet, i, center, nft)
            configuration.write(host, release, key)
            start(host, release, [ip, "netns", "exec", namespace(subnet, i)])
        pool.wait(workers)
    except BaseException:
        take_down(pool)
        raise
    return pool


def take_down(pool: Pool) -> None:
    """Stop all daemons and remove the namespaces. Idempotent."""
    for host in (*pool.workers, pool.submit):
        stop(host)
    for i in range(1, len(pool.workers) + 1):
        _end_processes(namespace(pool.subnet, i))
        _ip("netns", "del", namespace(pool.subnet, i), check=False)
        _ip("link", "del", _cable(pool.subnet, i), check=False)
    if pool.workers:
        _ip("addr", "del", f"10.{pool.subnet}.0.1/32", "dev", "lo", check=False)
    (pool.submit.folder / "pool.json").unlink(missing_ok=True)


def remembered(folder: Path) -> Pool:
    """Return the pool that was started in a folder. Raises NoCondor if there is none."""
    for place in (folder.absolute(), folder.absolute() / "submit"):
        if (place / "pool.json").exists():
            record = json.loads((place / "pool.json").read_text())
            submit = Host(place, user(), record["address"], record["address"], record["port"])
            hosts = tuple(replace(submit, folder=Path(worker)) for worker in record["workers"])
            return Pool(Release(Path(record["usr"]), record["version"]), submit, hosts, record["subnet"])
    raise NoCondor(f"{folder} holds no pool that is up; raise one with: make pool")


def standing(folder: Path) -> Pool | None:
    """Return the pool that runs in a folder; None: no pool runs there."""
    with contextlib.suppress(NoCondor):
        found = remembered(folder)
        return found if pid(found.submit) is not None else None
    return None


def cut(pool: Pool, worker: int, *, off: bool) -> None:
    """Disconnect the network of worker host `worker` (1, 2, …), or reconnect it."""
    _ip("link", "set", _cable(pool.subnet, worker), "down" if off else "up")
    if not off:
        # The routes of the namespace were lost with the link.
        _ip("-n", namespace(pool.subnet, worker), "route", "replace", f"10.{pool.subnet}.0.1/32", "via",
            f"10.{pool.subnet}.{worker}.1")  # fmt: skip


def namespace(subnet: int, worker: int) -> str:
    return f"gridml{subnet}-{worker}"


def _cable(subnet: int, worker: int) -> str:
    return f"gml{subnet}-{worker}"


def _worker(submit: Host, subnet: int, i: int, more: str) -> Host:
    return Host(
        submit.folder.parent / f"worker{i}",
        submit.user,
        f"10.{subnet}.{i}.2",
        submit.address,
        submit.port,
        daemons="MASTER SHARED_PORT STARTD",
        # CCB: no host can connect to a worker host, so the collector asks the worker host to connect instead.
        more=(
            f"NETWORK_HOSTNAME = worker{i}.gridml.pool\nCCB_ADDRESS = $(COLLECTOR_HOST)\n"
            f"PRIVATE_NETWORK_NAME = worker{i}\nNUM_CPUS = 1\nMEMORY = 4096\n{more}"
        ),
    )


def _nft(release: Release) -> str:
    """Return the machine's nft, or the one downloaded with HTCondor. Raises NoCondor."""
    fetched = release.usr / "sbin" / "nft"
    nft = shutil.which("nft", path=_PATH) or (str(fetched) if fetched.exists() else None)
    if nft is None:
        raise NoCondor("workers behind firewalls take nft: install nftables")
    return nft


def _connect_host(subnet: int, i: int, center: str, nft: str) -> None:
    """Create a worker host's namespace with a link to this one, a route to the submit host only, and a firewall that
    drops all inbound traffic."""
    inside, cable = namespace(subnet, i), _cable(subnet, i)
    _ip("netns", "add", inside)
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", inside)
    _ip("addr", "add", f"10.{subnet}.{i}.1/30", "dev", cable)
    _ip("link", "set", cable, "up")
    _ip("-n", inside, "link", "set", "lo", "up")
    _ip("-n", inside, "addr", "add", f"10.{subnet}.{i}.2/30", "dev", "eth0")
    _ip("-n", inside, "link", "set", "eth0", "up")
    _ip("-n", inside, "route", "add", f"{center}/32", "via", f"10.{subnet}.{i}.1")
    _done(["ip", "netns", "exec", inside, nft, "-f", "-"], _FIREWALL)


def _ip(*arguments: str, check: bool = True) -> str:
    return _done(["ip", *arguments], check=check)


def _end_processes(namespace: str) -> None:
    """End what still runs in a namespace: daemons of an earlier pool whose owner was killed, and its folder removed."""
    for process in _ip("netns", "pids", namespace, check=False).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def _done(command: list[str], text: str | None = None, *, check: bool = True) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, env={**os.environ, "PATH": _PATH})
    if check and done.returncode != 0:
        raise NoCondor(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def _save(pool: Pool) -> None:
    """Record a pool in its folder, so that another process can take it down."""
    record = {
        "usr": str(pool.release.usr),
        "version": pool.release.version,
        "address": pool.submit.address,
        "port": pool.submit.port,
        "workers": [str(host.folder) for host in pool.workers],
        "subnet": pool.subnet,
    }
    (pool.submit.folder / "pool.json").write_text(json.dumps(record, indent=2) + "\n")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

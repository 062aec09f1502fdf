"""Start and stop the daemons of one host.

As root, HTCondor refuses root's jobs and runs jobs as a user who cannot read root's files. So root's daemons run as an
ordinary user inside a user namespace that maps it onto root: jobs may read what root may, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pools.configuration import Host
from pools.release import NoCondor, Release

STAND_IN = "nobody"  # the account that root's daemons run as, inside the namespace
STOP_S = 20.0


def user() -> str:
    """The account that daemons started by this process will run as."""
    return STAND_IN if os.geteuid() == 0 else getpass.getuser()


def start(host: Host, release: Release, inside: Sequence[str] = ()) -> None:
    """Start a host's condor_master, which starts the rest; `inside` is a command prefix, for a network namespace."""
    command = [*inside, *_mapped(), str(release.binary("condor_master")), "-pidfile", str(_pidfile(host))]
    environment = {
        **os.environ,
        "CONDOR_CONFIG": str(host.config),
        "HOME": str(host.folder),
        "USER": host.user,
        "LOGNAME": host.user,
    }
    environment.pop("_CONDOR_SCRATCH_DIR", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoCondor(f"condor_master did not start: {(done.stderr or done.stdout).strip()}")
    wait_until(lambda: pid(host) is not None, 10.0, f"condor_master left no pid; see {host.folder}/log/MasterLog")


def stop(host: Host) -> None:
    """End a host's daemons and their jobs, at once; the queue stays in its folder. Idempotent."""
    master = pid(host)
    if master is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(master, signal.SIGQUIT)
        try:
            wait_until(lambda: not _alive(master), STOP_S, "")
        except NoCondor:
            os.kill(master, signal.SIGKILL)
    _pidfile(host).unlink(missing_ok=True)


def pid(host: Host) -> int | None:
    """The process id of a host's condor_master, None when it does not run."""
    with contextlib.suppress(OSError, ValueError):
        number = int(_pidfile(host).read_text())
        return number if _alive(number) else None
    return None


def wait_until(true: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Look every 50 ms until `true()`. Raises NoCondor with the text when the limit has passed."""
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() >= deadline:
            raise NoCondor(f"{otherwise} (waited {limit_s:g} s)")
        time.sleep(0.05)


def _mapped() -> list[str]:
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam(STAND_IN)
    return ["unshare", "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}"]


def _pidfile(host: Host) -> Path:
    return host.folder / "master.pid"


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"

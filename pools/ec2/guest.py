"""A booted Debian: systemd-nspawn on shared read-only layers, with a writable layer in memory, in a control group.

Control groups are global in the kernel and do not end with a namespace, so they are removed by name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pools.ec2.machine import call

_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
_TIMEOUT_S = 30.0  # for the last process of a guest to end


class ControlGroup:
    """A group below this process's own, in each hierarchy that systemd uses. Raises OSError if it cannot be created."""

    def __init__(self, name: str) -> None:
        # The same name in all hierarchies: systemd reads one, and assumes that the others agree.
        self.folders = [place / f"gridml-{name}" for place in _own()]
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    def within(self, command: Sequence[str]) -> list[str]:
        """Return a command that joins the group and then runs `command`."""
        return ["/bin/sh", "-euc", _JOIN, "join", *map(str, self.folders), "--", *command]

    def remove(self) -> None:
        """Remove the group and its descendants once their processes have ended. Raises OSError after `_TIMEOUT_S`."""
        deadline = time.monotonic() + _TIMEOUT_S
        for folder in self.folders:
            while folder.exists():
                for below, _, _ in os.walk(folder, topdown=False):
                    with contextlib.suppress(OSError):
                        Path(below).rmdir()
                if folder.exists() and time.monotonic() > deadline:  # rmdir raises the reason
                    folder.rmdir()


def _own() -> list[Path]:
    """Return this process's groups in the hierarchies that systemd uses: the unified one, and its own named one."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            groups[controllers] = path
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "" in groups:
            found.append(Path(place + groups[""]))
        elif kind == "cgroup" and "name=systemd" in options.split(",") and "name=systemd" in groups:
            found.append(Path(place + groups["name=systemd"]))
    return found


POWER_BUTTON = "SIGRTMIN+4"  # signal on which systemd powers off
# In a container, cloud-init does not read DMI tables. It uses the metadata service (with tokens) if the hypervisor's
# UUID begins with "ec2", as on Xen. /sys is read-only, so a copy with this UUID replaces it.
_INIT = """
mount --make-rprivate /
mkdir -p /run/old /run/new
mount --rbind /sys /run/old
mount -t tmpfs -o mode=755 tmpfs /run/new
cd /run/new
for folder in block bus class dev devices firmware fs kernel module power; do
    [ -d /run/old/$folder ] && mkdir $folder && mount --rbind /run/old/$folder $folder
done
mkdir hypervisor
echo "$1" > hypervisor/uuid
cd /
mount --move /run/new /sys
umount -l /run/old
mount -o remount,bind,ro /sys
rmdir /run/old /run/new
mkdir -p /run/systemd/journald.conf.d
printf '[Journal]\\nForwardToConsole=yes\\nMaxLevelConsole=info\\n' > /run/systemd/journald.conf.d/console.conf
exec /lib/systemd/systemd
"""


class Guest:
    """A machine that boots `layers` (uppermost first), in the network namespace of file `network`.

    `folder` gets the writable layer, which is in memory. The guest's journal is written to `console`.
    """

    def __init__(self, name: str, layers: Sequence[Path], folder: Path, network: Path, console: Path) -> None:
        self.name = name
        self.ended = threading.Event()  # set once the guest's first process has ended
        self._folder = folder
        self._group = ControlGroup(folder.name)
        root = _mounted(layers, folder)
        command = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--machine={name}", f"--directory={root}"),
            *(f"--network-namespace-path={network}", f"--hostname={name}", "--resolv-conf=off", "--console=read-only"),
            *("--link-journal=no", f"--kill-signal={POWER_BUTTON}"),
            *("/bin/sh", "-euc", _INIT, "init", f"ec2{secrets.token_hex(15)}"),
        ]
        with console.open("wb") as output:
            self._process = subprocess.Popen(
                self._group.within(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=self._wait, name=f"guest {name}", daemon=True).start()

    def power_off(self, patience_s: float) -> bool:
        """Press the power button, and kill the guest after `patience_s` seconds. Returns whether it ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)  # nspawn then sends its `--kill-signal` to the guest
        went = self.ended.wait(patience_s)
        self.kill()
        return went

    def kill(self) -> None:
        """Kill every process of the guest. Idempotent."""
        if self._process.poll() is None:
            for child in _children(self._process.pid):  # the first process of a PID namespace: all others die with it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self.ended.wait()

    def remove(self) -> None:
        """Remove the writable layer and the control group. The guest must have ended."""
        call(["umount", "--lazy", self._folder / "root"])
        call(["umount", "--lazy", self._folder])
        self._folder.rmdir()
        self._group.remove()

    def _wait(self) -> None:
        self._process.wait()
        self.ended.set()


def _mounted(layers: Sequence[Path], folder: Path) -> Path:
    folder.mkdir(parents=True)
    call(["mount", "-t", "tmpfs", "-o", "mode=755", "none", folder])
    for name in ("root", "upper", "work"):
        (folder / name).mkdir()
    (folder / "upper").chmod(0o755)
    lower = ":".join(str(layer) for layer in layers)
    options = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work"
    call(["mount", "-t", "overlay", "-o", options, "overlay", folder / "root"])
    return folder / "root"


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []

"""Control groups of guests: one for each guest, because a systemd takes all services in its group for its own.

Control groups are global in the kernel and do not end with a namespace, so they are removed by name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

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

"""A control group for each guest: two systemds that manage the same groups would take each other's services for theirs.

Groups are the kernel's, not a namespace's, so they are removed by name when a guest is gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
_PATIENCE_S = 30.0  # in which the last process of a guest is gone


class ControlGroup:
    """A group below this process's own, in each hierarchy that systemd uses. Raises OSError where none can be made."""

    def __init__(self, name: str) -> None:
        # The same name in all of them: systemd goes by one, and takes it that the others agree.
        self.folders = [place / f"gridml-{name}" for place in _own()]
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    def within(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in the group."""
        return ["/bin/sh", "-euc", _JOIN, "join", *map(str, self.folders), "--", *command]

    def remove(self) -> None:
        """Remove the group and all below it, once their processes have ended. Raises OSError for one that stays."""
        deadline = time.monotonic() + _PATIENCE_S
        for folder in self.folders:
            while folder.exists():
                for below, _, _ in os.walk(folder, topdown=False):
                    with contextlib.suppress(OSError):
                        Path(below).rmdir()
                if folder.exists() and time.monotonic() > deadline:
                    folder.rmdir()


def _own() -> list[Path]:
    """Where this process stands in the hierarchies that systemd uses: the unified one, and its own named one."""
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

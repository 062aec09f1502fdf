"""Kills a child process when its parent ends (Linux), for local workers and the master's helper processes."""

from __future__ import annotations

import ctypes
import os
import signal

from gridml.errors import RunError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGKILL to this process when its parent ends in any way. Call this first in the process.

    `parent_pid` is the parent's pid, as the parent itself reported it. If the parent has already ended, this call does
    not return. The kernel sends the signal when the *thread* that started this process ends, so a master must start
    workers from a thread that lives as long as the master. Raises RunError if the system has no prctl.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        raise RunError("processes are tied to the master with prctl, which this system lacks: run on Linux") from None
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong]
    prctl.restype = ctypes.c_int
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise RunError(f"could not tie this process to the master: prctl failed with {os.strerror(ctypes.get_errno())}")
    # Checked after prctl: the kernel reports a parent that ends after that call, not one that ended before it.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)

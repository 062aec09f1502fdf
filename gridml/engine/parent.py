"""A process that must not outlive its parent (Linux): a worker, or one that computes for the master."""

from __future__ import annotations

import ctypes
import os
import signal

from gridml.errors import RunError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent_pid: int) -> None:
    """From now on SIGKILL ends this process when its parent ends, however that comes; call it first thing.

    `parent_pid` is the parent's own pid as it told this one. If the parent has already gone, this call does not
    return: the kernel would send the signal for the new parent only. The kernel means the parent's *thread* that
    started this process, so a master starts workers from a thread that lives as long as itself. Raises RunError where
    the system has no prctl.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        raise RunError("processes are tied to the master with prctl, which this system lacks: run on Linux") from None
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong]
    prctl.restype = ctypes.c_int
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise RunError(f"could not tie this process to the master: prctl failed with {os.strerror(ctypes.get_errno())}")
    # Asked only now: the kernel notices a parent that ends after the call above, not one that ended before it.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)

"""The fitness check of a worker's machine for a program, before the first chunk.

A worker on an unfit machine exits with the status `UNFIT`, so that its work goes to other machines and this machine is
avoided. If a module is missing, the status is `UNEQUIPPED` instead, because the job could have brought the module along
and other machines may lack it as well.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gridml.errors import UNEQUIPPED, UNFIT, GridmlError
from gridml.model.device_memory import CPU

MEBIBYTE = 2**20
MEMORY = 256 * MEBIBYTE
TORCH_MEMORY = 512 * MEBIBYTE  # importing torch takes 220 MiB, training a small network 320 MiB
DISK = 50 * MEBIBYTE  # of free disk, for any program
KIND = 64  # maximum characters of a machine's kind
# torch 2.13 trains on an emulated Nehalem, which has no AVX; without SSE4.1 it cannot create convolutions.
TORCH_FLAGS = frozenset({"sse4_1"})
_X86 = ("x86_64", "AMD64")
_VECTORS = {
    "avx512f": "avx512",
    "avx2": "avx2",
    "avx": "avx",
}  # flag to name, the fastest first: these instruction sets make the largest differences in speed


class Unfit(GridmlError):
    """This machine lacks something that the program needs; another machine may have it."""

    exit_status: ClassVar[int] = UNFIT


class Unequipped(Unfit):
    """A module that the program needs is neither part of the job nor installed on this machine."""

    exit_status: ClassVar[int] = UNEQUIPPED


@dataclass(frozen=True)
class HostFacts:
    """The resources of this machine. None: the system does not report that resource."""

    missing: tuple[str, ...] = ()  # Python modules that the program needs but this machine lacks
    flags: frozenset[str] | None = None  # instruction sets, as in /proc/cpuinfo
    memory: int | None = None  # bytes
    disk: int | None = None  # free bytes


@dataclass(frozen=True)
class Needs:
    """The minimum requirements of a program."""

    memory: int = MEMORY  # bytes
    disk: int = DISK  # bytes
    flags: frozenset[str] = frozenset()  # instruction sets of the processor
    avx: bool = False  # True if AVX is recommended; it is not required


def needs(uses_torch: bool, machine: str | None = None) -> Needs:
    """Return the requirements of a program on the processor architecture `machine`; None: that of this machine."""
    if not uses_torch:
        return Needs()
    x86 = (machine or platform.machine()) in _X86
    return Needs(memory=TORCH_MEMORY, flags=TORCH_FLAGS if x86 else frozenset(), avx=x86)


def judge(facts: HostFacts, needs: Needs) -> tuple[bool, str]:
    """Return (fit, reason). For an unfit machine the reason names everything that is missing, with advice; for a fit
    machine it is a remark, or "".

    A resource that the system does not report counts as sufficient.
    """
    lacking = []
    if facts.missing:
        modules = ", ".join(facts.missing)
        lacking.append(
            f"it takes {modules}, which Python does not find here: send a file of your own with --send, or "
            f"give a Python that has it with --container-image, --packed or --python"
        )
    absent = needs.flags - facts.flags if facts.flags is not None else frozenset()
    if absent:
        lacking.append(
            f"the processor has no {', '.join(sorted(absent))}, which torch needs: keep to newer machines with "
            f"--requirements"
        )
    if facts.memory is not None and facts.memory < needs.memory:
        lacking.append(f"{_short(facts.memory, needs.memory)} of memory: ask for more with --request-memory")
    if facts.disk is not None and facts.disk < needs.disk:
        lacking.append(f"{_short(facts.disk, needs.disk)} of free disk: ask for more with --request-disk")
    if lacking:
        return False, "; ".join(lacking)
    if needs.avx and facts.flags is not None and "avx" not in facts.flags:
        return True, "the processor has no AVX: torch is slower than elsewhere"
    return True, ""


def read(folder: Path, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> HostFacts:
    """Return the resources of this process, its machine and the disk of `folder`. Never raises."""
    flags = _field(proc / "cpuinfo", "flags")
    available = _field(proc / "meminfo", "MemAvailable")
    limits = _limits(proc / "self" / "cgroup", cgroups)
    if available is not None:
        limits.append(int(available.split()[0]) * 1024)
    return HostFacts(
        flags=None if flags is None else frozenset(flags.split()),
        memory=min(limits, default=None),
        disk=_free(folder),
    )


def kind(device: str = CPU, proc: Path = Path("/proc")) -> str:
    """Return the kind of this machine; machines of one kind are taken to be equally fast. For the CPU the
    kind is the architecture and, if known, the vector instructions, as in "x86_64 avx2". For another `device` it
    is torch's name, as in "cuda NVIDIA A100-SXM4-80GB"."""
    if device != CPU:
        import torch

        name = torch.device(device).type
        module = getattr(torch, name)
        model = module.get_device_name(device) if hasattr(module, "get_device_name") else ""
        return f"{name} {model}".strip()[:KIND]
    flags = frozenset((_field(proc / "cpuinfo", "flags") or "").split())
    vectors = next((name for flag, name in _VECTORS.items() if flag in flags), "")
    return f"{platform.machine()} {vectors}".strip()[:KIND]


def missing_module(error: BaseException) -> str | None:
    """Return the module that `error` or its cause reports as missing; None for any other error."""
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    return cause.name if isinstance(cause, ModuleNotFoundError) else None


def demand(facts: HostFacts, needs: Needs) -> str:
    """Return the remark on a fit machine. Raises Unequipped if modules are missing, else Unfit for an unfit machine."""
    fit, reason = judge(facts, needs)
    if not fit:
        raise (Unequipped if facts.missing else Unfit)(f"{platform.node()} cannot run this program: {reason}.")
    return reason


def demand_numba() -> None:
    """Raise Unequipped unless numba, which compiles stages, can be imported."""
    try:
        importlib.import_module("numba")
    except (ImportError, OSError) as error:  # OSError: the compiler's library does not load
        here = f"Python {platform.python_version()} on {platform.machine()}"
        brought = os.environ.get("GRIDML_BROUGHT")
        sent = f", and the job's own, {brought}, is for the Python that its name says" if brought else ""
        raise Unequipped(
            f"{platform.node()} cannot run this program: its stages are compiled by numba, which {here} cannot import "
            f"({error}){sent}. Give a Python that has numba with --container-image, --packed or --python."
        ) from error


def _short(got: int, expected: int) -> str:
    return f"got {got / MEBIBYTE:.0f} MB, expected at least {expected / MEBIBYTE:.0f} MB"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _field(path: Path, name: str) -> str | None:
    """Return the first value of `name` in a file with lines `name : value`."""
    pairs = (line.partition(":") for line in _lines(path))
    return next((value.strip() for key, _, value in pairs if key.strip() == name and value.strip()), None)


def _limits(membership: Path, cgroups: Path) -> list[int]:
    """Return the memory limits in bytes of all control groups (versions 1 and 2) that contain this process.

    The file `membership` has lines `number:controllers:/path`. In a container, the path can be the one on the host,
    while only the root of `cgroups` is visible here. So every group from the path up to the root is read.
    """
    limits = []
    for line in _lines(membership):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = Path(path.lstrip("/"))
        for group in (inner, *inner.parents):
            text = "".join(_lines(root / group / name)).strip()
            if text.isdecimal():  # not "max"
                limits.append(int(text))
    return limits


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None

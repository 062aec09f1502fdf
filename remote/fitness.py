"""The fitness check of a worker's machine for a program, before the first chunk.

An unfit worker exits with a status of its own, so that its work goes elsewhere and the machine is avoided; with another
one where a module is missing that the job could have brought along, which other machines may lack as well.
"""

from __future__ import annotations

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
DISK = 50 * MEBIBYTE
KIND = 64  # characters of a machine's kind, at most
# torch 2.13 trains on an emulated Nehalem, which has no AVX; without SSE4.1 it cannot create convolutions.
TORCH_FLAGS = frozenset({"sse4_1"})
_X86 = ("x86_64", "AMD64")
_VECTORS = {"avx512f": "avx512", "avx2": "avx2", "avx": "avx"}  # the main difference in speed of processors


class Unfit(GridmlError):
    """This machine lacks something that the program needs; another may have it."""

    exit_status: ClassVar[int] = UNFIT


class Unequipped(Unfit):
    """A module that the program needs is neither part of the job nor installed on this machine."""

    exit_status: ClassVar[int] = UNEQUIPPED


@dataclass(frozen=True)
class HostFacts:
    """The resources of this machine; None where the system does not report one."""

    missing: tuple[str, ...] = ()  # modules that were not found
    flags: frozenset[str] | None = None  # instruction sets, as in /proc/cpuinfo
    memory: int | None = None  # bytes
    disk: int | None = None  # free bytes


@dataclass(frozen=True)
class Needs:
    """The minimum requirements of a program."""

    memory: int = MEMORY  # bytes
    disk: int = DISK  # bytes
    flags: frozenset[str] = frozenset()  # of the processor
    avx: bool = False  # recommended, not required


def needs(uses_torch: bool, machine: str | None = None) -> Needs:
    """Return the requirements of a program on a processor architecture, by default that of this machine."""
    if not uses_torch:
        return Needs()
    x86 = (machine or platform.machine()) in _X86
    return Needs(memory=TORCH_MEMORY, flags=TORCH_FLAGS if x86 else frozenset(), avx=x86)


def judge(facts: HostFacts, needs: Needs) -> tuple[bool, str]:
    """Return (fit, reason): everything that is missing, with advice; for a fit machine a remark, or "".

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
    """Return the kind of this machine, by which its speed is compared: "x86_64 avx2", or for a `device` other than the
    CPU torch's name, "cuda NVIDIA A100-SXM4-80GB". Without known flags only the architecture."""
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
    """Return the module that `error` or its cause reports as missing, None for other errors."""
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    return cause.name if isinstance(cause, ModuleNotFoundError) else None


def demand(facts: HostFacts, needs: Needs) -> str:
    """Return the remark on a fit machine. Raises Unfit for an unfit one, Unequipped where modules are missing."""
    fit, reason = judge(facts, needs)
    if not fit:
        raise (Unequipped if facts.missing else Unfit)(f"{platform.node()} cannot run this program: {reason}.")
    return reason


def _short(got: int, expected: int) -> str:
    return f"got {got / MEBIBYTE:.0f} MB, expected at least {expected / MEBIBYTE:.0f} MB"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _field(path: Path, name: str) -> str | None:
    """Return the first value of `name` in a file of `name : value` lines."""
    pairs = (line.partition(":") for line in _lines(path))
    return next((value.strip() for key, _, value in pairs if key.strip() == name and value.strip()), None)


def _limits(membership: Path, cgroups: Path) -> list[int]:
    """Return the memory limits in bytes of the control groups (versions 1 and 2) around this process.

    `membership` has lines `number:controllers:/path`. In a container the path may be that of the host, of which only
    the root is visible, so every group up to the root is read.
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

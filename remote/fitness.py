"""Whether this machine can run a program: what a worker asks of itself before it takes a chunk.

A worker that is unfit leaves with a status of its own, so that its work goes elsewhere and its machine is avoided; with
another one where it lacks what the job could have brought along, which other machines may lack as well.
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
TORCH_MEMORY = 512 * MEBIBYTE  # importing torch takes 220, a small network in training 320
DISK = 50 * MEBIBYTE
KIND = 64  # characters of a machine's kind at most
# torch 2.13 trains on an emulated Nehalem, which has no AVX; without SSE4.1 its convolutions cannot be made.
TORCH_FLAGS = frozenset({"sse4_1"})
_X86 = ("x86_64", "AMD64")
_VECTORS = {"avx512f": "avx512", "avx2": "avx2", "avx": "avx"}  # what makes one processor train faster than another


class Unfit(GridmlError):
    """This machine lacks something the program needs; another may have it."""

    exit_status: ClassVar[int] = UNFIT


class Unequipped(Unfit):
    """The job has not the modules that it takes: neither did it bring them, nor are they here."""

    exit_status: ClassVar[int] = UNEQUIPPED


@dataclass(frozen=True)
class HostFacts:
    """What there is here. `memory` and `disk` are bytes, None where the system does not tell; so are `flags`, the
    processor's own names of its instruction sets. `missing` are modules that could not be found.
    """

    missing: tuple[str, ...] = ()
    flags: frozenset[str] | None = None
    memory: int | None = None
    disk: int | None = None


@dataclass(frozen=True)
class Needs:
    """What the program needs at least: bytes of memory and disk, and processor flags. `avx` is wanted, not needed."""

    memory: int = MEMORY
    disk: int = DISK
    flags: frozenset[str] = frozenset()
    avx: bool = False


def needs(uses_torch: bool, machine: str | None = None) -> Needs:
    """What a program needs on a processor of the kind `machine`, by default this one."""
    if not uses_torch:
        return Needs()
    x86 = (machine or platform.machine()) in _X86
    return Needs(memory=TORCH_MEMORY, flags=TORCH_FLAGS if x86 else frozenset(), avx=x86)


def judge(facts: HostFacts, needs: Needs) -> tuple[bool, str]:
    """(fit, reason): all that is lacking, with what to do about it; of a fit machine what is worth knowing, or "".

    What the system does not tell is taken to be there.
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
    """The facts of this process, its machine and the disk of `folder`. What cannot be read is None; raises nothing."""
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
    """What machine this is, in the few words by which its speed can be compared with others': "x86_64 avx2", or where
    it trains on another device in torch's words, as torch calls that: "cuda NVIDIA A100-SXM4-80GB". A processor that
    tells no flags is named without."""
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
    """The module that `error`, or what caused it, did not find; None when it is about something else."""
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    return cause.name if isinstance(cause, ModuleNotFoundError) else None


def demand(facts: HostFacts, needs: Needs) -> str:
    """What is worth knowing of this fit machine. Raises Unfit when it is not; Unequipped when modules are missing."""
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
    """The first value of `name` in a file of `name : value` lines."""
    pairs = (line.partition(":") for line in _lines(path))
    return next((value.strip() for key, _, value in pairs if key.strip() == name and value.strip()), None)


def _limits(membership: Path, cgroups: Path) -> list[int]:
    """Bytes of memory that each control group around this process allows, version 1 and 2; unlimited ones left out.

    `membership` has lines `number:controllers:/path`. In a container the path may be the host's, of which only the
    root is seen here, so every group up to the root is asked.
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

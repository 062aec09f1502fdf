"""A worker's check of its machine: the decision, the facts for it, and a real worker that leaves."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import remote.fitness
import remote.worker
from gridml.carriers.registry import CARRIERS
from gridml.errors import UNEQUIPPED, UNFIT, ProgramError
from remote.fitness import (
    DISK,
    MEMORY,
    TORCH_MEMORY,
    HostFacts,
    Needs,
    Unequipped,
    Unfit,
    demand,
    judge,
    kind,
    missing_module,
    needs,
    read,
)
from tests.support.chirp_server import proxy

ROOT = Path(remote.fitness.__file__).parents[1]
LIMIT_S = 60
AMPLE = HostFacts(flags=frozenset({"sse4_1", "avx"}), memory=TORCH_MEMORY, disk=DISK)
TORCH = needs(uses_torch=True, machine="x86_64")


@pytest.mark.parametrize("wanted", [Needs(), TORCH, needs(uses_torch=True, machine="aarch64")])
def test_what_is_just_enough_is_enough(wanted: Needs) -> None:
    assert judge(AMPLE, wanted) == (True, "")


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        (replace(AMPLE, missing=("sklearn",)), ["sklearn", "--send", "--container-image"]),
        (replace(AMPLE, flags=frozenset({"avx"})), ["sse4_1", "--requirements"]),
        (replace(AMPLE, memory=TORCH_MEMORY - 2**20), ["got 511 MB", "at least 512 MB", "--request-memory"]),
        (replace(AMPLE, disk=DISK - 2**20), ["got 49 MB", "at least 50 MB", "--request-disk"]),
        (replace(AMPLE, memory=0, disk=0), ["memory", "disk"]),
    ],
    ids=["module", "processor", "memory", "disk", "two"],
)
def test_what_is_lacking_is_said_with_what_to_do(facts: HostFacts, parts: list[str]) -> None:
    fit, reason = judge(facts, TORCH)
    assert not fit
    assert all(words in reason for words in parts) and "\n" not in reason
    with pytest.raises(Unfit):
        demand(facts, TORCH)


def test_torch_needs_more_memory_than_a_program_without() -> None:
    facts = replace(AMPLE, memory=MEMORY)
    assert judge(facts, needs(uses_torch=False))[0] and not judge(facts, TORCH)[0]


def test_a_processor_without_avx_is_fit_and_noted_where_torch_is_used() -> None:
    facts = replace(AMPLE, flags=frozenset({"sse4_1"}))
    assert judge(facts, Needs()) == (True, "")
    fit, note = judge(facts, TORCH)
    assert fit and "AVX" in note and demand(facts, TORCH) == note


def test_what_the_system_does_not_tell_is_taken_to_be_there() -> None:
    assert judge(HostFacts(), TORCH) == (True, "")


def test_this_machine() -> None:
    facts = read(Path.cwd())
    assert facts.memory and facts.disk and facts.missing == ()


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "gone", tmp_path, tmp_path) == HostFacts()


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "max"}, 4096),
        ("0::/job\n", {"job/memory.max": "1000"}, 1000),
        ("0::/slot/job\n", {"slot/job/memory.max": "max", "slot/memory.max": "2000"}, 2000),
        ("0::/of/the/host\n", {"memory.max": "3000"}, 3000),
        ("0::/job\n", {"job/memory.max": "9999999"}, 4096),
        ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "500"}, 500),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 4096),
        ("4:cpu:/job\n", {"memory/job/memory.limit_in_bytes": "500"}, 4096),
    ],
    ids=["unlimited", "v2", "parent", "container", "above", "v1", "v1 unlimited", "another controller"],
)
def test_memory_is_the_smallest_of_what_is_available_and_every_limit(
    tmp_path: Path, membership: str, limits: dict[str, str], expected: int
) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:   8 kB\nMemAvailable:   4 kB\n")
    (proc / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse4_1 avx\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    (proc / "self" / "cgroup").write_text(membership)
    for name, text in limits.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(f"{text}\n")
    facts = read(tmp_path, proc, cgroups)
    assert facts.memory == expected
    assert facts.flags == frozenset({"fpu", "sse4_1", "avx"})


def test_only_a_module_that_is_not_found_counts_as_missing() -> None:
    def caused(cause: BaseException) -> ProgramError:
        error = ProgramError("cannot be loaded")
        error.__cause__ = cause
        return error

    assert missing_module(caused(ModuleNotFoundError("no", name="a.b"))) == "a.b"
    assert missing_module(caused(ImportError("cannot import name", name="a"))) is None
    assert missing_module(ProgramError("found none")) is None


def worker(tmp_path: Path, source: str, *carrier: str) -> subprocess.CompletedProcess[str]:
    """Start a real worker in its own job directory, which must leave by itself."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "program.py").write_text(source)
    command = [sys.executable, "-m", "remote.worker", "--name", "w1", "--program", "program.py", *carrier]
    with proxy(tmp_path, folder / ".chirp.config"):
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "GRIDML_CHIRP_CONFIG": str(folder / ".chirp.config")}
        return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.real
def test_a_worker_leaves_a_machine_that_lacks_a_module(tmp_path: Path) -> None:
    ended = worker(tmp_path, "import gridml\nimport no_such_module\n", "--carrier", "chirp")
    assert ended.returncode == Unequipped.exit_status == UNEQUIPPED != Unfit.exit_status == UNFIT
    assert "no_such_module" in ended.stderr and ended.stderr.count("\n") == 1


def test_a_job_without_what_the_carrier_takes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unequipped, match="it takes paramiko"):
        next(remote.worker._mailboxes(argparse.Namespace(name="w1", directory=None), CARRIERS.find("sftp")))


@pytest.mark.real
@pytest.mark.parametrize(
    ("source", "carrier"),
    [("import no_such_module\n", ["--directory", "."]), ("1 / 0\n", ["--carrier", "chirp"])],
    ids=["module missing at home", "another mistake"],
)
def test_a_mistake_of_the_users_stays_one(tmp_path: Path, source: str, carrier: list[str]) -> None:
    ended = worker(tmp_path, source, *carrier)
    assert ended.returncode == ProgramError.exit_status
    assert "Traceback" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "suffix"),
    [
        ("fpu sse4_1", ""),
        ("fpu sse4_1 avx", " avx"),
        ("fpu avx avx2", " avx2"),
        ("fpu avx avx2 avx512f avx512bw", " avx512"),
        (None, ""),
    ],
)
def test_a_kind_of_machine_is_its_processor(tmp_path: Path, flags: str | None, suffix: str) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert kind(proc=tmp_path) == platform.machine() + suffix


def test_a_kind_of_machine_is_the_gpu_that_it_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker checks its assigned GPU, not the first one of the machine."""
    names = {"cuda:0": "NVIDIA T4", "cuda:1": "NVIDIA A100-SXM4-80GB"}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    assert kind("cuda:1") == "cuda NVIDIA A100-SXM4-80GB"
    assert kind("cuda:0") == "cuda NVIDIA T4"


def test_the_kind_of_this_machine_is_a_few_words() -> None:
    assert 0 < len(kind()) <= 64


def test_a_machine_that_lacks_the_compiler_of_stages_is_unequipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = Path(__file__).parents[1] / "programs" / "factors.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(Unequipped, match=r"compiled by numba.*--packed"):
        remote.worker._load_where_fit(program)

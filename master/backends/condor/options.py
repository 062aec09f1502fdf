"""Options of `gridml submit` that are specific to HTCondor."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.errors import UsageError
from gridml.protocol.foreign import printable
from master.backends.condor.holds import MemoryRange, memory_range
from master.state.jobs import BackendFacts, BackendOptions
from master.state.options import FIRST, check_bounds, described, option

MAX_LINE_CHARS = 8_000  # of a value in a submit description
MAX_CAPABILITY = 1000.0  # a CUDA capability is below this
_GPU_MEMORY = re.compile(r"[1-9][0-9]{0,8}(\.[0-9]{1,3})? ?([KMGT]B?)?")
MAX_COUNT = 10**6  # upper bound of numbers of cores, GPUs, jobs, chunks, hours and seconds
_FROM_0, _FROM_1 = (0, MAX_COUNT), (1, MAX_COUNT)


def check_line(what: str, value: Any) -> None:
    """Raise UsageError for a text or path that is not one printable line; `value` may be a tuple of them."""
    # In a submit description every line is a command: a line break in a value would inject another one.
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str | Path) and not (str(text).isprintable() and len(str(text)) <= MAX_LINE_CHARS):
            raise UsageError(
                f"{what} is {printable(repr(str(text)), 200)}; expected one line of at most {MAX_LINE_CHARS:,} "
                f"printable characters, because each command of a submit description is one line."
            )


def is_url(text: str) -> bool:
    """Return whether a file is a URL (https://..., osdf:///...), which the job's machine fetches itself."""
    return "://" in text


def _placed(text: str) -> str:
    return text if is_url(text) else str(Path(text).absolute())


@dataclass(frozen=True)
class CondorOptions(BackendOptions):
    """The options of the HTCondor back end; the help of each explains it."""

    requirements: str | None = option(None, "Requirements of machines, such as 'HasAVX2 && OpSysMajorVer >= 8'.")
    rank: str | None = option(None, "Preference among machines: an expression, larger is better.")
    request_cpus: int = option(1, "Cores of a job, and threads of its worker.", bounds=_FROM_1)
    request_memory: str = option(
        "2GB..8GB", "Memory of a job: 4GB, or 1GB..4GB to request more after it was too little.", FIRST
    )
    request_disk: str = option("2GB", "Disk of a job.")
    request_gpus: int = option(0, "GPUs of a job.", bounds=_FROM_0)
    gpus_minimum_capability: float | None = option(None, "Lowest CUDA capability of a job's GPUs, such as 8.0.")
    gpus_minimum_memory: str | None = option(None, "Lowest memory of each GPU of a job, such as 20GB.")
    container_image: str | None = option(None, "Container image with Python and the program's imports.")
    packed: str | None = option(None, "Environment from conda-pack or venv-pack, sent with each job; or its URL.")
    python: str | None = option(None, "Python on the job's machine. Default: the same path as here, or python3.")
    without_numba: bool = option(False, "Do not send numba with jobs of a program of stages: the machines have it.")
    send: tuple[str, ...] = option((), "File that the program needs, or its URL; repeatable.")
    project: str | None = option(None, "Project name on the OSPool.")
    attributes: tuple[str, ...] = option((), "Additional job attribute NAME=EXPRESSION.", flags=("--attribute",))
    batch_name: str | None = option(None, "Name of the jobs in condor_q.")
    max_idle: int = option(
        1000,
        "Upper limit of idle jobs. The actual limit is 10, or twice the jobs that the pool started in a minute.",
        bounds=_FROM_1,
    )
    chunks_per_job: int = option(
        0, "Chunks after which a job ends; 0: it runs as long as its machine allows.", bounds=_FROM_0
    )
    job_hours: float = option(
        0.0,
        "Hours after which a worker's job is replaced by another; 0: by the pool's limit (AllowedExecuteDuration, "
        "JobDurationCategory).",
        bounds=_FROM_0,
        expected="0, or the hours that a job may run",
    )
    grace_s: int = option(
        30,
        "Time that a job requests for its last push when it is evicted.",
        flags=("--grace",),
        metavar="SECONDS",
        bounds=_FROM_1,
    )
    job_lease_s: int = option(
        300,
        "Time for which HTCondor tries to reconnect to a job.",
        flags=("--job-lease",),
        metavar="SECONDS",
        bounds=_FROM_1,
    )

    def __post_init__(self) -> None:
        for each in described(CondorOptions):
            check_line(each.flags[0], getattr(self, each.field))
        check_bounds(self)
        self._check_gpus()
        memory_range(self.request_memory)
        # HTCondor resolves relative paths against the run directory; users mean the working directory.
        if self.packed is not None:
            object.__setattr__(self, "packed", _placed(self.packed))
        object.__setattr__(self, "send", tuple(map(_placed, self.send)))
        if self.container_image and os.path.exists(self.container_image):
            object.__setattr__(self, "container_image", str(Path(self.container_image).absolute()))

    def _check_gpus(self) -> None:
        for name in ("gpus_minimum_capability", "gpus_minimum_memory"):
            if getattr(self, name) is not None and not self.request_gpus:
                raise UsageError(
                    f"got --{name.replace('_', '-')} without --request-gpus; expected both, as in --request-gpus 1."
                )
        capability, memory = self.gpus_minimum_capability, self.gpus_minimum_memory
        if capability is not None and not 0 < capability < MAX_CAPABILITY:
            raise UsageError(f"--gpus-minimum-capability is {capability:g}; expected a number such as 8.0, or 9.0.")
        if memory is not None and not _GPU_MEMORY.fullmatch(memory):
            raise UsageError(
                f"--gpus-minimum-memory is {printable(repr(memory), 100)}; expected megabytes, or a size such as 20GB."
            )

    @property
    def memory(self) -> MemoryRange:
        """The parsed --request-memory."""
        return memory_range(self.request_memory)

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts(
            chunks_per_job=self.chunks_per_job, max_idle=self.max_idle, carries_files=True, carriers=("chirp",)
        )

"""What jobs ask of an HTCondor pool: the options of `gridml submit` that are HTCondor's own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from gridml.errors import UsageError
from gridml.protocol.foreign import printable
from master.backends.condor.holds import MemoryRange, memory_range
from master.state.jobs import BackendFacts, BackendOptions
from master.state.options import FIRST, Option

LONGEST_LINE = 8_000  # characters of a value
_MAY_BE_0 = ("request_gpus", "chunks_per_job")
_COUNTS = ("request_cpus", "max_idle", "grace_s", "job_lease_s", *_MAY_BE_0)
MOST_CAPABILITY = 1000.0
_GPU_MEMORY = re.compile(r"[1-9][0-9]{0,8}(\.[0-9]{1,3})? ?([KMGT]B?)?")
MOST = 10**6  # cores, jobs, chunks, seconds


def check_line(what: str, value: Any) -> None:
    """Raise UsageError for text, or a path, or several of them, that is not one line of what prints: a submit
    description has a line for each command, and another line is another command."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str | Path) and not (str(text).isprintable() and len(str(text)) <= LONGEST_LINE):
            raise UsageError(
                f"{what} is {printable(repr(str(text)), 200)}; expected one line of at most {LONGEST_LINE:,} printable "
                f"characters, as a submit description has for each command."
            )


def _option(name: str) -> str:
    """Return how a field is called on the command line."""
    return "--attribute" if name == "attributes" else f"--{name.removesuffix('_s').replace('_', '-')}"


def is_url(text: str) -> bool:
    """Return whether a file is fetched by the machine that a job runs on (https://..., osdf:///...), not sent."""
    return "://" in text


def _placed(text: str) -> str:
    return text if is_url(text) else str(Path(text).absolute())


@dataclass(frozen=True)
class CondorOptions(BackendOptions):
    """`python` and `packed` (a conda-pack or venv-pack archive) name the Python at the far end, unless
    `container_image` has it; `grace_s` is the time between SIGTERM and SIGKILL in seconds, `job_lease_s` how long
    HTCondor looks for a job that is out of reach. The others say in their help what they are.
    """

    requirements: Annotated[str | None, Option("What a machine must be: 'HasAVX2 && OpSysMajorVer >= 8'.")] = None
    rank: Annotated[str | None, Option("Which machines are better than others.")] = None
    request_cpus: Annotated[int, Option("Cores of a job, and threads of a worker.")] = 1
    request_memory: Annotated[
        str, Option("Memory of a job: 4GB, or 1GB..4GB, where more is asked for when less was too little.", FIRST)
    ] = "2GB..8GB"
    request_disk: Annotated[str, Option("Disk of a job.")] = "2GB"
    request_gpus: Annotated[int, Option("GPUs of a job.")] = 0
    gpus_minimum_capability: Annotated[
        float | None, Option("CUDA capability that a job's GPUs have at least: 8.0.")
    ] = None
    gpus_minimum_memory: Annotated[str | None, Option("Memory that each of a job's GPUs has at least: 20GB.")] = None
    container_image: Annotated[str | None, Option("An image that holds Python and what the program imports.")] = None
    packed: Annotated[str | None, Option("An environment from conda-pack or venv-pack, sent along; or its URL.")] = None
    python: Annotated[str | None, Option("The Python at the far end; otherwise this one or python3.")] = None
    send: Annotated[tuple[str, ...], Option("A file the program needs, or its URL; give it again for more.")] = ()
    project: Annotated[str | None, Option("The project name, on the OSPool.")] = None
    attributes: Annotated[
        tuple[str, ...], Option("A further job attribute, NAME=EXPRESSION.", flags=("--attribute",))
    ] = ()
    batch_name: Annotated[str | None, Option("How condor_q names the jobs.")] = None
    max_idle: Annotated[
        int, Option("Jobs that wait in the queue, at most: 10, or twice what the pool started in a minute, up to this.")
    ] = 1000
    chunks_per_job: Annotated[
        int, Option("A job leaves after so many chunks; 0: it stays while its machine lasts.")
    ] = 0
    job_hours: Annotated[
        float,
        Option(
            "A worker leaves before its job has run so long, and another takes its place; 0: as the pool says of "
            "its jobs (AllowedExecuteDuration, JobDurationCategory)."
        ),
    ] = 0.0
    grace_s: Annotated[
        int, Option("Time that a job asks for to push and leave when evicted.", flags=("--grace",), metavar="SECONDS")
    ] = 30
    job_lease_s: Annotated[
        int,
        Option("How long HTCondor looks for a job that is out of reach.", flags=("--job-lease",), metavar="SECONDS"),
    ] = 300

    def __post_init__(self) -> None:
        for field in fields(self):
            check_line(_option(field.name), getattr(self, field.name))
        for name in _COUNTS:
            option, low = _option(name), int(name not in _MAY_BE_0)
            if getattr(self, name) < low:
                raise UsageError(f"{option} is {getattr(self, name)}; expected at least {low}.")
            if getattr(self, name) > MOST:
                raise UsageError(f"{option} is {getattr(self, name):,}; expected at most {MOST:,}.")
        if not 0 <= self.job_hours <= MOST:
            raise UsageError(f"--job-hours is {self.job_hours:g}; expected 0, or the hours that a job may run.")
        self._check_gpus()
        memory_range(self.request_memory)
        # The submit description is read in the run directory.
        if self.packed is not None:
            object.__setattr__(self, "packed", _placed(self.packed))
        object.__setattr__(self, "send", tuple(map(_placed, self.send)))
        if self.container_image and os.path.exists(self.container_image):
            object.__setattr__(self, "container_image", str(Path(self.container_image).absolute()))

    def _check_gpus(self) -> None:
        for name in ("gpus_minimum_capability", "gpus_minimum_memory"):
            if getattr(self, name) is not None and not self.request_gpus:
                raise UsageError(f"got {_option(name)} without --request-gpus; expected both, as in --request-gpus 1.")
        capability, memory = self.gpus_minimum_capability, self.gpus_minimum_memory
        if capability is not None and not 0 < capability < MOST_CAPABILITY:
            raise UsageError(f"--gpus-minimum-capability is {capability:g}; expected a number such as 8.0, or 9.0.")
        if memory is not None and not _GPU_MEMORY.fullmatch(memory):
            raise UsageError(
                f"--gpus-minimum-memory is {printable(repr(memory), 100)}; expected megabytes, or a size such as 20GB."
            )

    @property
    def memory(self) -> MemoryRange:
        """What a job asks for at first and at most."""
        return memory_range(self.request_memory)

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts(
            chunks_per_job=self.chunks_per_job, max_idle=self.max_idle, carries_files=True, carriers=("chirp",)
        )

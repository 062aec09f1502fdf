"""How a run is to be done: parsed once, written into the run directory, never changed deep inside."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.errors import UsageError

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


def host_and_port(text: str) -> tuple[str, int]:
    """(host, port) of `HOST[:PORT]`, 0 for any port; an IPv6 address stands in brackets. Raises UsageError."""
    found = _ADDRESS.fullmatch(text)
    port = int(found[3] or 0) if found else 0
    if found is None or port > 65535 or found[3] == "0":
        raise UsageError(f"--sftp is {text!r}; expected HOST or HOST:PORT where workers reach this machine.")
    return found[1] or found[2], port


@dataclass(frozen=True)
class CondorOptions:
    """What jobs ask of an HTCondor pool, as in a submit description.

    `python` and `packed` (a conda-pack or venv-pack archive) name the Python at the far end, unless `container_image`
    has it; `attributes` are `NAME=EXPRESSION`; `send` are files that travel with every job; `max_idle` bounds the jobs
    that wait; `chunks_per_job` ends a job after so many, 0 means as long as its machine lasts; `grace_s` is the time
    between SIGTERM and SIGKILL, `job_lease_s` how long HTCondor looks for a job that is out of reach; `carrier` is
    chirp or sftp, `sftp` the HOST[:PORT] where workers reach the master's SFTP server.
    """

    requirements: str | None = None
    rank: str | None = None
    request_cpus: int = 1
    request_memory: str = "2GB"
    request_disk: str = "2GB"
    request_gpus: int = 0
    container_image: str | None = None
    python: str | None = None
    packed: Path | None = None
    project: str | None = None
    attributes: tuple[str, ...] = ()
    send: tuple[Path, ...] = ()
    batch_name: str | None = None
    max_idle: int = 10
    chunks_per_job: int = 0
    grace_s: int = 30
    job_lease_s: int = 300
    carrier: str = "chirp"
    sftp: str | None = None

    def __post_init__(self) -> None:
        may_be_0 = ("request_gpus", "chunks_per_job")
        for name in ("request_cpus", "max_idle", "grace_s", "job_lease_s", *may_be_0):
            option, low = f"--{name.removesuffix('_s').replace('_', '-')}", int(name not in may_be_0)
            if getattr(self, name) < low:
                raise UsageError(f"{option} is {getattr(self, name)}; expected at least {low}.")
        if self.carrier not in ("chirp", "sftp"):
            raise UsageError(f"--carrier is {self.carrier!r}; expected chirp or sftp.")
        if self.sftp is not None:
            host_and_port(self.sftp)
            if self.carrier != "sftp":
                raise UsageError("got --sftp without --carrier sftp; expected both, or neither for Chirp.")

    @staticmethod
    def from_json(values: dict[str, Any]) -> CondorOptions:
        packed = values["packed"]
        return CondorOptions(
            **{
                **values,
                "packed": None if packed is None else Path(packed),
                "attributes": tuple(values["attributes"]),
                "send": tuple(map(Path, values["send"])),
            }
        )


@dataclass(frozen=True)
class Settings:
    """Times are in seconds. None means that gridml chooses.

    `lifetime` and `trace` (a file of adds and removes) say how long the workers of the local back end live, `speedup`
    compresses both; `chunk` and `push_every` are vertices; `push_budget` is the share of time that pushes may take.
    """

    program: Path
    backend: str = "local"
    workers: int = 2
    epochs: int | None = None
    seed: int = 0
    lifetime: str | None = None
    trace: Path | None = None
    speedup: float = 1.0
    chunk: int | None = None
    push_every: int | None = None
    push_budget: float = 0.03
    threads: int = 1
    silent_s: float = 120.0
    condor: CondorOptions | None = None

    def __post_init__(self) -> None:
        for name, low in (("workers", 1), ("epochs", 1), ("chunk", 1), ("push_every", 1), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; expected at least {low}.")
        for name, option in (("speedup", "--speedup"), ("push_budget", "push_budget"), ("silent_s", "--silence")):
            if not getattr(self, name) > 0:
                raise UsageError(f"{option} is {getattr(self, name)}; expected a number above 0.")
        if self.lifetime is not None and self.trace is not None:
            raise UsageError(
                "got both --lifetime and --trace; expected one of them, or neither for workers that live on."
            )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = _plain(dataclasses.asdict(self))
        return found

    @staticmethod
    def from_json(values: dict[str, Any]) -> Settings:
        trace, condor = values["trace"], values.get("condor")
        return Settings(
            **{
                **values,
                "program": Path(values["program"]),
                "trace": None if trace is None else Path(trace),
                "condor": None if condor is None else CondorOptions.from_json(condor),
            }
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value

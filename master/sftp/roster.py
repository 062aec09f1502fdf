"""The instances that a run's fleet launched: who may enrol, who has, who said goodbye, and who is gone.

All instances of a fleet share what they are started with, so none has a key at first: each makes its own and shows who
it is (`enrolment.py`). What is known of them lies in files of the folder `fleet` of the run directory, which are the
only truth: a back end writes which instances there are and which have ended, the master's SSH server who enrolled and
who said goodbye, and a master that takes over reads them all. Each file has one writer, and is there whole or not at
all. Whoever reads one that is damaged gets a LedgerError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gridml.errors import LedgerError
from gridml.protocol.bundle import write_atomic

FOLDER = "fleet"
_FLEET = "fleet.json"
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_Record = TypeVar("_Record", "Instance", "Enrolment", "GoodbyeMessage", "End")
_Held = TypeVar("_Held")


@dataclass(frozen=True)
class FleetFacts:
    """What an instance must show to be of the fleet: the token whose SHA-256 this is, and an identity document signed
    with the key of `certificate` (PEM) that names this account, region and image. `run` is the run's name in tags."""

    run: str
    token_sha256: str
    account: str
    region: str
    image: str
    certificate: str


@dataclass(frozen=True)
class Instance:
    """An instance that the fleet launched for worker `worker`; seconds since 1970. `on_demand` is the full price of its
    type in dollars an hour, 0 where nobody knows it; it is paid unless the instance is of the `spot` market."""

    id: str
    worker: str
    type: str
    zone: str
    launched_s: float
    on_demand: float = 0.0
    spot: bool = True


@dataclass(frozen=True)
class Enrolment:
    """An instance made this public key (ed25519, base64 as in OpenSSH's files) its own, from this address."""

    id: str
    public_key: str
    address: str
    enrolled_s: float


@dataclass(frozen=True)
class GoodbyeMessage:
    """What an instance last said of its worker: the exit status, and why it left, in words."""

    id: str
    exit_status: int
    why: str
    said_s: float
    evicted: bool = False  # it had been told that it would be taken away


@dataclass(frozen=True)
class End:
    """An instance is gone, or is refused from now on; `taken` where its provider took it and nobody asked."""

    id: str
    ended_s: float
    why: str
    taken: bool = False


_SUFFIX: Mapping[type[Any], str] = {
    Instance: "instance.json",
    Enrolment: "enrolled.json",
    GoodbyeMessage: "farewell.json",
    End: "ended.json",
}


class Roster:
    """The folder `fleet` of run directory `root`. Names that are no instance's id are known to nobody."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER

    def create(self, facts: FleetFacts) -> None:
        """Keep what instances must show. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._folder / _FLEET, json.dumps(asdict(facts)).encode())

    @property
    def facts(self) -> FleetFacts | None:
        """What instances must show; None where the run has no fleet, or not yet."""
        return _read(self._folder / _FLEET, FleetFacts)

    def keep(self, record: Instance | Enrolment | GoodbyeMessage | End) -> None:
        """Keep what became of an instance, durably. Raises OSError, ValueError for what is no instance's id."""
        if not _ID.fullmatch(record.id):
            raise ValueError(f"got the instance {record.id!r}, expected letters, digits and '-'")
        write_atomic(self._path(type(record), record.id), json.dumps(asdict(record)).encode())

    def ids(self) -> list[str]:
        """All instances that were ever launched."""
        suffix = f".{_SUFFIX[Instance]}"
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))

    def instance(self, id: str) -> Instance | None:
        return self._record(Instance, id)

    def enrolment(self, id: str) -> Enrolment | None:
        return self._record(Enrolment, id)

    def goodbye(self, id: str) -> GoodbyeMessage | None:
        return self._record(GoodbyeMessage, id)

    def end(self, id: str) -> End | None:
        return self._record(End, id)

    def _record(self, kind: type[_Record], id: str) -> _Record | None:
        return _read(self._path(kind, id), kind) if _ID.fullmatch(id) else None

    def _path(self, kind: type[Any], id: str) -> Path:
        return self._folder / f"{id}.{_SUFFIX[kind]}"


def _read(path: Path, kind: type[_Held]) -> _Held | None:
    try:
        return kind(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise LedgerError(f"{path} is damaged ({error}). Move it away, and resume the run: gridml resume") from error

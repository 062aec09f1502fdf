"""The roster of a fleet: launched instances, enrolments, goodbye messages, and ends.

All instances start with the same data, so none starts with a key: each makes its own and proves its identity
(`identity.py`). The files in the folder `fleet` of the run directory are the single source of truth. A back end writes
instances and ends; the master's SSH server writes enrolments and goodbye messages; a new master reads them all. Each
file has one writer and is written atomically. Reading a damaged file raises LedgerError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gridml.dataclass_json import parse
from gridml.errors import LedgerError
from gridml.protocol.bundle import write_atomic

FOLDER = "fleet"
_FLEET = "fleet.json"
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_Record = TypeVar("_Record", "Instance", "Enrolment", "GoodbyeMessage", "End")
_Held = TypeVar("_Held")


@dataclass(frozen=True)
class FleetFacts:
    """Requirements for an instance of the fleet: it must have the token, and a signed identity document with these
    values."""

    run: str  # the run's name in tags
    token_sha256: str  # hexadecimal
    account: str
    region: str
    image: str
    certificate: str  # PEM; its key signs identity documents


@dataclass(frozen=True)
class Instance:
    """An instance that the fleet launched."""

    id: str
    worker: str  # the job that it runs
    type: str
    zone: str
    launched_s: float  # seconds since 1970
    on_demand: float = 0.0  # full price of its type in dollars per hour; 0: unknown
    spot: bool = True  # True: bought on the spot market; False: bought at the full price


@dataclass(frozen=True)
class Enrolment:
    """The enrolment of an instance."""

    id: str
    public_key: str  # ed25519, base64 as in OpenSSH's files
    address: str  # network address that it enrolled from
    enrolled_s: float  # seconds since 1970


@dataclass(frozen=True)
class GoodbyeMessage:
    """The last message of an instance, which reports the end of its worker."""

    id: str
    exit_status: int  # of the worker
    why: str
    said_s: float  # seconds since 1970
    evicted: bool = False  # the provider has given notice that it reclaims the instance


@dataclass(frozen=True)
class End:
    """The end of an instance. Its requests are refused from then on."""

    id: str
    ended_s: float  # seconds since 1970
    why: str
    taken: bool = False  # reclaimed by the provider, not terminated by the user or the run


_SUFFIX: Mapping[type[Any], str] = {
    Instance: "instance.json",
    Enrolment: "enrolled.json",
    GoodbyeMessage: "farewell.json",
    End: "ended.json",
}


class Roster:
    """The folder `fleet` of run directory `root`. Invalid instance ids have no records."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER

    def create(self, facts: FleetFacts) -> None:
        """Write the requirements for instances. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._folder / _FLEET, json.dumps(asdict(facts)).encode())

    @property
    def facts(self) -> FleetFacts | None:
        """The requirements for instances; None if the run has no fleet, or its fleet is not created yet."""
        return _read(self._folder / _FLEET, FleetFacts)

    def keep(self, record: Instance | Enrolment | GoodbyeMessage | End) -> None:
        """Write a record of an instance durably. Raises OSError, ValueError for an invalid id."""
        if not _ID.fullmatch(record.id):
            raise ValueError(f"got the instance {record.id!r}, expected letters, digits and '-'")
        write_atomic(self._path(type(record), record.id), json.dumps(asdict(record)).encode())

    def ids(self) -> list[str]:
        """Return the ids of all instances that were ever launched, sorted."""
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
        return parse(kind, path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LedgerError(f"{path} is damaged ({error}). Move it away, and resume the run: gridml resume") from error

"""The master's side of enrolment: the subsystem `enrol` of its SSH server, for fleets whose machines make their own
keys (`gridml/carriers/enrolment.py` is the machines').

Whoever reaches the port may open it, as user `enrol` and with any key: it asks for the fleet's token and a signed
identity document, and reads and writes the roster (`roster.py`), nothing else. A job's user may say goodbye there.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, LONGEST_LOG, SUBSYSTEM, USER, Assignment, read_line
from gridml.errors import GridmlError
from gridml.protocol.text import printable
from master.decisions.enrolment import RETRY_S, Launched, Request, Verdict, on_request
from master.sftp.identity import identity_of, signed, token_fits
from master.sftp.roster import Enrolment, Farewell, FleetFacts, Instance, Roster

LOGS = "logs"  # the run's folder of what workers wrote
REQUESTS = 4  # on one channel
LINE_S = 10.0  # within which a request must have come


@dataclass(frozen=True)
class Entry:
    """Who came in with which public key: `USER` to enrol, or a job; `instance` is the machine that enrolled for it.
    With no `files`, as when its job is over, it has only goodbye to say."""

    user: str
    public_key: str
    instance: str | None = None
    files: bool = True


class Registrar:
    """Answers what machines ask, by the roster of run directory `root`; `clock` gives seconds since 1970.

    Threads share it. What it is asked is looked at one after the other, so that of two keys for one instance one is
    the first.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._roster, self._bundle, self._clock = Roster(root), root / BUNDLE, clock
        self._logs = root / LOGS
        self._lock = threading.Lock()

    @property
    def has_fleet(self) -> bool:
        return self._roster.facts is not None

    def instance_of(self, job: str, public_key: str) -> str | None:
        """The instance of a job that enrolled with this key and has not ended; None where there is none."""
        launched = (self._roster.instance(id) for id in self._roster.ids())
        for instance in launched:
            if instance is not None and instance.worker == job and self.is_there(instance.id):
                enrolment = self._roster.enrolment(instance.id)
                if enrolment is not None and enrolment.public_key == public_key:
                    return instance.id
        return None

    def is_there(self, id: str) -> bool:
        """Whether nobody has said that an instance has ended."""
        return self._roster.end(id) is None

    def answer(self, line: bytes, entry: Entry, address: str) -> dict[str, Any]:
        """The answer to a request of who came in so, from `address`. Raises OSError where the roster cannot be read or
        written, LedgerError where it is damaged."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        match values:
            case {"op": "enrol", "fleet_token": str(token), "document": str(document), "signature": str(signature)} if (
                entry.user == USER
            ):
                with self._lock:
                    return self._enrol(token, document, signature, entry.public_key, address)
            case {"op": "farewell", "exit_status": int(status), "why": str(why), "evicted": bool(evicted)} if (
                entry.instance
            ):
                log = values.get("log")
                with self._lock:
                    if isinstance(log, str):
                        self._keep_log(entry.user, log)
                    return self._farewell(entry.instance, status, why, evicted)
        return _refused("this is no request that is known here")

    def _enrol(self, token: str, document: str, signature: str, public_key: str, address: str) -> dict[str, Any]:
        facts = self._roster.facts
        if facts is None:
            return _refused("this run has no fleet")
        request = self._request(facts, token, document, signature, public_key)
        verdict, why = on_request(request, facts.account, facts.region, facts.image)
        if verdict is Verdict.REFUSE or request.identity is None:
            return _refused(why)
        instance = self._roster.instance(request.identity.instance)
        if verdict is Verdict.WAIT or instance is None:
            return _refused(why, RETRY_S)
        try:
            assignment = self._assignment(instance)
        except FileNotFoundError:
            return _refused("the run's bundle is not there yet", RETRY_S)
        if request.launched is None or request.launched.public_key is None:
            self._roster.keep(Enrolment(instance.id, public_key, address, self._clock()))
        return assignment

    def _request(self, facts: FleetFacts, token: str, document: str, signature: str, public_key: str) -> Request:
        """Who has not the token costs a SHA-256; only a genuine document has the roster looked at."""
        if not token_fits(token, facts.token_sha256):
            return Request(public_key, False, False, None, None)
        if not signed(document, signature, facts.certificate):
            return Request(public_key, True, False, None, None)
        identity = identity_of(document)
        launched = None if identity is None else self._launched(identity.instance)
        return Request(public_key, True, True, identity, launched)

    def _launched(self, id: str) -> Launched | None:
        roster = self._roster
        instance, enrolment, farewell = roster.instance(id), roster.enrolment(id), roster.farewell(id)
        if instance is None:
            return None
        return Launched(
            instance.launched_s,
            None if enrolment is None else enrolment.public_key,
            ended=roster.end(id) is not None,
            evicted=farewell is not None and farewell.evicted,
        )

    def _assignment(self, instance: Instance) -> dict[str, Any]:
        """What the back end left in the bundle, as it is sent. Raises OSError, ValueError where that is none."""
        described = json.loads((self._bundle / BUNDLE_DESCRIPTION).read_text())
        values = {"job": instance.worker, **{name: described[name] for name in ("files", "program")}}
        values |= {name: described[name] for name in ("arguments", "environment") if name in described}
        Assignment.of(values)
        return values

    def _keep_log(self, worker: str, log: str) -> None:
        """In place of what the worker's machine said before, so that it takes no more room however often it speaks. One
        that cannot be kept is no reason to refuse the rest."""
        with contextlib.suppress(OSError):
            self._logs.mkdir(exist_ok=True)
            (self._logs / f"{worker}.log").write_text(f"{printable(log, LONGEST_LOG)}\n", encoding="utf-8")

    def _farewell(self, id: str, status: int, why: str, evicted: bool) -> dict[str, Any]:
        if not self.is_there(id):
            return _refused("this machine is known to have ended")
        self._roster.keep(Farewell(id, max(-255, min(status, 255)), printable(why), self._clock(), evicted))
        return {"ok": True}


class EnrolSession(paramiko.SubsystemHandler):  # type: ignore[misc]
    """A channel on which a machine asks: a line of JSON each, and a line for an answer."""

    def __init__(self, channel: Any, door: Any, registrar: Registrar, entry: Entry, address: str) -> None:
        super().__init__(channel, SUBSYSTEM, door)
        self._registrar, self._entry, self._address = registrar, entry, address

    def start_subsystem(self, name: str, transport: Any, channel: Any) -> None:
        try:
            for _ in range(REQUESTS):
                line = read_line(channel, LINE_S)
                if line is None:
                    break
                channel.sendall(json.dumps(self._answer(line)).encode() + b"\n")
            channel.send_exit_status(0)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # a line that is too long or comes too late, or a machine that has gone: the channel is closed

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            return self._registrar.answer(line, self._entry, self._address)
        except (OSError, GridmlError, ValueError, KeyError, TypeError, AttributeError):  # the roster's, the bundle's
            return _refused("the master cannot read or write what it knows of its fleet", RETRY_S)


def _refused(why: str, retry_s: float | None = None) -> dict[str, Any]:
    return {"refused": why, "retry_s": retry_s}

"""The master's SFTP server, through which jobs access their mailboxes and the chunks.

It serves jobs that may connect to the submit host. Each job has its own key, in a file `sftp/JOB` of the run directory
that is sent with the job. These files are the single source of truth: a job without a file is refused. The server's own
key and port are saved in the same folder, so that a restarted master is the same server at the same address.

In a run with a fleet, machines make their own keys, and the file of a job holds no key. The job's key is then the key
with which a machine enrolled for the job (`identity.py`). This key is valid until the machine ends.

The mailboxes are folders of the run directory. A job has a credential as long as one of its attempts has a mailbox.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import json
import os
import re
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paramiko

from gridml.carriers.base import Forwarding
from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.enrolment import SUBSYSTEM, USER, new_key
from gridml.carriers.sftp import TIMEOUT_S, Address, Credential, hang_up, host_and_port, keep_alive, prepare
from gridml.errors import LedgerError, RunError, UsageError
from gridml.protocol.bundle import write_secret
from gridml.protocol.outbox import job_of
from master.sftp.identity import EnrolSession, Login, Registrar
from master.sftp.jail import Jail, Quota, QuotaUsage, View

FOLDER = "sftp"
MAIL = "mail"  # folder of the mailboxes
OWN = "server.json"  # the server's key and port; unlike this name, the name of a job's credential has no dot
LOGIN_TIMEOUT_S = 20.0  # maximum time for a connection to authenticate, and for a machine to enrol
MAX_ANONYMOUS = 32  # connections without a job; one more closes the oldest connection of the busiest address
MAX_JOB_CONNECTIONS = 4  # connections of a job; older connections count as abandoned and are closed
MAX_SESSIONS = 8  # open sessions on a connection; a worker uses three
MAX_CHANNELS = 256  # channels that were ever opened on a connection
SWEEP_S = 1.0  # between two checks for connections to close
_JOB = re.compile(r"[A-Za-z0-9_-]{1,100}")


class MailServer:
    """Serves a run's mailboxes and chunks by SFTP from its construction until `close`.

    `address` is the HOST[:PORT] at which workers reach this machine; the default is its full name and any free port. If
    HOST is an IP address of this machine, the server listens only at that address, otherwise at all addresses. Raises
    UsageError for an invalid address, RunError if the server cannot listen. `quota` may be replaced at any time.

    Connections count from the moment they are accepted, before anything is sent on them. With J jobs there are at most
    `MAX_ANONYMOUS` + J · `MAX_JOB_CONNECTIONS` connections, plus those that authenticate within one `SWEEP_S`. Machines
    that enrol count as anonymous, because any key is accepted for enrolment.
    """

    def __init__(self, root: Path, address: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.quota = Quota()
        self.registrar = Registrar(root)
        self._usages: dict[str, QuotaUsage] = {}  # by job; guarded by `_lock`
        self._root, self._clock = root, clock
        self._folder = root / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o700)
        self._host, port = (socket.getfqdn(), 0) if address is None else host_and_port(address)
        text, last = self._kept()
        self._key = _key(text)
        self._listening = _listen(self._host, port, last)
        self._port: int = self._listening.getsockname()[1]
        write_secret(self._folder / OWN, json.dumps({"private_key": text, "port": self._port}))
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []  # oldest first; guarded by `_lock`
        self._over = threading.Event()
        for job in self._jobs():
            self._renew(job)
        self._thread = threading.Thread(target=self._serve, name="sftp", daemon=True)
        self._thread.start()

    def make(self, job: str) -> None:
        """Write a credential for a job, unless it has one. In a run with a fleet, the file holds no key. Raises
        OSError, UsageError for an invalid job name."""
        if not _JOB.fullmatch(job) or job == USER:
            raise UsageError(f"got the job name {job!r}, expected letters, digits, '-' and '_', and not {USER!r}")
        if not (self._folder / job).exists():
            private_key = "" if self.registrar.has_fleet else new_key()
            made = Credential(self._host, self._port, self._key.get_base64(), job, private_key)
            write_secret(self._folder / job, made.to_json())

    def remove(self, job: str) -> None:
        """Revoke a job's credential and close the job's connections. A job without a credential is ignored."""
        if _JOB.fullmatch(job):
            (self._folder / job).unlink(missing_ok=True)
        with self._lock:
            self._usages.pop(job, None)
            for connection in self._connections:
                if connection.transport.get_username() == job:
                    hang_up(connection.transport)

    def keep(self, jobs: Collection[str]) -> None:
        """Remove the credentials of all jobs except `jobs`."""
        for job in self._jobs():
            if job not in jobs:
                self.remove(job)

    def close(self) -> None:
        """Close every connection and join the threads. The credentials remain valid for the next master. Idempotent."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join()
        self._listening.close()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            hang_up(connection.transport)
        for connection in connections:
            connection.transport.join(TIMEOUT_S)
            for session in connection.handler.sessions:
                session.join(TIMEOUT_S)

    @property
    def address(self) -> Address:
        """The address at which workers reach this server."""
        return Address(self._host, self._port, self._key.get_base64())

    def authenticate(self, user: str, key: Any) -> Login | None:
        """Return the login of `user` with this public key, or None if it is refused. Reads the present files."""
        shown = str(key.get_base64())
        if not _JOB.fullmatch(user):
            return None
        try:
            has_fleet = self.registrar.has_fleet
            if user == USER:
                return Login(user, shown, files=False) if has_fleet and key.get_name() == "ssh-ed25519" else None
            if has_fleet:
                instance = self.registrar.instance_of(user, shown)
                files = (self._folder / user).exists()
                return None if instance is None else Login(user, shown, instance, files)
            private_key = Credential.read(self._folder / user).private_key
            return Login(user, shown) if _key(private_key).get_base64() == shown else None
        except (OSError, ValueError, LedgerError, paramiko.SSHException):
            return None

    def view(self, handler: Any, job: str) -> View:
        with self._lock:
            usage = self._usages.setdefault(job, QuotaUsage(self._root / MAIL))
        return View(handler, Jail(self._root, job, self.quota, usage))

    def _jobs(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if _JOB.fullmatch(name))

    def _kept(self) -> tuple[str, int]:
        """Return (private key, port) as an earlier master saved them; a new key and 0 if none are saved or readable."""
        try:
            kept = json.loads((self._folder / OWN).read_text())
            _key(kept["private_key"])
            return str(kept["private_key"]), int(kept["port"])
        except Exception:  # parsers of damaged keys raise many types
            return new_key(), 0

    def _renew(self, job: str) -> None:
        """Update the server's address in a credential that an earlier master wrote, or remove an unreadable file."""
        path = self._folder / job
        try:
            credential = Credential.read(path)
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return
        renewed = replace(credential, host=self._host, port=self._port, host_key=self._key.get_base64())
        if renewed != credential:
            write_secret(path, renewed.to_json())

    def _serve(self) -> None:
        self._listening.settimeout(SWEEP_S)
        while not self._over.is_set():
            connection, address = None, ""
            try:
                connection, (address, *_) = self._listening.accept()
            except TimeoutError:
                pass
            except OSError:
                self._over.wait(SWEEP_S)  # the socket was closed, or too many files are open for a while
            with self._lock:
                self._sweep()
                if connection is not None:
                    self._receive(connection, address)

    def _sweep(self) -> None:
        """Close connections: those that have not authenticated in time, the oldest ones of a job with too many, and
        those of ended machines."""
        entered: Counter[str | None] = Counter()
        for connection in reversed(self._connections):
            if not connection.is_anonymous:
                entered[connection.job] += 1
                if entered[connection.job] > MAX_JOB_CONNECTIONS or self._has_ended(connection):
                    hang_up(connection.transport)
            elif self._clock() - connection.began_s > LOGIN_TIMEOUT_S:
                hang_up(connection.transport)
        self._connections = [c for c in self._connections if c.transport.is_active()]

    def _has_ended(self, connection: _Connection) -> bool:
        login = connection.handler.login
        if login is None or login.instance is None:
            return False
        try:
            return not self.registrar.is_running(login.instance)
        except (OSError, LedgerError):  # too many open files, or a damaged roster: the next sweep retries
            return False

    def _receive(self, connection: socket.socket, address: str) -> None:
        """Serve a connection on its own threads. If too many connections are anonymous, first close one: the oldest
        anonymous connection of the address that has the most of them. So no address can lock out the others."""
        anonymous = [c for c in self._connections if c.is_anonymous]
        try:
            if self._over.is_set():
                raise ConnectionAbortedError(errno.ECONNABORTED, "the server stops")
            if len(anonymous) >= MAX_ANONYMOUS:
                busiest = Counter(c.handler.address for c in anonymous).most_common(1)[0][0]
                hang_up(next(c.transport for c in anonymous if c.handler.address == busiest))
            keep_alive(connection, TIMEOUT_S)
            transport = paramiko.Transport(connection)
            # The interval at which the connection's thread polls. Paramiko's 0.1 s would add up over all connections.
            connection.settimeout(SWEEP_S)
            prepare(transport, LOGIN_TIMEOUT_S)
            transport.add_server_key(self._key)
            handler = _ConnectionHandler(self, address)
            transport.start_server(event=threading.Event(), server=handler)
        except (OSError, RuntimeError, paramiko.SSHException):  # RuntimeError: cannot start another thread
            connection.close()
            return
        self._connections.append(_Connection(transport, handler, self._clock()))


@dataclass(frozen=True)
class _Connection:
    transport: Any
    handler: _ConnectionHandler
    began_s: float

    @property
    def job(self) -> str | None:
        name: str | None = self.transport.get_username()
        return name

    @property
    def is_anonymous(self) -> bool:
        return self.job == USER or not self.transport.is_authenticated()


class SftpSession(paramiko.SFTPServer):  # type: ignore[misc]
    """An SFTP session that reports exit status 0, without which OpenSSH's sftp and scp consider a transfer failed."""

    def start_subsystem(self, name: str, transport: Any, channel: Any) -> None:
        super().start_subsystem(name, transport, channel)
        if not channel.closed:
            channel.send_exit_status(0)


class _ConnectionHandler(paramiko.ServerInterface):  # type: ignore[misc]
    """Authorises the requests of one connection: to authenticate, then to start SFTP (as a job) or enrolment. paramiko
    refuses all requests whose methods are not overridden here."""

    def __init__(self, server: MailServer, address: str) -> None:
        self._server, self.address = server, address
        self._channels = 0
        self.login: Login | None = None
        self.sessions: list[threading.Thread] = []

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        """Return whether a key is accepted. Paramiko then demands proof that the client holds the private half. After
        the proof paramiko does not call this method again, so `login` belongs to the proved key."""
        self.login = self._server.authenticate(username, key)
        return int(paramiko.AUTH_FAILED if self.login is None else paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, channel_type: str, chanid: int) -> int:
        self._channels += 1
        if channel_type != "session" or self._channels > MAX_CHANNELS:
            return int(paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_subsystem_request(self, channel: Any, name: str) -> bool:
        self.sessions = [session for session in self.sessions if session.is_alive()]
        if self.login is None or len(self.sessions) >= MAX_SESSIONS:
            return False
        session = self._session(channel, name, self.login)
        if session is None:
            return False
        session.daemon = True
        session.start()
        self.sessions.append(session)
        return True

    def _session(self, channel: Any, name: str, login: Login) -> Any:
        if name == "sftp" and login.files:
            return SftpSession(channel, name, self, self._server.view, login.user)
        if name == SUBSYSTEM and (login.user == USER or login.instance is not None):
            return EnrolSession(channel, self, self._server.registrar, login, self.address)
        return None


def _listen(host: str, port: int, last: int) -> socket.socket:
    """Listen at `port`. If `port` is 0, listen at the `last` port if it is free, otherwise at any free port."""
    for candidate in [port] if port else [last, 0] if last else [0]:
        try:
            return _bound(host, candidate)
        except (OSError, OverflowError) as error:  # OverflowError: the saved port is damaged
            failure = error
    raise RunError(
        f"the SFTP server cannot listen at port {port} for {host}: {failure}. Name a port that is free, or "
        f"none for any, with --address HOST[:PORT]."
    ) from failure


def _bound(host: str, port: int) -> socket.socket:
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(host).version
        try:
            return socket.create_server((host, port), family=socket.AF_INET if version == 4 else socket.AF_INET6)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # this error: `host` is of another machine, which forwards a port
                raise
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _key(text: str) -> Any:
    return paramiko.Ed25519Key(file_obj=io.StringIO(text))


class SftpMailboxes(Forwarding):
    """The mailboxes of run directory `root`, served at `address` until `stop`. Raises what `MailServer` does."""

    def __init__(self, root: Path, address: str | None = None) -> None:
        super().__init__(DirectoryMailboxes(root))
        self._server = MailServer(root, address)
        self._open: defaultdict[str, set[str]] = defaultdict(set)  # by job: its attempts with a mailbox

    def open(self, worker: str) -> None:
        self._server.make(job_of(worker))
        self._open[job_of(worker)].add(worker)
        super().open(worker)

    def limit(self, longest: int) -> None:
        super().limit(longest)
        self._server.quota = Quota(longest)

    def clear(self) -> None:
        self._open.clear()
        self._server.keep(())
        super().clear()

    def close(self, worker: str) -> None:
        super().close(worker)
        attempts = self._open[job_of(worker)]
        attempts.discard(worker)
        if not attempts:
            del self._open[job_of(worker)]
            self._server.remove(job_of(worker))

    def stop(self) -> None:
        self._server.close()
        super().stop()

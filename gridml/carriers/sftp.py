"""The SFTP carrier: a worker accesses the run directory through the master's own SSH server.

It is for pools whose machines are allowed to connect to the submit host. The worker has the key of its job, accepts
only the known key of the server, and sees only its own mailboxes and the chunks (`master/sftp`). This module also
defines the SSH algorithms of both ends, and connects to a server with a known key. paramiko is imported on the first
connection, so that other carriers do not need it.

The protocol is SFTP of draft-ietf-secsh-filexfer-02, with OpenSSH's posix-rename.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import ipaddress
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gridml.carriers.file_link import FileLink, FileMailbox, temporary_path
from gridml.carriers.registry import Carrier, Connection
from gridml.dataclass_json import parse
from gridml.errors import RunError, UsageError
from gridml.protocol.payload import Payload, Received, in_pieces

TIMEOUT_S = 20.0  # after this time without progress in a step, the connection counts as broken
ALIVE_S = 30  # seconds of silence before a keepalive probe
_LOGGER = "gridml.sftp"
# Both ends are gridml's, so only algorithms beyond doubt are offered: authenticated ciphers, or counter mode with
# encrypt-then-mac; no SHA-1, MD5 or CBC; ed25519 keys and signatures.
_ALGORITHMS = {
    "ciphers": ("aes128-ctr", "aes192-ctr", "aes256-ctr", "aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
    "digests": ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"),
    "kex": ("mlkem768x25519-sha256", "curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256"),
    "key_types": ("ssh-ed25519",),
    "compression": ("none",),
}
_KEEPALIVE = (("TCP_KEEPIDLE", ALIVE_S), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True)
class Address:
    """The address of the master's server."""

    host: str
    port: int
    host_key: str  # the server's public key: ed25519, base64 as in OpenSSH's files

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def connected(address: Address, user: str, private_key: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Return a paramiko.Transport to a server that has proved the host key of `address`. The transport is authenticated
    as `user` with a private key (ed25519, OpenSSH's format). Raises PermissionError if the server has another host key,
    and what paramiko raises."""
    paramiko = importlib.import_module("paramiko")
    connection = socket.create_connection((address.host, address.port), timeout_s)
    keep_alive(connection, timeout_s)
    transport = paramiko.Transport(connection)
    try:
        prepare(transport, timeout_s)
        transport.start_client(timeout=timeout_s)
        if transport.get_remote_server_key().get_base64() != address.host_key:
            raise PermissionError(errno.EACCES, "another server answers there: its key is not the master's")
        _authenticate(transport, user, paramiko.Ed25519Key(file_obj=io.StringIO(private_key)), timeout_s)
    except BaseException:
        hang_up(transport)
        raise
    return transport


def _authenticate(transport: Any, user: str, key: Any, timeout_s: float) -> None:
    """Authenticate with a key. Raises AuthenticationException only if the server refuses the key."""
    # paramiko's own call raises AuthenticationException for a broken connection and for a timeout, too.
    paramiko = importlib.import_module("paramiko")
    answered = threading.Event()
    transport.auth_publickey(user, key, answered)
    if not answered.wait(timeout_s):
        raise TimeoutError
    if not transport.is_authenticated():
        if not transport.is_active():
            raise EOFError
        raise transport.get_exception() or paramiko.AuthenticationException("the key is unknown there")


def subsystem(transport: Any, name: str, timeout_s: float) -> Any:
    """Return a new paramiko.Channel with a subsystem. On a timeout, the transport is closed. Raises what paramiko
    raises."""
    channel = transport.open_session(timeout=timeout_s)
    channel.settimeout(timeout_s)
    # `invoke_subsystem` has no timeout. It blocks forever if the master's process is stopped (SIGSTOP) and not dead.
    limit = threading.Timer(timeout_s, hang_up, (transport,))
    limit.daemon = True
    limit.start()
    try:
        channel.invoke_subsystem(name)
    finally:
        limit.cancel()
    return channel


def prepare(transport: Any, timeout_s: float) -> None:
    """Set the timeouts and the algorithms of a paramiko.Transport, and keep its log off the terminal."""
    logger = logging.getLogger(_LOGGER)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    transport.set_log_channel(_LOGGER)
    transport.banner_timeout = transport.handshake_timeout = timeout_s
    transport.auth_timeout = transport.channel_timeout = timeout_s
    options = transport.get_security_options()
    for kind, allowed in _ALGORITHMS.items():  # take those that this version of paramiko has, in paramiko's order
        setattr(options, kind, tuple(name for name in getattr(options, kind) if name in allowed))


def keep_alive(connection: socket.socket, timeout_s: float) -> None:
    """Let the kernel close a connection if the peer is gone or acknowledges nothing for `timeout_s`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", int(1e3 * timeout_s))):
        if hasattr(socket, name):  # some systems lack some of these options
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hang_up(transport: Any) -> None:
    """Close a paramiko.Transport at once."""
    # The transport's thread takes up to 0.1 s to notice `close`, but notices at once that the socket was shut down.
    with contextlib.suppress(OSError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()
    transport.sock.close()


@contextlib.contextmanager
def as_oserror(paramiko: Any, what: str) -> Iterator[None]:
    """Turn everything that paramiko raises into an OSError with an errno, and a broken connection into a
    ConnectionError."""
    try:
        yield
    except paramiko.AuthenticationException as error:
        raise PermissionError(errno.EACCES, f"the master's server refused this job's key: {error}", what) from error
    except (paramiko.SSHException, paramiko.SFTPError, EOFError) as error:
        raise ConnectionResetError(errno.ECONNRESET, str(error) or os.strerror(errno.ECONNRESET), what) from error
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), what) from error
    except OSError as error:
        if error.errno is None:  # the server answered "failure", or paramiko found the socket closed
            raise OSError(errno.EIO, str(error), what) from error
        error.filename = error.filename or what
        raise


READ = 1 << 20  # bytes per request; an SFTP server can send less
WRITE = 255 << 10  # maximum bytes per request: the limit of OpenSSH's server
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Credential(Address):
    """The credential of one job, for the server at this address."""

    user: str
    private_key: str  # ed25519, OpenSSH's format; empty if the job's machine makes its own key

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def read(path: Path) -> Credential:
        """Read a credential from a file. Raises OSError if the file cannot be read, ValueError for an invalid
        credential."""
        return parse(Credential, path.read_bytes())

    def __repr__(self) -> str:  # keeps the key out of tracebacks and logs
        return f"Credential({self.user!r} at {self})"


class SftpConnection:
    """One SSH connection that several links share. Connects on first use, and reconnects after a broken connection."""

    def __init__(self, credential: Credential, timeout_s: float = TIMEOUT_S) -> None:
        self.credential = credential
        self.timeout_s = timeout_s
        self._transport: Any = None  # guarded by `_lock`
        self._lock = threading.Lock()

    def session(self) -> Any:
        """Return a new paramiko.SFTPClient. Raises OSError."""
        paramiko = importlib.import_module("paramiko")
        wanted = self.credential
        with self._lock, as_oserror(paramiko, str(wanted)):
            if self._transport is None or not self._transport.is_active():
                self._transport = None  # drops a dead transport even if `connected` raises
                self._transport = connected(wanted, wanted.user, wanted.private_key, self.timeout_s)
            try:
                return paramiko.SFTPClient(subsystem(self._transport, "sftp", self.timeout_s))
            except BaseException:
                self._hang_up()
                raise

    def abandon(self, session: Any) -> None:
        """Close the connection of a session that no longer answers, unless the connection has been replaced since."""
        with self._lock:
            if self._transport is session.get_channel().get_transport():
                self._hang_up()

    def close(self) -> None:
        """Close the connection and all its sessions. Idempotent; the next session reconnects."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            hang_up(transport)


@dataclass
class _PartialFile:
    """An interrupted download. It is resumed if the file is unchanged."""

    path: str
    size: int
    written: Any  # mtime of the file
    arrived: Received  # the beginning of the file, as far as it has arrived


class SftpLink(FileLink):
    """One SFTP session on a connection, which other links can share.

    If a broken connection interrupts a download, the next call for the file resumes it. An upload is resumed, even by
    another process, if the path contains the SHA-256 of the content, because a partial file at such a path can only be
    a prefix of the content. Only the reader verifies the SHA-256.
    """

    def __init__(self, connection: SftpConnection) -> None:
        self._connection = connection
        self._half: _PartialFile | None = None  # the download that the last `get` left unfinished
        self._sftp: Any = None
        self._lock = threading.Lock()

    def list(self, folder: str) -> list[str]:
        with self._exchange(folder) as sftp:
            return [str(name) for name in sftp.listdir(folder)]

    def get(self, path: str) -> Received:
        with self._exchange(path) as sftp:
            file = sftp.open(path, "rb")
            file.MAX_REQUEST_SIZE = READ
            status = file.stat()
            half = self._half
            if half is None or (half.path, half.size, half.written) != (path, status.st_size, status.st_mtime):
                half = self._half = _PartialFile(path, status.st_size, status.st_mtime, Received(status.st_size))
            file.seek(half.arrived.received)
            while part := file.read(min(READ, half.arrived.missing)):
                half.arrived.take(part)
            file.close()
            half.arrived.end()
            self._half = None
            return half.arrived

    def put(self, path: str, payload: Payload) -> None:
        with self._exchange(path) as sftp:
            self._store(sftp, temporary_path(path), payload)
            sftp.posix_rename(temporary_path(path), path)

    def write(self, path: str, payload: Payload) -> None:
        with self._exchange(path) as sftp:
            self._store(sftp, path, payload)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._exchange(path) as sftp:
            sftp.remove(path)

    def close(self) -> None:
        """Close the session; the connection stays open for other links."""
        with self._lock:
            self._half = None
            self._drop()

    @staticmethod
    def _store(sftp: Any, path: str, payload: Payload) -> None:
        file, arrived = _opened(sftp, path, len(payload))
        file.MAX_REQUEST_SIZE = WRITE
        file.set_pipelined(len(payload) > WRITE)
        file.seek(arrived)
        for block in in_pieces(payload).blocks(WRITE, arrived):
            file.write(block)
        # paramiko discards the answers to pipelined requests, so only the file's size reveals a full disk.
        stored = file.stat().st_size if len(payload) > WRITE else len(payload)
        file.close()
        if stored != len(payload):
            raise OSError(errno.EIO, f"{stored} of {len(payload)} bytes arrived")

    @contextlib.contextmanager
    def _exchange(self, path: str) -> Iterator[Any]:
        """Hold the session exclusively for calls on `path`. Turns any failure into an OSError.

        A file that is open when a call fails is closed with the session, because closing the file could block again.
        """
        paramiko = importlib.import_module("paramiko")
        with self._lock:
            try:
                with as_oserror(paramiko, path):
                    if self._sftp is None:
                        self._sftp = self._connection.session()
                    yield self._sftp
            except (FileNotFoundError, PermissionError):
                raise  # the server has answered, so the session stays usable
            except OSError as error:
                if self._sftp is not None and isinstance(error, ConnectionError | TimeoutError):
                    self._connection.abandon(self._sftp)
                self._drop()  # the rest of this answer must not be read as the answer to the next call
                raise

    def _drop(self) -> None:
        sftp, self._sftp = self._sftp, None
        if sftp is not None:
            with contextlib.suppress(Exception):  # the session may be broken already
                sftp.close()


def _opened(sftp: Any, path: str, longest: int) -> tuple[Any, int]:
    """Return (open file, offset) for an upload of `longest` bytes. The offset is the length of a partial file whose
    path contains a SHA-256, and 0 otherwise."""
    if longest > WRITE and _SHA256.search(path):
        with contextlib.suppress(FileNotFoundError):
            file = sftp.open(path, "r+b")
            arrived: int = file.stat().st_size
            if arrived <= longest:
                return file, arrived
            file.close()
    return sftp.open(path, "wb"), 0


class Sftp(Carrier):
    """The registered SFTP carrier."""

    name = "sftp"
    anywhere = True
    has_address = True
    job_file = "sftp/{job}"  # the job's credential
    modules = ("paramiko",)
    install = "pip install paramiko"
    hint = "If this machine cannot connect there, give another --address HOST:PORT, or leave --carrier sftp out."
    mailboxes = "master.sftp.server:SftpMailboxes"

    def connect(self, job: str, directory: Path | None) -> Connection:
        connection = connection_of_job(Path(job))  # the credential is in the job's folder, under the job's name
        link = SftpLink(connection)
        return Connection(lambda: link.list("mail"), lambda worker: FileMailbox(worker, lambda: SftpLink(connection)))

    def check_address(self, address: str | None) -> None:
        if address is not None:
            host_and_port(address)

    def check_advertised(self, address: str | None, *, nearby: bool) -> None:
        host = socket.getfqdn() if address is None else host_and_port(address)[0]
        wrong = None if nearby else unreachable(host, asked=address is not None)
        if wrong is not None:
            raise UsageError(
                f"workers would have to connect to {host}, {wrong}. Give the name or the address by which "
                "they reach this machine: --address HOST[:PORT]."
            )


def unreachable(host: str, *, asked: bool) -> str | None:
    """Return the reason why workers on other machines cannot reach this machine at `host`; None if no reason is found.
    `asked` is True if the user gave the host; any other host must be a fully qualified name or an IPv6 address."""
    try:
        addresses = {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError, ValueError) as error:
        return f"which is not known here ({error})"
    useless = [ip for ip in addresses if ip.is_loopback or ip.is_unspecified or ip.is_link_local or ip.is_multicast]
    if len(useless) == len(addresses):
        own = ", ".join(sorted(map(str, useless)))
        return f"which is {own}: on another machine that is the machine itself, or nothing"
    if not asked and "." not in host and ":" not in host:
        return "a name without a domain, which other machines cannot resolve"
    return None


def host_and_port(text: str) -> tuple[str, int]:
    """Return (host, port) of `HOST[:PORT]`. If the text has no port, the port is 0, which means any port. An IPv6
    address stands in brackets. Raises UsageError."""
    match = _ADDRESS.fullmatch(text)
    port = int(match[3] or 0) if match else 0
    if match is None or port > 65535 or match[3] == "0":
        raise UsageError(f"--address is {text!r}; expected HOST or HOST:PORT where workers reach this machine.")
    return match[1] or match[2], port


def connection_of_job(path: Path) -> SftpConnection:
    """Return the connection of the job that this process runs in. `path` is the file of the job's credential. Raises
    RunError."""
    try:
        return SftpConnection(Credential.read(path))
    except (OSError, ValueError) as error:
        raise RunError(
            f"this job has no credential for the master's SFTP server ({path}: {error}). Submit it with gridml submit "
            f"--carrier sftp, which sends one with each job."
        ) from error

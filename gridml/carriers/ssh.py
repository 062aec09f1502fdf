"""SSH between gridml's own two ends: which algorithms are spoken, how a connection is made to a server whose key is
known, and how it ends. paramiko is imported where a connection is first made.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import logging
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 20.0  # without any progress, at each step; the connection then counts as broken
ALIVE_S = 30  # of silence, after which it is asked whether the other end is there
_LOGGER = "gridml.sftp"
# Both ends are gridml's, so only what is beyond doubt is spoken: ciphers with authentication, or in counter mode with
# encrypt-then-mac; no SHA-1, no MD5, no CBC; keys and signatures are ed25519.
_SPOKEN = {
    "ciphers": ("aes128-ctr", "aes192-ctr", "aes256-ctr", "aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
    "digests": ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"),
    "kex": ("mlkem768x25519-sha256", "curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256"),
    "key_types": ("ssh-ed25519",),
    "compression": ("none",),
}
_KEEPALIVE = (("TCP_KEEPIDLE", ALIVE_S), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True)
class Address:
    """Where the master's server is reached, and its public key (ed25519, base64 as in OpenSSH's files)."""

    host: str
    port: int
    host_key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def connected(address: Address, user: str, private_key: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Return a paramiko.Transport on which `user` has shown a key (OpenSSH's text, ed25519), once the server at
    `address` has shown its own. Raises PermissionError where another server answers, and what paramiko raises."""
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
    """Show a key. For paramiko a connection that breaks meanwhile, and an answer that does not come, are refusals, too;
    here only what the server says is one."""
    paramiko = importlib.import_module("paramiko")
    answered = threading.Event()
    transport.auth_publickey(user, key, answered)
    if not answered.wait(timeout_s):
        raise TimeoutError
    if not transport.is_authenticated():
        if not transport.is_active():
            raise EOFError
        raise transport.get_exception() or paramiko.AuthenticationException("it does not know it")


def subsystem(transport: Any, name: str, timeout_s: float) -> Any:
    """Return a new paramiko.Channel of a transport, on which a subsystem answers; where none does in time the transport
    is ended. paramiko itself would wait for ever, as for a master that is stopped and not gone. Raises what paramiko
    raises."""
    channel = transport.open_session(timeout=timeout_s)
    channel.settimeout(timeout_s)
    limit = threading.Timer(timeout_s, hang_up, (transport,))
    limit.daemon = True
    limit.start()
    try:
        channel.invoke_subsystem(name)
    finally:
        limit.cancel()
    return channel


def prepare(transport: Any, timeout_s: float) -> None:
    """Limit how long a paramiko.Transport waits and which algorithms it speaks, and keep what it logs from the
    terminal."""
    logger = logging.getLogger(_LOGGER)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    transport.set_log_channel(_LOGGER)
    transport.banner_timeout = transport.handshake_timeout = timeout_s
    transport.auth_timeout = transport.channel_timeout = timeout_s
    options = transport.get_security_options()
    for what, spoken in _SPOKEN.items():  # of those that this paramiko has, in its order
        setattr(options, what, tuple(name for name in getattr(options, what) if name in spoken))


def keep_alive(connection: socket.socket, timeout_s: float) -> None:
    """Let the system end a connection whose other end is gone, or takes nothing for `timeout_s`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", int(1e3 * timeout_s))):
        if hasattr(socket, name):  # some systems lack some of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hang_up(transport: Any) -> None:
    """End a paramiko.Transport at once. Its thread looks every 0.1 s only, unless its socket has ended."""
    with contextlib.suppress(OSError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()
    transport.sock.close()


@contextlib.contextmanager
def as_oserror(paramiko: Any, what: str) -> Iterator[None]:
    """Whatever paramiko raises, as an OSError with an errno; a connection that broke as a ConnectionError."""
    try:
        yield
    except paramiko.AuthenticationException as error:
        raise PermissionError(errno.EACCES, f"the master's server refused this job's key: {error}", what) from error
    except (paramiko.SSHException, paramiko.SFTPError, EOFError) as error:
        raise ConnectionResetError(errno.ECONNRESET, str(error) or os.strerror(errno.ECONNRESET), what) from error
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), what) from error
    except OSError as error:
        if error.errno is None:  # the server's "failure", or a socket that paramiko found closed
            raise OSError(errno.EIO, str(error), what) from error
        error.filename = error.filename or what
        raise

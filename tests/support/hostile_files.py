"""Attacks of a hostile worker on the files of its mailbox, if it can access them: `FILE_ATTACKS` by name.

Pipes, folders, links, sockets and sparse files with a message's name; files that are unreadable or grow, and thousands
of them; other objects in place of its heartbeat, of an answer, or of the mailbox itself; and mailboxes that the master
never made.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gridml.carriers.base import HEARTBEAT, SUFFIX, name_of
from gridml.protocol.bundle import digest

SPARSE = 1 << 41  # bytes: 2 TB
MANY = 2_000
FileAttack = Callable[[random.Random, Path, str], None]  # (random numbers, the mailbox, the name of a message)


def pipe(rng: random.Random, box: Path, name: str) -> None:
    os.mkfifo(box / name)


def folder(rng: random.Random, box: Path, name: str) -> None:
    (box / name).mkdir()
    if rng.random() < 0.5:
        (box / name / "inside").write_bytes(b"")


def link(rng: random.Random, box: Path, name: str) -> None:
    """Link to itself, to an endless device, to nothing, to another's file, to a folder."""
    targets = (name, "/dev/zero", "/dev/random", "nowhere", "/etc/passwd", "../../ledger.db", "..", "/dev/tty")
    (box / name).symlink_to(rng.choice(targets))


def server_socket(rng: random.Random, box: Path, name: str) -> None:
    os.mknod(box / name, stat.S_IFSOCK | 0o600)


def sparse(rng: random.Random, box: Path, name: str) -> None:
    with (box / name).open("wb") as file:
        file.truncate(SPARSE)


def unreadable(rng: random.Random, box: Path, name: str) -> None:
    (box / name).write_bytes(b"not readable")
    (box / name).chmod(0)


def many(rng: random.Random, box: Path, name: str) -> None:
    for number in range(MANY):
        other = f"sync-{number:08d}-{rng.randbytes(32).hex()}{SUFFIX}" if rng.random() < 0.5 else f"{number}"
        (box / other).touch()


def odd_names(rng: random.Random, box: Path, name: str) -> None:
    for other in (b"caf\xe9", b"\x1b[2J", b"sync-99999999-" + b"0" * 64 + SUFFIX.encode(), b"new\nline", b"-rf", b" "):
        Path(os.fsdecode(os.fsencode(box) + b"/" + other)).touch()


def heartbeat(rng: random.Random, box: Path, name: str) -> None:
    """Replace it by another kind of file, or by other content."""
    path = box / HEARTBEAT
    with contextlib.suppress(IsADirectoryError, FileNotFoundError):
        path.unlink()
    if not path.exists():
        rng.choice((pipe, folder, link, sparse, server_socket))(rng, box, HEARTBEAT)
    if path.is_file() and not path.is_symlink():
        path.write_bytes(rng.choice((b"", b"short", b"\xff" * 16, bytes(16), rng.randbytes(16), bytes(1 << 20))))


def answers(rng: random.Random, box: Path, name: str) -> None:
    """Put folders and links in the place of answers."""
    for number in range(5):
        rng.choice((folder, link))(rng, box, name_of("reply", number, digest(rng.randbytes(4))))


def no_mailbox(rng: random.Random, box: Path, name: str) -> None:
    """Remove the mailbox, or replace it by a file or by a link to another folder."""
    shutil.rmtree(box)
    rng.choice((lambda: None, lambda: box.write_bytes(b""), lambda: box.symlink_to("..")))()


def unknown_mailboxes(rng: random.Random, box: Path, name: str) -> None:
    """Make mailboxes that the master never made, with a message in each."""
    for other in (b"w999999", b"caf\xe9", b"\x1b[2J", b"a\nb", b"w1.99", b"w1.\xc2\xb2", b"-rf", b"x" * 200):
        with contextlib.suppress(FileExistsError):
            made = Path(os.fsdecode(os.fsencode(box.parent) + b"/" + other))
            made.mkdir()
            payload = rng.randbytes(64)
            (made / name_of("sync", 1, digest(payload))).write_bytes(payload)


FILE_ATTACKS: Final[dict[str, FileAttack]] = {
    "pipe": pipe,
    "folder": folder,
    "link": link,
    "socket": server_socket,
    "sparse file": sparse,
    "unreadable file": unreadable,
    "many files": many,
    "odd names": odd_names,
    "heartbeat": heartbeat,
    "answers": answers,
    "no mailbox": no_mailbox,
    "unknown mailboxes": unknown_mailboxes,
}

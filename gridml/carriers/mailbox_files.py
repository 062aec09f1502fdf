"""How the files of a mailbox are named, whatever carries them: `<direction>-<number>-<sha256>.safetensors`.

Files appear by rename, so a reader sees a whole file or none; the digest in the name shows damage all the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gridml.carriers.base import Heartbeat
from gridml.protocol import bundle
from gridml.protocol.bounds import LARGEST
from gridml.protocol.payload import Payload

Direction = Literal["sync", "reply"]  # worker to master, master to worker
DIRECTIONS: tuple[Direction, ...] = ("sync", "reply")
QUOTA = 64  # files in a mailbox at most; an honest worker leaves a handful there
SUFFIX = ".safetensors"  # of chunks too
HEARTBEAT = "progress"  # the file with a worker's last heartbeat: three int64, lease, upto and number
_MESSAGE = re.compile(r"(sync|reply)-(\d{8})-([0-9a-f]{64})\.safetensors")
_HEARTBEAT = struct.Struct("<qqq")
HEARTBEAT_BYTES = _HEARTBEAT.size


class MessageFile(NamedTuple):
    """What the name of a message's file says."""

    number: int
    name: str
    sha256: str


def message_name(direction: Direction, number: int, payload: Payload) -> str:
    """Return the name of a message's file."""
    return name_of(direction, number, bundle.digest(payload))


def name_of(direction: Direction, number: int, sha256: str) -> str:
    """Return the name of the file of a message of that SHA-256."""
    return f"{direction}-{number:08d}-{sha256}{SUFFIX}"


def message_files(names: Iterable[str], direction: Direction) -> list[MessageFile]:
    """Return the messages of one direction among the names in a mailbox, oldest first; pass over other names."""
    matches = [match for name in names if (match := _MESSAGE.fullmatch(name)) and match[1] == direction]
    return sorted(MessageFile(int(match[2]), match[0], match[3]) for match in matches)


def pack_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the content of a heartbeat's file."""
    return _HEARTBEAT.pack(*heartbeat)


def unpack_heartbeat(raw: bytes) -> Heartbeat | None:
    """Return the heartbeat in a file, None for what is not whole, or cannot be."""
    if len(raw) != HEARTBEAT_BYTES:
        return None
    heartbeat = Heartbeat(*_HEARTBEAT.unpack(raw))
    return heartbeat if max(map(abs, heartbeat)) <= LARGEST else None

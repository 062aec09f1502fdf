"""How messages are named in a mailbox, whatever carries them: `<kind>-<number>-<sha256>.safetensors`.

Files appear by rename, so a reader sees a whole file or none; the digest in the name shows damage all the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gridml.protocol import bundle

Kind = Literal["sync", "reply"]
_NAME = re.compile(r"(sync|reply)-(\d{8})-([0-9a-f]{64})\.safetensors")
_PROGRESS = struct.Struct("<qq")
PROGRESS = "progress"  # a file of two int64: lease, upto
SUFFIX = ".safetensors"  # of chunks too


class Entry(NamedTuple):
    """A message's file as its name tells it."""

    number: int
    name: str
    sha256: str


def name_of(kind: Kind, number: int, payload: bytes) -> str:
    return f"{kind}-{number:08d}-{bundle.digest(payload)}{SUFFIX}"


def entries(names: Iterable[str], kind: Kind) -> list[Entry]:
    """The messages of a kind among the names of a mailbox, oldest first; other names are passed over."""
    found = [(m, name) for m, name in ((_NAME.fullmatch(name), name) for name in names) if m and m[1] == kind]
    return sorted(Entry(int(m[2]), name, m[3]) for m, name in found)


def pack_progress(lease: int, upto: int) -> bytes:
    return _PROGRESS.pack(lease, upto)


def unpack_progress(raw: bytes) -> tuple[int, int] | None:
    """(lease, upto), None for what is not whole."""
    return _PROGRESS.unpack(raw) if len(raw) == _PROGRESS.size else None

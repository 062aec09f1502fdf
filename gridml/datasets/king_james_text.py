"""The King James Bible as running text, for language models: in the public domain, and in a Debian package.

The package holds the text as `brs` (Chapin 1989) keeps it: blocks of 64 KiB, each packed as compress(1) does.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import lzma
import os
import re
import struct
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.fetching import apt_download, gunzip
from gridml.datasets.lzw import expand
from gridml.datasets.pinned import Pin, Wanted, obtain
from gridml.datasets.sources import Arrays, Report, Source, folders
from gridml.errors import DataError

log = logging.getLogger("gridml.datasets")

KING_JAMES_PIN = Pin("kjv", (4_137_846,), "|u1", "56711d904d7b23429e6e982d3581923f02f2ea38ca0926d701e8d500705ed61a")
PACKAGE = "bible-kjv-text"
PACKAGE_VERSION = "4.38"
PACKAGE_SHA256 = "d61b6aad4c51ba9e2800b825325fa6a09e99a0d02a9bb6dc4724fcc4995a1b7a"
INSTALLED = Path("/usr/lib/bible.data")  # where the package puts it
_VERSE = re.compile(r"(\w+):\d+ (.*)")


@dataclass(frozen=True)
class Text:
    """A text, read-only: `characters` uint8 (n,), its bytes in UTF-8."""

    characters: NDArray[np.uint8]

    @cached_property
    def text(self) -> str:
        """All of it, in memory."""
        return self.characters.tobytes().decode()

    @property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.splitlines()


def king_james(
    cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> Text:
    """Return the King James Bible: ASCII, 4.1 million characters, a chapter a line, without the verses' numbers.

    `cache`, `progress` and `sources` are as for `mnist`. The characters are memory-mapped from the cache and cannot be
    written to. Raises DataError when no source has the text, and StorageError when the cache cannot be written.
    """
    default_cache, data = folders(os.environ)
    folder = (cache or default_cache) / "text"
    places = king_james_sources(folder, data) if sources is None else sources
    wanted = Wanted("The King James Bible", (KING_JAMES_PIN,), king_james_advice(folder))
    (characters,) = obtain(wanted, folder, places, progress or log.info)
    return Text(characters)


def king_james_sources(cached: Path, data: Path | None) -> tuple[Source, ...]:
    """Return the places the text is looked for, in order."""
    return (
        Source(f"kjv.txt.gz in the cache {cached}", partial(text_from_folder, cached)),
        Source("GRIDML_DATA", partial(text_from_folder, data and data / "text")),
        Source(f"the installed package {PACKAGE}", partial(text_from_file, INSTALLED)),
        Source(f"the Debian package {PACKAGE} {PACKAGE_VERSION}, fetched by apt-get", text_from_package),
    )


def king_james_advice(cached: Path) -> tuple[str, ...]:
    """Return what a person can do to get the text."""
    return (
        "set GRIDML_DATA to a folder that has a folder text/ with the file kjv.txt.gz, a chapter a line",
        f"put that file into {cached}",
        f"on Debian or Ubuntu: apt-get update, then apt-get install {PACKAGE}",
    )


def text_from_folder(folder: Path | None, report: Report) -> Arrays:
    """Read `kjv.txt.gz` of a folder."""
    if folder is None:
        raise DataError("it is not set")
    with (folder / "kjv.txt.gz").open("rb") as packed:
        return {KING_JAMES_PIN.name: np.frombuffer(gunzip(packed), np.uint8)}


def text_from_file(path: Path, report: Report) -> Arrays:
    """Read the file that the package installs."""
    return {KING_JAMES_PIN.name: np.frombuffer(chapters(unpacked(path.read_bytes())).encode(), np.uint8)}


def text_from_package(report: Report) -> Arrays:
    """Read the text out of the package that apt-get downloads; nothing is installed."""
    with tempfile.TemporaryDirectory(prefix="gridml-king-james-") as folder:
        package = apt_download(PACKAGE, PACKAGE_VERSION, Path(folder))
        payload = package.read_bytes()
        if (got := hashlib.sha256(payload).hexdigest()) != PACKAGE_SHA256:
            raise DataError(f"{package.name} has the SHA-256 {got}, expected {PACKAGE_SHA256}")
        path = Path(folder) / "data.tar.xz"
        path.write_bytes(ar_member(payload, "data.tar.xz"))
        try:
            with tarfile.open(path) as files:
                content = files.extractfile(f".{INSTALLED}")
                assert content is not None  # as in the package of this checksum
                text = chapters(unpacked(content.read()))
        except lzma.LZMAError as error:
            raise DataError(f"{package.name} cannot be unpacked: {error}") from error
        return {KING_JAMES_PIN.name: np.frombuffer(text.encode(), np.uint8)}


def ar_member(archive: bytes, name: str) -> bytes:
    """Return one file of an ar archive, which is what a Debian package is. Raises DataError where it is not in it."""
    at = len(b"!<arch>\n")
    while at + 60 <= len(archive):
        header = archive[at : at + 60].decode("ascii", "replace")
        size = header[48:58].strip()
        if not size.isdecimal():
            break
        if header[:16].rstrip().rstrip("/") == name:
            return archive[at + 60 : at + 60 + int(size)]
        at += 60 + int(size) + int(size) % 2  # members begin at even places
    raise DataError(f"the package holds no {name}")


def unpacked(packed: bytes) -> str:
    """Return the text in a file of brs: title, block size and number of blocks, where each begins and the last ends
    (big-endian uint32, from byte 88), and the blocks. Raises DataError for another file."""
    if packed[:4] != b"EC02" or len(packed) < 92:
        raise DataError(f"not a packed text of brs: it starts with {packed[:4]!r}")
    (count,) = struct.unpack_from(">I", packed, 88)
    if len(packed) < 92 + 4 * (count + 1):
        raise DataError(f"the packed text ends inside its table of {count} blocks")
    places = struct.unpack_from(f">{count + 1}I", packed, 92)
    return b"".join(expand(packed[start:stop]) for start, stop in itertools.pairwise(places)).decode("ascii", "replace")


def chapters(text: str) -> str:
    """Return a text of lines `Ge1:1 In the beginning ...` with a chapter on each line and one space between words."""
    verses: dict[str, list[str]] = {}
    for line in text.splitlines():
        if verse := _VERSE.fullmatch(line):
            verses.setdefault(verse[1], []).extend(verse[2].split())
    return "\n".join(" ".join(words) for words in verses.values())

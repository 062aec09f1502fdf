"""The King James Bible, from a file and from its Debian package."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
from pathlib import Path

import pytest

from gridml import datasets
from gridml.datasets import public
from gridml.errors import DataError

TEXT = "Textfile\nGe1:1 In the beginning.\nGe1:2 And  the earth.\nGe2:1 Thus the heavens.\n"


def ignore(line: str) -> None:
    """Ignore a progress line."""


def codes(*numbers: int) -> bytes:
    """Codes of nine bits, lowest bit first, as compress(1) packs them."""
    value = sum(number << 9 * at for at, number in enumerate(numbers))
    return value.to_bytes((9 * len(numbers) + 7) // 8, "little")


def test_a_chapter_is_a_line_with_one_space_between_words() -> None:
    assert public.chapters(TEXT) == "In the beginning. And the earth.\nThus the heavens."


def test_repeated_words_are_expanded() -> None:
    assert public.unpacked(brs_file(codes(*b"ab", 257, 259, *b"c"))) == "abababac"


def test_a_code_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(subprocess.SubprocessError):
        public.unpacked(brs_file(codes(*b"a", 300)))


def brs_file(*blocks: bytes) -> bytes:
    at = 92 + 4 * (len(blocks) + 1)
    places = [at]
    for block in blocks:
        places.append(places[-1] + len(block))
    head = b"EC02".ljust(84, b"\0") + struct.pack(">II", 1 << 16, len(blocks))
    return head + struct.pack(f">{len(places)}I", *places) + b"".join(blocks)


def test_the_blocks_of_the_packed_text_follow_each_other() -> None:
    assert public.unpacked(brs_file(codes(*b"Ge1:"), codes(*b"1 In"))) == "Ge1:1 In"


@pytest.mark.parametrize("payload", [b"", b"<html>", brs_file(b"")[:91]], ids=["empty", "a web page", "cut"])
def test_another_file_is_refused(payload: bytes) -> None:
    with pytest.raises(DataError, match="packed text"):
        public.unpacked(payload)


def test_another_text_is_refused_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "kjv.txt.gz").write_bytes(gzip.compress(b"In the end."))
    source = public.BIBLE.sources(tmp_path / "text", None)[0]
    with pytest.raises(DataError, match="kjv holds 11 items, expected 4137846") as caught:
        datasets.king_james(tmp_path, sources=[source])
    assert "apt-get install bible-kjv-text" in str(caught.value)


def test_the_real_text() -> None:
    cache, data = datasets.folders(os.environ)
    if not (cache / "text").is_dir() and (data is None or not (data / "text" / "kjv.txt.gz").is_file()):
        pytest.skip("GRIDML_DATA names no folder with text/kjv.txt.gz in it")
    bible = datasets.king_james()
    assert len(bible.lines) == 1189
    assert bible.text.startswith("In the beginning God created the heaven and the earth.")
    assert not bible.characters.flags.writeable


@pytest.mark.real
def test_the_debian_package_gives_the_pinned_text(tmp_path: Path) -> None:
    package = public.BIBLE.sources(tmp_path, None)[-1]
    try:
        bible = datasets.king_james(tmp_path, sources=[package])
    except DataError as error:
        if "apt-get" not in str(error).split("Do one of these")[0].split("fetched by apt-get: ")[-1]:
            raise
        pytest.skip(f"apt-get cannot reach the package here: {error}")
    assert bible.lines[-1].endswith("The grace of our Lord Jesus Christ be with you all. Amen.")

"""Text as bytes of UTF-8 whose lines end with a newline alone, whatever encoding and line ends a file has."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

# UTF-32's marks come first: one of them begins as UTF-16's does.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(head: bytes) -> str | None:
    """The encoding that the byte order mark of a text tells, None if it has none."""
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), None)


def in_utf8(pieces: Iterator[bytes], encoding: str | None) -> Iterator[bytes]:
    """The pieces of a text without the byte order mark, if it has one (`encoding_of`), in UTF-8.

    What has none, or UTF-8's, is not decoded. Raises UnicodeDecodeError where UTF-16 or UTF-32 is damaged.
    """
    if encoding == "utf-8":
        mark = codecs.BOM_UTF8
        for piece in pieces:
            yield piece[len(mark) :]
            mark = mark[len(piece) :]
    elif encoding is not None:
        decoder = codecs.getincrementaldecoder(encoding)()
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()
    else:
        yield from pieces


def with_newlines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces of a text in which CR LF, or CR alone, became a newline."""
    held = b""
    for piece in pieces:
        piece = held + piece
        held = b"\r" if piece.endswith(b"\r") else b""  # a newline may follow
        piece = piece.removesuffix(held)
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield piece
    if held:
        yield b"\n"

"""Readers of graphs in plain Python, by lines and regular expressions, independent of the product's."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
from collections.abc import Callable
from pathlib import Path

Edges = set[tuple[int, int]]
Shape = tuple[int, int] | None  # None: the format does not contain it
MAX_ID = 2**31 - 1
HEX = r"0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?"
DECIMAL = r"(?:\d+\.\d*|\.\d+)(?:[eEdDqQ][+-]?\d+|[+-]\d+)?|\d+(?:[eEdDqQ][+-]?\d+)?"
# Atomic groups: a value must not match as a shorter one with a rest.
VALUE = rf"(?>[+-]?(?>{HEX}|\d+\.\#[IJQS]\w*|{DECIMAL}|(?i:nan)(?:\(\w*\))?|(?i:infinity|inf|na)|\*+))"
ENTRY = rf"(?:qid:[ \t]*{VALUE}|(-?\d+)[ \t]*:[ \t]*{VALUE})"
LABEL = re.compile(rf"{VALUE}(?:,{VALUE})*(?=[ \t#]|$)", re.ASCII)
PAIR = re.compile(rf"{ENTRY}(?=[ \t#]|$)", re.ASCII)
UNLABELLED = re.compile(r"[ \t]+(?=-?\d+[ \t]*:)", re.ASCII)
EDGE = re.compile(
    r"[ \t]*(-?\d+)(?=[ \t,])[ \t]*,?[ \t]*(-?\d+)(?=[ \t,#%]|$)[ \t]*"
    r"(?:(?P<third>,[ \t]*(?:\{.*\}[ \t]*$|[^ \t,#%]*)|\{.*\}[ \t]*$|[^ \t,#%]+)[ \t,]*)?(?:[#%].*)?",
    re.ASCII,
)


class Refused(Exception):
    """The text is no graph in this format."""


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file as Python reads them: decompressed, decoded, and split by universal newlines."""
    content = path.read_bytes()
    for magic, unpack in ((b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7z", lzma.decompress)):
        if content.startswith(magic):
            content = unpack(content)
            break
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not utf16 and 0 in content[:4]:
        raise Refused
    encoding, errors = ("utf-16", "strict") if utf16 else ("utf-8-sig", "surrogateescape")
    with io.TextIOWrapper(io.BytesIO(content), encoding, errors, newline=None) as file:
        return [line.rstrip("\n") for line in file]


def edge_list(lines: list[str]) -> tuple[Edges, Shape]:
    found, widths = set(), set()
    for line in lines:
        if line.strip(" \t")[:1] not in ("", "#", "%"):
            match = EDGE.fullmatch(line)
            if match is None:
                raise Refused
            u, v = int(match[1]), int(match[2])
            if max(abs(u), abs(v)) >= 2**63 - 1:
                raise Refused
            widths.add(match["third"] is not None)
            found.add((u, v))
    if len(widths) > 1:
        raise Refused
    return found, None


def libsvm(lines: list[str]) -> tuple[Edges, Shape]:
    found, rows = set(), 0
    for line in lines:
        if line.strip(" \t")[:1] not in ("", "#"):
            found |= {(rows, index - 1) for index in _indices(line)}
            rows += 1
    return found, (rows, max((column + 1 for _, column in found), default=0))


def _indices(line: str) -> set[int]:
    if (match := UNLABELLED.match(line)) is None and (match := LABEL.match(line.lstrip(" \t"))) is None:
        raise Refused
    found, line = set(), (line if match.re is UNLABELLED else line.lstrip(" \t"))[match.end() :]
    while (line := line.lstrip(" \t"))[:1] not in ("", "#"):
        if (match := PAIR.match(line)) is None or not 1 <= int(match[1] or 1) <= MAX_ID:
            raise Refused
        found |= {int(match[1])} if match[1] else set()
        line = line[match.end() :]
    return found


def _words(line: str) -> list[str]:
    return re.findall(r"[^ \t\v\f]+", line)


def sizes(line: str, counts: tuple[int, ...]) -> list[int]:
    words = _words(line)
    if len(words) not in counts or not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words):
        raise Refused
    numbers = [int(word) for word in words]
    if max(numbers[:2]) > MAX_ID:
        raise Refused
    return numbers


def hmetis(lines: list[str]) -> tuple[Edges, Shape]:
    kept = [line.strip(" \t") for line in lines if not line.strip(" \t").startswith("%")]
    while kept and not kept[0]:
        kept.pop(0)
    if not kept:
        raise Refused
    columns, rows, *form = sizes(kept.pop(0), (2, 3))
    if form not in ([], [0]) or len(kept) < columns or any(kept[columns:]):
        raise Refused
    found = set()
    for column, line in enumerate(kept[:columns]):
        for word in re.split(r"[ \t]+", line) if line else ():
            if not re.fullmatch(r"-?[0-9]+", word) or not 1 <= int(word) <= rows:
                raise Refused
            found.add((int(word) - 1, column))
    return found, (rows, columns)


VALUES = {"pattern": 0, "real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "complex": 2}


def matrix_market(lines: list[str]) -> tuple[Edges, Shape]:
    banner = _words(lines[0].lower()) if lines else []
    if banner[:3] != ["%%matrixmarket", "matrix", "coordinate"] or len(banner) != 5 or banner[3] not in VALUES:
        raise Refused
    if banner[4] not in ("general", "symmetric", "skew-symmetric", "hermitian"):
        raise Refused
    kept = [bare for line in lines if (bare := line.strip(" \t")) and not bare.startswith("%")]
    if not kept:
        raise Refused
    rows, columns, entries = sizes(kept.pop(0), (3,))
    if len(kept) != entries or (banner[4] != "general" and rows != columns):
        raise Refused
    entry = re.compile(rf"(-?\d+)[ \t]+(-?\d+)(?:[ \t]+{VALUE}(?=[ \t]|$)){{{VALUES[banner[3]]}}}", re.ASCII)
    found = set()
    for line in kept:
        match = entry.fullmatch(line)
        if match is None or not 1 <= int(match[1]) <= rows or not 1 <= int(match[2]) <= columns:
            raise Refused
        found.add((int(match[1]) - 1, int(match[2]) - 1))
    return found | ({(v, u) for u, v in found} if banner[4] != "general" else set()), (rows, columns)


READERS: dict[str, Callable[[list[str]], tuple[Edges, Shape]]] = {
    "edges": edge_list,
    "libsvm": libsvm,
    "hmetis": hmetis,
    "matrix-market": matrix_market,
}

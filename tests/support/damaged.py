"""Damaged variants of valid files: layer by layer, so that a checksum or a length outside does not hide damage inside.

`damaged` recognises what a content is (a compressed stream, a zip, a tar, an array of numpy, a safetensors file, JSON,
text) and damages it as such, or unpacks it, damages what is inside, and packs that again.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

MAX_BYTES = 2048  # of a damaged file, unless the valid one is longer
BOMB_BYTES = (1 << 12,) * 600 + (1 << 16,) * 300 + (1 << 20,) * 30 + (1 << 24,)
HUGE = ("9" * 400, "-" + "9" * 25, "1e400", "1" + "0" * 5000, str(2**31), str(2**63), str(2**64), "1e308", "-1e308")
WORDS = (
    *("nan", "NaN", "-nan", "inf", "Infinity", "-inf", "-1", "-0", "0", "0x10", "1_000", "1e-400", "½", "٣", "１"),
    *("", " ", "\t", "\r", "\n", "\r\n", "\0", "\x0b", "\x1c", "\x85", "\u2028", "\ufeff", "\x1b[2J", "\udcff"),
    *(
        ",",
        ";",
        ":",
        '"',
        "'",
        '"\n',
        "#",
        "%",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "()",
        "\\",
        "/",
        "../",
        "\\u0000",
        "null",
    ),
    *("true", "None", "[" * 3000, "{" * 300, '{"":' * 3000, "(" * 300, "a" * 300, ",1" * 200, "999999999999,add,z"),
    *HUGE,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, -1e308, 2**31, 2**53 + 1, 2**63, 2**64, 10**399, -(10**399)),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "nan", "inf", "\0", "\udcff", "\n", "-1", "1" * 400),
    *([], {}, [[]], [None], {"": None}, [1, 2], "2026-01-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"),
)
Pack = Callable[[bytes], bytes]
# The fastest levels: others allocate megabytes for each content.
STREAMS: dict[bytes, tuple[Pack, Pack]] = {
    b"\x1f\x8b": (lambda content: gzip.compress(content, 1, mtime=0), gzip.decompress),
    b"BZh": (lambda content: bz2.compress(content, 1), bz2.decompress),
    b"\xfd7zXZ\x00": (lambda content: lzma.compress(content, preset=0), lzma.decompress),
    b"]\x00\x00": (lambda content: lzma.compress(content, lzma.FORMAT_ALONE, preset=0), lzma.decompress),
}
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, zlib.error, lzma.LZMAError, tarfile.TarError,
               zipfile.BadZipFile, NotImplementedError, RuntimeError, RecursionError, OverflowError,
               struct.error)  # fmt: skip


def damaged(content: bytes, random: Random) -> bytes:
    """Return a variant of a content with one to three damages, inside and outside; now and then the content itself."""
    limit = max(MAX_BYTES, 2 * len(content))
    for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3))):
        content = _once(content, random)
    if random.random() < 0.05:
        pack, _ = random.choice([*STREAMS.values()])
        content = pack(content)
    return content[:limit]


def _once(content: bytes, random: Random) -> bytes:
    if random.random() < 0.25:
        return _bytes(content, random)
    for begins, (pack, unpack) in STREAMS.items():
        if content.startswith(begins):
            return _stream(content, pack, unpack, random)
    for at, begins, damage in _CONTAINERS:
        if content.startswith(begins, at):
            try:
                return damage(content, random)
            except _UNREADABLE:
                return _bytes(content, random)
    if content[:1] in b"{[" and random.random() < 0.6:
        try:
            return json.dumps(_value(json.loads(content), random)).encode(errors="surrogatepass")
        except _UNREADABLE:
            pass
    length = int.from_bytes(content[:8], "little")
    if 0 < length < len(content) and content[8:9] == b"{":  # safetensors
        head = _once(content[8 : 8 + length], random)
        return len(head).to_bytes(8, "little") + head + content[8 + length :]
    return _text(content, random) if _is_text(content) else _bytes(content, random)


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:64] and sum(byte > 126 for byte in content[:64]) < 8


def _bytes(content: bytes, random: Random) -> bytes:
    """Flip, overwrite, cut, repeat or insert some bytes."""
    at = random.randrange(len(content) + 1)
    length = random.choice((1, 1, 2, 4, 8, 32, len(content)))
    head, some, tail = content[:at], content[at : at + length], content[at + length :]
    match random.randrange(7):
        case 0 if some:
            return head + bytes([some[0] ^ 1 << random.randrange(8)]) + content[at + 1 :]
        case 1:
            return head + random.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * len(some) + tail
        case 2:
            return head + tail
        case 3:
            return head + some + some + tail
        case 4:
            return head
        case 5:
            return head + random.randbytes(random.choice((1, 4, 8))) + tail
        case _:
            return (
                head + random.choice((b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\n", content[:16])) + content[at:]
            )


def _text(content: bytes, random: Random) -> bytes:
    """Damage a word, a line, or any place of a text."""
    word = random.choice(WORDS).encode(errors="surrogatepass")
    if random.random() < 0.1:
        encoding = random.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-le", "cp037"))
        return content.decode(errors="replace").encode(encoding, "replace")
    if random.random() < 0.4:
        lines = content.splitlines(keepends=True) or [b""]
        at = random.randrange(len(lines))
        lines[at : at + 1] = random.choice(
            ([], [lines[at]] * 2, [word + b"\n", lines[at]], [lines[at], lines[0]], [word])
        )
        if random.random() < 0.2:
            random.shuffle(lines)
        return b"".join(lines)
    spots = [at for at in range(1, len(content)) if content[at - 1 : at].isalnum() != content[at : at + 1].isalnum()]
    begin = random.choice([0, *spots])
    end = next((spot for spot in spots if spot > begin), len(content))
    if random.random() < 0.3:
        begin = end = random.randrange(len(content) + 1)
    return content[:begin] + word + content[end:]


def _value(value: Any, random: Random, depth: int = 0) -> Any:
    """Replace, remove or repeat one part of a JSON value."""
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or random.random() < 0.15:
        if random.random() < 0.1:
            for _ in range(random.choice((3, 60))):
                value = [value]
            return value
        return (
            random.choice((value, *VALUES, *HUGE)) if not isinstance(value, str) else random.choice((*VALUES, *WORDS))
        )
    if isinstance(value, dict):
        name = random.choice([*value])
        rest = {key: each for key, each in value.items() if key != name}
        match random.randrange(6):
            case 0:
                return rest
            case 1:
                return {**rest, random.choice(("", name + " ", name.upper(), "\0", "__proto__")): value[name]}
            case _:
                return {**value, name: _value(value[name], random, depth + 1)}
    at = random.randrange(len(value))
    match random.randrange(6):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return value + value[at:] * random.choice((1, 1, 30))
        case _:
            return [*value[:at], _value(value[at], random, depth + 1), *value[at + 1 :]]


def _stream(content: bytes, pack: Pack, unpack: Pack, random: Random) -> bytes:
    """Damage a compressed content inside, or give it several streams, wrong ones among them, or many zeros."""
    try:
        inside = unpack(content)
    except _UNREADABLE:
        return _bytes(content, random)
    cut = random.randrange(len(inside) + 1)
    match random.randrange(8):
        case 0:
            return pack(inside[:cut]) + pack(inside[cut:])
        case 1:
            return content + random.choice((b"\0" * 9, b"x", content[:9], pack(b""), content))
        case 2:
            return content + _bomb(pack, random.choice((b"\0", b"\n", b"1 ", b"[")), random.choice(BOMB_BYTES))
        case 3:
            return pack(content)
        case 4:
            return content[:-8] + _bytes(content[-8:], random)  # its checksum
        case _:
            return pack(_once(inside, random))


@cache
def _bomb(pack: Pack, word: bytes, count: int) -> bytes:
    return pack(word * count)


def _zip(content: bytes, random: Random) -> bytes:
    """Damage a member, the list of members, or fields of the headers."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, info.compress_type, archive.read(info)) for info in archive.infolist()]
    at = random.randrange(len(members)) if members else 0
    form = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    kind = random.randrange(7)
    if members and kind < 6:
        name, packed, inside = members[at]
        changed: Sequence[tuple[str, int, bytes]] = (
            [(name, packed, _once(inside, random))],
            [(name, packed, _once(inside, random))],
            [],
            [(name, form, inside), (name, form, _once(inside, random))],
            [(random.choice(("a\0b", "../a", "/a", "é", "a" * 3000, name.upper(), name + "/", "\\")), form, inside)],
            [(name, form, inside + b"\0" * random.choice(BOMB_BYTES))],
        )[kind]
        members[at : at + 1] = changed
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, packed, inside in members:
            archive.writestr(zipfile.ZipInfo(name), inside, packed)
        if random.random() < 0.1:
            archive.comment = random.randbytes(9)
    content = made.getvalue()
    return _patched(content, random) if kind == 6 or random.random() < 0.3 else content


def _patched(content: bytes, random: Random) -> bytes:
    """Overwrite a field in the headers of a zip: flags (encrypted), method, checksum, sizes, offsets, lengths."""
    signature, fields = random.choice(
        (
            (b"PK\x03\x04", ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2))),
            (b"PK\x01\x02", ((6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (34, 2), (42, 4))),
            (b"PK\x05\x06", ((4, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2))),
        )
    )  # fmt: skip
    places = [at for at in range(len(content)) if content.startswith(signature, at)]
    if not places:
        return _bytes(content, random)
    begin, (field, size) = random.choice(places), random.choice(fields)
    at = begin + field
    value = random.choice(
        (0, 1, 2, 8, 9, 12, 14, 99, 0x41, 0x800, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF, random.getrandbits(32))
    )
    return content[:at] + (value % (1 << 8 * size)).to_bytes(size, "little") + content[at + size :]


def _tar(content: bytes, random: Random) -> bytes:
    """Damage a member, the list of members, or a header, whose checksum is then right again or wrong."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = [(member, archive.extractfile(member)) for member in archive]
        members = [(member, b"" if file is None else file.read()) for member, file in files]
    if not members:
        return _bytes(content, random)
    at = random.randrange(len(members))
    member, inside = members[at]
    match random.randrange(6):
        case 0 | 1:
            inside = _once(inside, random)
        case 2:
            member.type = random.choice(
                (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, b"Z")
            )
            member.linkname = random.choice((member.name, "/dev/zero", "../../etc/passwd", "\udcff", ""))
        case 3:
            member.name = random.choice(("../a", "/a", "a\0b", "é", "a" * 300, member.name.upper()))
        case 4:
            members.insert(at, (member, inside))
        case _:
            begin = random.randrange(0, max(1, len(content) - 511), 512)
            block = _bytes(content[begin : begin + 148], random)[:148].ljust(148, b"\0")
            block += b" " * 8 + content[begin + 156 : begin + 512]
            return (
                content[:begin]
                + block[:148]
                + b"%06o\0 " % (sum(block) & 0o777777)
                + block[156:]
                + content[begin + 512 :]
            )
    members[at] = (member, inside)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for each, of in members:
            each.size = len(of)
            archive.addfile(each, io.BytesIO(of))
    return made.getvalue()


def _npy(content: bytes, random: Random) -> bytes:
    """Damage the header of an array, whose length is then right again, or the values."""
    length = int.from_bytes(content[8:10], "little")
    head, values = content[10 : 10 + length], content[10 + length :]
    if random.random() < 0.3:
        return content[: 10 + length] + _bytes(values, random)
    dtype = random.choice(
        (b"'|O'", b"'<f8'", b"'>i4'", b"'|b1'", b"'<U9'", b"'<M8[s]'", b"'|V0'", b"'<i8'", b"[('a','<i4')]")
    )
    shape = random.choice(
        (b"()", b"(-1,)", b"(0,)", b"(2**40,)", b"(1099511627776,)", b"(1,1,1,1)", b"(9e9,)", b"(True,)")
    )
    match random.randrange(3):
        case 0:
            head = head.replace(head[head.find(b"'descr'") + 9 : head.find(b", 'fort")], dtype)
        case 1:
            head = head[: head.find(b"'shape'") + 9] + shape + b", }\n"
        case _:
            head = _text(head, random)
    return content[:8] + len(head[:65535]).to_bytes(2, "little") + head[:65535] + values


# The place and the text by which each is recognised.
_CONTAINERS: tuple[tuple[int, bytes, Callable[[bytes, Random], bytes]], ...] = (
    (0, b"PK", _zip), (0, b"\x93NUMPY", _npy), (257, b"ustar", _tar),
)  # fmt: skip

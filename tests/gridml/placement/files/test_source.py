"""From a file's bytes to lines: compression, encodings, line ends; pipes."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from gridml.errors import UsageError
from gridml.placement.files import source
from gridml.placement.files.registry import format_of, read, store

TEXTS = {
    "libsvm": ("1 1:1 2:1\n0 2:1\n\n1 3:1\n", 4),
    "edges": ("1,2\n2,3\n\n3,4\n", 3),
    "hmetis": ("2 4\n1 2\n% said\n3 4 1\n", 5),
    "matrix-market": ("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 0.5\n3 2 nan\n", 2),
}
FORMS = pytest.mark.parametrize("form", sorted(TEXTS))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
}
COMPRESSIONS = pytest.mark.parametrize("packing", sorted(PACKERS))


@pytest.fixture(params=[5, 7, 64 << 10])
def pieces_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte-order marks and line ends may span the borders of blocks."""
    monkeypatch.setattr(source, "PIECE", request.param)
    monkeypatch.setattr(source, "BLOCK", 3 * request.param)


@pytest.mark.usefixtures("pieces_of")
@FORMS
@pytest.mark.parametrize("end", ["\r", "\r\n", "\n", "mixed"])
@pytest.mark.parametrize("last", [True, False])
def test_any_line_end(tmp_path: Path, form: str, end: str, last: bool) -> None:
    text, edges = TEXTS[form]
    ends = ["\r", "\n", "\r\n"] if end == "mixed" else [end]
    lines = text.splitlines()
    made = "".join(line + ends[i % len(ends)] for i, line in enumerate(lines))
    if end == "mixed":
        made = made.replace("\n\r\n", "\n\n")  # the ends of a blank line and of the one before would become one
    (tmp_path / "a").write_bytes((made if last else made.rstrip("\r\n")).encode())
    assert read(tmp_path / "a", form).edges == edges


@pytest.mark.usefixtures("pieces_of")
@FORMS
@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_are_counted_whatever_ends_them(tmp_path: Path, form: str, end: str) -> None:
    text = TEXTS[form][0].replace("\n", end) + f"bad{end}"
    (tmp_path / "a").write_bytes(text.encode())
    with pytest.raises(UsageError, match=f"a, line {text.count(end)}: got 'bad'"):
        read(tmp_path / "a", form)


@pytest.mark.usefixtures("pieces_of")
@FORMS
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_byte_order_mark(tmp_path: Path, form: str, encoding: str) -> None:
    text, edges = TEXTS[form]
    mark = "\ufeff" if encoding.endswith("be") else ""  # Python writes the mark for the others
    for pack in (lambda content: content, *PACKERS.values()):
        (tmp_path / "a").write_bytes(pack((mark + text.replace("\n", "\r\n")).encode(encoding)))
        assert read(tmp_path / "a", form).edges == edges


@FORMS
def test_utf_16_that_is_damaged_or_has_no_mark(tmp_path: Path, form: str) -> None:
    content = TEXTS[form][0].encode("utf-16-le")
    (tmp_path / "a").write_bytes(codecs.BOM_UTF16_LE + content[:-1])
    with pytest.raises(UsageError, match=r"a is damaged after line \d: .*truncated data"):
        read(tmp_path / "a", form)
    for order, shifted in (("LE", content), ("BE", b"\0" + content[:-1])):
        (tmp_path / "a").write_bytes(shifted)
        with pytest.raises(UsageError, match=f"zero bytes, as UTF-16 .* iconv -f UTF-16{order} -t UTF-8 .*a$"):
            read(tmp_path / "a", form)


@pytest.mark.usefixtures("pieces_of")
@FORMS
@COMPRESSIONS
def test_a_packed_file_of_several_members(tmp_path: Path, form: str, packing: str) -> None:
    """Files of several members, as written by `cat a.gz b.gz` and by parallel compressors."""
    text, edges = TEXTS[form]
    pack = PACKERS[packing]
    cut = len(text) // 2
    parts = [text] if packing == "lzma" else [text[:cut], "", text[cut:]]
    content = b"".join(pack(part.encode()) for part in parts)
    for padding in (b"", b"\0" * 1024):
        (tmp_path / f"a.{packing}").write_bytes(content + padding)
        assert read(tmp_path / f"a.{packing}", form).edges == edges


@FORMS
@COMPRESSIONS
def test_a_packed_file_that_is_damaged(tmp_path: Path, form: str, packing: str) -> None:
    """Compressed files that are truncated, have a changed byte, or are followed by other data."""
    text = TEXTS[form][0]
    begin, rest = text[: len(text) // 2].encode(), text[len(text) // 2 :].encode()
    pack = PACKERS[packing]
    whole = pack(text.encode())
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 0x55
    damaged = [*(whole[:length] for length in range(1, len(whole))), whole + b"rubbish", bytes(changed)]
    if packing != "lzma":  # it has no checksum, and only one member
        second = bytearray(pack(rest))
        damaged += [pack(begin) + bytes(second[:length]) for length in range(1, len(second))]
        second[0] ^= 1
        damaged.append(pack(begin) + bytes(second))
    else:
        damaged.pop()
    for content in damaged:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UsageError) as raised:
            read(tmp_path / "a", form)
        assert re.search("a is damaged after line|, line 1: got|expected", str(raised.value)), str(raised.value)


def in_tar(content: bytes, mode: str) -> bytes:
    """Return an archive with one file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        entry = tarfile.TarInfo("a/a.svm")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def in_zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.svm", content)
    return file.getvalue()


TEXT = TEXTS["libsvm"][0].encode()
OTHERS = {
    "a.tar": (in_tar(TEXT, "w"), "is a tar archive; expected one of the files in it. Unpack it: tar xf "),
    "a.tar.gz": (in_tar(TEXT, "w:gz"), "is a tar archive; .* Unpack it: tar xf "),
    "a.tar.bz2": (in_tar(TEXT, "w:bz2"), "is a tar archive; .* Unpack it: tar xf "),
    "a.tgz": (in_tar(TEXT, "w:gz"), "is a tar archive; .* Unpack it: tar xf "),
    "a.zip": (in_zip(TEXT), r"is compressed by zip; expected text, or .* \(an .npz .*\). Decompress it: unzip "),
    "a.svm.zst": (bytes.fromhex("28b52ffd2400"), "is compressed by zstd; .* Decompress it: zstd -d "),
    "a.svm.lz4": (bytes.fromhex("04224d186440"), "is compressed by lz4; .* Decompress it: lz4 -d "),
    "a.svm.Z": (bytes.fromhex("1f9d9031"), "is compressed by compress; .* Decompress it: uncompress "),
    "a.7z": (b"7z\xbc\xaf\x27\x1c\0\4", "is compressed by 7z; .* Decompress it: 7z x "),
    "a.svm.gz": (
        gzip.compress(lzma.compress(TEXT)),
        "is compressed twice, inside by xz; expected once. Decompress it: gzip -d ",
    ),
}


@FORMS
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_packings_are_named(tmp_path: Path, form: str, name: str) -> None:
    file = tmp_path / name
    content, says = OTHERS[name]
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"{name}: {says}'?{file}'?$"):
        read(file, form)
    if name not in ("a.svm.gz",):  # its name shows a format
        with pytest.raises(UsageError, match=says):
            format_of(file)


@COMPRESSIONS
def test_the_name_says_the_format_and_not_the_packing(tmp_path: Path, packing: str) -> None:
    (tmp_path / f"a.SVM.{packing}").write_bytes(PACKERS[packing](TEXT))
    assert read(tmp_path / f"a.SVM.{packing}").edges == 4
    (tmp_path / f"b.svm.{packing}").write_bytes(TEXT)
    assert read(tmp_path / f"b.svm.{packing}").edges == 4


@FORMS
@pytest.mark.parametrize("packing", ["", *sorted(PACKERS)])
def test_a_pipe_is_read(tmp_path: Path, form: str, packing: str) -> None:
    text, edges = TEXTS[form]
    content = PACKERS[packing](text.encode()) if packing else text.encode()
    for use in (lambda path: read(path, form), lambda path: store(path, tmp_path / "stored", form)):
        reading, writing = os.pipe()
        with open(writing, "wb") as end:
            writer = Thread(target=end.write, args=(content,))
            writer.start()
            writer.join(60)
        graph = use(Path(f"/dev/fd/{reading}"))
        os.close(reading)
        assert graph is None or graph.edges == edges
    assert read(tmp_path / "stored", "csr-folder").edges == edges


def test_a_small_file_that_unpacks_to_gigabytes_is_left_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_UNPACKED", 1 << 20)
    (tmp_path / "a.svm.bz2").write_bytes(bz2.compress(b"0" * (4 << 20)))
    with pytest.raises(UsageError, match=r"unpacks to more than 1,000 times its size. If it is a graph: bzip2 -d"):
        read(tmp_path / "a.svm.bz2")
    monkeypatch.setattr(source, "MAX_UNPACKED", 4 << 20)
    with pytest.raises(UsageError, match="holds 1 rows and no edges"):
        read(tmp_path / "a.svm.bz2")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.svm", "1 2000000000:1\n"),
        ("a.mtx", "%%MatrixMarket matrix coordinate pattern general\n2000000000 3 1\n1 1\n"),
        ("a.mtx", "%%MatrixMarket matrix coordinate pattern general\n3 2000000000 1\n1 1\n"),
        ("a.hgr", "1 2000000000\n1 2\n"),
    ],
)
def test_a_few_edges_among_billions_of_vertices(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(
        UsageError, match=r"2,000,000,000 .* expected at most 10,000,000 rows and columns, or 1,000 for"
    ):
        read(tmp_path / name)

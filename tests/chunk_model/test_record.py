"""The format of a trace is recognised by its content."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chunk_model.prices import FORMATS, read_record
from chunk_model.traces import TraceError

EVENTS = "0,add,a\n0,add,b\n90000,remove,a\n"
TICKS = json.dumps({"metadata": {"gap_seconds": 30}, "data": [1, 1, 0, 1, 1]})
COUNTS = "2021-12-10, 13:07:45, 1\n2021-12-10, 13:08:45, 0\n"
PRICES = (
    "timestamp,instance_type,zone,product,price_usd_per_h\n"
    "2015-03-11 10:00:00+00:00,m3.medium,a,Linux,0.01\n"
    "2015-03-11 10:30:00+00:00,m3.medium,a,Linux,0.09\n"
    "2015-03-11 10:31:00+00:00,m3.medium,a,Linux,0.01\n"
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("begin", ["", "\n \n", "\ufeff"])
@pytest.mark.parametrize(
    ("text", "ends", "end_s"),
    [
        (EVENTS, [90.0, None], 90.0),
        (TICKS, [pytest.approx(45, abs=15), None], 120.0),
        (TICKS.replace(" ", "\n"), [pytest.approx(45, abs=15), None], 120.0),
        (COUNTS, [pytest.approx(30, abs=30)], 60.0),
        (PRICES, [1800.0], 1860.0),
    ],
)
def test_each_format_is_known_by_its_content(
    tmp_path: Path, text: str, ends: list[float | None], end_s: float, begin: str, packed: bool
) -> None:
    path = tmp_path / "trace.bin"  # the name does not show the format
    content = (begin + text).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    record = read_record(path)
    assert [life.end_s for life in record.lives] == ends and record.end_s == end_s
    assert record.older == sum(life.start_s == 0 for life in record.lives) * (text != PRICES)


def test_the_formats_are_distinguished(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    contents = set()
    for text in (EVENTS, TICKS, COUNTS, PRICES):
        path.write_text(text)
        contents.add(read_record(path).contents)
    assert len(contents) == len(FORMATS) - 1 == 4  # one more writes prices as text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"hello\n", "no known format: it begins 'hello'"),
        (b"x" * 500, "..."),
        (b"duration_s,ended\n60,1\n", "holds lifetimes"),
        (b"\x89PNG\xff\xfe", "is not text"),
        (gzip.compress(EVENTS.encode(), mtime=0)[:-9], "is damaged"),
        (b"\x1f\x8bno", "is damaged"),
        (gzip.compress(b"\xff\xff", mtime=0), "is not text"),
        (b"0,add,a\n5,remove,b\n", "line 2: b is removed"),
        (b"{\n\n", "not JSON"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_record(path)
    assert str(path) in str(caught.value) and says in str(caught.value)


def test_what_is_expected_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("hello\n")
    with pytest.raises(TraceError) as caught:
        read_record(path)
    assert all(trace_format.shown in str(caught.value) for trace_format in FORMATS)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "nothing.csv")

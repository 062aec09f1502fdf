"""Users' files in all their forms: compressed, with other line ends, in other encodings."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_model import traces
from chunk_model.observations import read_csv
from chunk_model.prices import read_record
from chunk_model.traces import UnreadableError, text_of

Pack = Callable[[bytes], bytes]
LIVES = "duration_s,ended\n2700,1\n60,0\n"
TRACE = "0,add,a\n60000,add,b\n90000,remove,a\n"
PACKERS = pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])


@PACKERS
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lives_and_traces_whatever_they_were_saved_as(tmp_path: Path, pack: Pack, encoding: str, end: str) -> None:
    (tmp_path / "lives").write_bytes(pack(LIVES.replace("\n", end).encode(encoding)))
    assert read_csv(tmp_path / "lives").duration_s.tolist() == [2700, 60]
    (tmp_path / "trace").write_bytes(pack(TRACE.replace("\n", end).encode(encoding)))
    assert [life.node for life in read_record(tmp_path / "trace").lives] == ["a", "b"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_all_members_are_read_and_a_damaged_one_is_reported(tmp_path: Path, pack: Pack) -> None:
    first, second = pack(TRACE[:20].encode()), pack(TRACE[20:].encode())
    file = tmp_path / "trace"
    file.write_bytes(first + second)
    assert text_of(file) == TRACE
    for damaged in (first[:-3], first + second[:-3], first + second[:2], first + b"rubbish", first[:12] + first[13:]):
        file.write_bytes(damaged)
        with pytest.raises(UnreadableError, match=f"{file} is damaged .*: fetch or pack it again"):
            text_of(file)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_what_unpacks_to_more_than_the_bound(tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_BYTES", 1 << 20)
    file = tmp_path / "trace"
    file.write_bytes(pack(b"\n" * (1 << 20)) + pack(b"\n"))
    with pytest.raises(OSError, match="it holds more than 1 MiB"):
        text_of(file)
    file.write_bytes(pack(b"\n" * (1 << 20)))
    assert len(text_of(file)) == 1 << 20

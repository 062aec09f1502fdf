"""A value is read as it was written or not at all: no flipped bit changes it silently."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from master.store.ledger import Ledger
from master.store.schema import decode_checksummed, encode_checksummed

VALUE = {"accuracy": 0.9812, "counts": [1, 2], "Größe": None}


def test_a_value_comes_back() -> None:
    for value in (VALUE, "running", 3, 0.5, True, None, [], "two words"):
        assert decode_checksummed(*encode_checksummed(value)) == value


def test_no_flipped_bit_passes() -> None:
    text, crc32 = encode_checksummed(VALUE)
    for bit in range(8 * len(text)):
        damaged = bytearray(text.encode())
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((sqlite3.DatabaseError, UnicodeDecodeError)):
            decode_checksummed(damaged.decode(), crc32)
    for bit in range(32):
        with pytest.raises(sqlite3.DatabaseError):
            decode_checksummed(text, crc32 ^ 1 << bit)


@pytest.mark.parametrize(("text", "crc32"), [('"running"', None), (None, 3), (b"x", 3), ('"running"', "x")])
def test_what_was_never_sealed_is_damage(text: object, crc32: object) -> None:
    with pytest.raises(sqlite3.DatabaseError, match="is not what was written") as caught:
        decode_checksummed(text, crc32)
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_CORRUPT


def test_any_tool_reads_what_is_sealed(tmp_path: Path) -> None:
    """Each value is JSON in a cell of its own."""
    ledger = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True, durable=False)
    with ledger.transaction():
        ledger.set("where", {"is": [1, "here"]})
        ledger.open_epoch(0, 10, 0.0)
        ledger.set_metrics(0, {"accuracy": 0.5})
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        assert db.execute("SELECT json_extract(value, '$.is[1]') FROM run WHERE key = 'where'").fetchone() == ("here",)
        assert db.execute("SELECT json_extract(metrics, '$.accuracy') FROM epochs").fetchone() == (0.5,)

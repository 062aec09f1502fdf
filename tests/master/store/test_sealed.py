"""A value comes back as it was, or not at all: no flipped bit makes another one of it."""

from __future__ import annotations

import sqlite3

import pytest

from master.store.sealed import seal, unseal

VALUE = {"accuracy": 0.9812, "counts": [1, 2], "Größe": None}


def test_a_value_comes_back() -> None:
    for value in (VALUE, "running", 3, 0.5, True, None, [], "two words"):
        assert unseal(seal(value)) == value


def test_no_flipped_bit_passes() -> None:
    sealed = seal(VALUE).encode()
    for bit in range(8 * len(sealed)):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((sqlite3.DatabaseError, UnicodeDecodeError)):
            unseal(damaged.decode())


def test_what_was_never_sealed_is_damage() -> None:
    with pytest.raises(sqlite3.DatabaseError, match="is not what was written") as caught:
        unseal('"running"')
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_CORRUPT

"""Payloads in pieces have the bytes and the SHA-256 of the whole, and long pieces are not copied."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.protocol import bundle
from gridml.protocol.payload import Pieces, Received, in_pieces

parts = st.lists(st.binary(max_size=40), max_size=8)


@given(parts, st.integers(1, 30), st.integers(0, 200))
def test_blocks_are_the_bytes_from_anywhere_on(parts: list[bytes], size: int, start: int) -> None:
    whole, payload = b"".join(parts), Pieces(parts)
    blocks = [bytes(block) for block in payload.blocks(size, start)]
    assert b"".join(blocks) == whole[start:]
    assert all(len(block) == size for block in blocks[:-1]) and all(0 < len(block) <= size for block in blocks)
    assert (len(payload), bytes(payload)) == (len(whole), whole)
    assert payload.sha256 == hashlib.sha256(whole).hexdigest()


@given(parts)
def test_what_was_read_only_in_part_has_its_sha256_all_the_same(parts: list[bytes]) -> None:
    payload = Pieces(parts)
    next(payload.blocks(1), None)
    assert payload.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()


def test_pieces_are_on_the_memory_of_the_arrays(tmp_path: Path) -> None:
    tensor = np.arange(1 << 18, dtype=np.float32)
    tensors = {"weight": tensor, "bias": tensor[:3]}
    payload = bundle.pieces({}, tensors)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), tensor) for piece in payload.pieces)
    blocks = [np.frombuffer(block, np.uint8) for block in payload.blocks(1 << 16)]
    assert sum(np.shares_memory(block, tensor) for block in blocks) >= 14
    bundle.write_atomic(tmp_path / "file", payload)
    assert (tmp_path / "file").read_bytes() == bytes(payload) == bundle.encode({}, tensors)


def test_pieces_are_not_unpacked_byte_by_byte() -> None:
    with pytest.raises(TypeError):
        print(*Pieces([b"abc"]))  # type: ignore[misc]


def test_a_file_is_named_by_what_was_written(tmp_path: Path) -> None:
    payload = in_pieces(b"precious")
    bundle.write_named(lambda sha256: tmp_path / f"reply-{sha256}", payload)
    assert [path.name for path in tmp_path.iterdir()] == [f"reply-{bundle.digest(b'precious')}"]


def test_a_file_whose_name_cannot_be_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / f"reply-{bundle.digest(b'precious')}" / "taken").mkdir(parents=True)
    with pytest.raises(OSError):
        bundle.write_named(lambda sha256: tmp_path / f"reply-{sha256}", b"precious")
    assert len([*tmp_path.iterdir()]) == 1


@given(parts, st.integers(0, 3))
def test_what_is_received_is_hashed_as_it_comes(parts: list[bytes], more: int) -> None:
    whole = b"".join(parts)
    received = Received(len(whole) + more)
    for part in parts:
        received.take(part)
    assert received.missing == more
    with pytest.raises(ValueError, match=f"expected at most {more}"):
        received.take(bytes(more + 1))
    received.end()
    assert received == whole and bundle.digest(received) == hashlib.sha256(whole).hexdigest()


def test_a_file_is_received_from_where_it_stands_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 10_000)
    with path.open("rb", buffering=0) as file:
        received = Received(path.stat().st_size + 5)
        received.take(os.read(file.fileno(), 1000))
        received.read(file.fileno())
    assert received == path.read_bytes()
    assert received.sha256 == hashlib.sha256(received).hexdigest()

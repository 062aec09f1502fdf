"""Memory is aligned like torch's own allocations, and so are the columns in a chunk's payload."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load

import gridml
from gridml.model.batch import Batch, Rows
from gridml.model.chunk import Chunk, cut
from gridml.model.vertex import describe
from gridml.protocol.payload import (
    ALIGNMENT_BYTES,
    aligned_copy,
    aligned_empty,
    aligned_rows,
    aligned_tensor,
    is_aligned,
)

DTYPES = ("bool", "uint8", "int64", "float16", "float32", "float64")


class Word(gridml.Vertex):
    short = gridml.array("float16", (3,))
    long = gridml.array("float64", (5,))
    bytes = gridml.array("uint8", (7,))
    state = gridml.array("float32", (3,), mutable=True)
    tokens = gridml.ragged("float32", (3,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (13, 7)])
def test_what_is_made_begins_at_the_boundary_and_keeps_its_values(dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    values.flags.writeable = False
    for made in (aligned_empty(shape, dtype), aligned_copy(values)):
        assert (made.dtype, made.shape, made.flags.writeable) == (np.dtype(dtype), shape, True)
        assert is_aligned(made) and torch.from_numpy(made).data_ptr() % ALIGNMENT_BYTES == 0
    np.testing.assert_array_equal(aligned_copy(values), values)


def test_rows_are_gathered_in_their_order_and_none_that_is_not_there() -> None:
    column = np.arange(21.0).reshape(7, 3)
    np.testing.assert_array_equal(aligned_rows(column, np.array([6, 0, -1])), column[[6, 0, -1]])
    assert aligned_rows(column, np.empty(0, np.int64)).shape == (0, 3)
    for rows in ([7], [-8], [0, 7]):
        with pytest.raises(IndexError, match="a column of 7"):
            aligned_rows(column, np.array(rows))


def test_a_tensor_is_copied_only_where_it_begins_elsewhere() -> None:
    whole = torch.arange(64.0)
    assert aligned_tensor(whole[16:]).data_ptr() == whole[16:].data_ptr()
    moved = aligned_tensor(whole[1:4])
    assert moved.data_ptr() % ALIGNMENT_BYTES == 0 and torch.equal(moved, whole[1:4])


def chunk_of(count: int) -> Chunk:
    rng = np.random.default_rng(0)
    g = gridml.Graph()
    g.add(
        Word,
        short=rng.normal(size=(count, 3)),
        long=rng.normal(size=(count, 5)),
        bytes=rng.integers(0, 255, (count, 7)),
        state=rng.normal(size=(count, 3)),
        tokens=[rng.normal(size=(k % 4, 3)) for k in range(count)],
    )
    return cut(g, "Word", np.arange(count), None, None, bsp=True)


@pytest.mark.parametrize("count", range(1, 40, 3))
def test_columns_of_payloads_begin_at_the_boundary_and_safetensors_reads_them(count: int) -> None:
    chunk = chunk_of(count)
    payload = chunk.encode()
    loaded = load(payload)
    decoded = Chunk.decode(payload).tables["Word"]
    for name, column in chunk.tables["Word"].fields.items():
        np.testing.assert_array_equal(loaded[f"field/Word/{name}"], column)
        np.testing.assert_array_equal(decoded.fields[name], column)
        assert is_aligned(decoded.fields[name])
    assert is_aligned(decoded.ragged["tokens"].values)


def test_every_batch_and_every_vertex_begins_at_the_boundary_and_writes_come_home() -> None:
    table = chunk_of(23).tables["Word"]
    rows = Rows(describe(Word), table.ids, dict(table.fields), frozenset({"state"}), torch=True)
    rows.ragged = table.ragged
    before = rows.fields["state"].copy()
    for at in (slice(0, 5), slice(5, 6), slice(6, 23), np.array([3, 1])):
        batch: Batch[Word] = Batch._over(rows, at)
        for name in ("short", "long", "bytes", "state"):
            tensor = getattr(batch, name)
            assert tensor.data_ptr() % ALIGNMENT_BYTES == 0
            assert getattr(batch, name).data_ptr() == tensor.data_ptr()  # so changes by f are visible
            np.testing.assert_array_equal(tensor.numpy(), rows.fields[name][at])
        assert all(part.data_ptr() % ALIGNMENT_BYTES == 0 for part in batch.tokens if part.numel())
        for vertex in batch:
            assert vertex.long.data_ptr() % ALIGNMENT_BYTES == 0
            assert vertex.state.data_ptr() % ALIGNMENT_BYTES == 0
    whole: Batch[Word] = Batch._over(rows, slice(1, 20))
    whole.state.mul_(2)
    whole._write_back()
    vertex = Word._view(rows, 21)
    state = vertex.state
    state.add_(1)
    vertex.state = vertex.state * 3
    assert torch.equal(state, vertex.state)
    rows.write_back_copies()
    expected = before.copy()
    expected[1:20] *= 2
    expected[21] = (before[21] + 1) * 3
    np.testing.assert_array_equal(rows.fields["state"], expected)

"""Digests of arrays: equal for equal values in any memory layout, and different for any other value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gridml
from gridml.model import ragged
from gridml.model.ragged import array_digest, block_digests, blocks

VALUES = np.arange(1000, dtype=np.float32).reshape(100, 10)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "BLOCK_BYTES", 400)


def test_blocks_hold_every_row_once() -> None:
    assert [*blocks(VALUES)][:2] == [slice(0, 10), slice(10, 20)]
    assert [row for rows in blocks(VALUES) for row in range(rows.start, rows.stop)] == [*range(100)]
    assert [*blocks(VALUES[:0])] == []
    assert [*blocks(np.zeros((3, 1000)))] == [slice(0, 1), slice(1, 2), slice(2, 3)]  # rows larger than a block


def test_one_bit_changes_the_digest_of_its_block_alone() -> None:
    before, after = block_digests(VALUES), VALUES.copy()
    after.view(np.uint32)[37, 5] ^= 1
    assert [at for at, (one, two) in enumerate(zip(before, block_digests(after), strict=True)) if one != two] == [3]


def test_where_and_how_values_lie_changes_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "values.npy", VALUES)
    for same in (np.asfortranarray(VALUES), np.load(tmp_path / "values.npy", mmap_mode="r"), VALUES[::-1][::-1]):
        assert array_digest(same) == array_digest(VALUES)


@pytest.mark.parametrize(
    "other", [VALUES.T, VALUES[:-1], VALUES.astype(np.float64), VALUES.view(np.int32), VALUES.ravel(), VALUES[::-1]]
)
def test_other_values_shapes_and_dtypes_have_others(other: NDArray[Any]) -> None:
    assert array_digest(other) != array_digest(VALUES)


@pytest.mark.parametrize("dtype", ["?", "U5", "S3", "M8[s]", "c8", ">f4", "i1"])
def test_any_dtype_has_one(dtype: str) -> None:
    assert array_digest(np.zeros(3, dtype)) == array_digest(np.zeros(3, dtype)) != array_digest(np.zeros(4, dtype))


class Hub(gridml.Vertex):
    aggregate = gridml.mean()


class Item(gridml.Vertex):
    value = gridml.array("int64")
    hubs = gridml.edge(Hub)


def digests(hubs: Any, value: int = 1) -> dict[str, str]:
    g = gridml.Graph()
    g.add(Hub, 5)
    g.add(Item, value=np.full(4, value), hubs=hubs)
    return g.digests()


def test_a_graph_has_one_for_each_field_and_its_edges() -> None:
    assert digests([0, 1, 2, 3]).keys() == {"Item.value", "Item.hubs"}
    assert digests([0, 1, 2, 3]) == digests([0, 1, 2, 3])
    one, two = digests([0, 1, 2, 3]), digests([0, 1, 2, 4], value=1)
    assert one["Item.value"] == two["Item.value"] and one["Item.hubs"] != two["Item.hubs"]
    assert one["Item.value"] != digests([0, 1, 2, 3], value=2)["Item.value"]
    csr = digests(gridml.csr([0, 2, 2, 2, 4], [0, 1, 2, 3]))
    assert csr["Item.hubs"] != digests(gridml.csr([0, 1, 2, 2, 4], [0, 1, 2, 3]))["Item.hubs"] != one["Item.hubs"]

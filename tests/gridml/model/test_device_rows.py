"""Rows on a device are copied there without waiting for the device."""

from __future__ import annotations

import numpy as np
import pytest

import gridml
from gridml.model import device_rows
from gridml.model.device_rows import DeviceRows
from gridml.model.vertex import describe
from tests.support import pretend_device
from tests.support.pretend_device import NAME, STATE

pytestmark = pytest.mark.pretended


class Image(gridml.Vertex):
    pixels = gridml.array("float32", (2,))
    label = gridml.array("int64")


def rows_of(**fields: np.ndarray) -> DeviceRows:
    return DeviceRows(describe(Image), np.arange(5), fields, frozenset(), torch=True, device=NAME)


def read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


VALUES = {
    "a column": np.arange(10, dtype=np.float32).reshape(5, 2),
    "labels": np.arange(5),
    "one row": np.arange(2, dtype=np.float32),
    "one number": np.array(3, np.int16),
    "nothing": np.empty((0, 2), np.uint8),
    "read only": read_only(np.arange(5.0)),
    "every other": np.arange(10)[::2],
    "backwards": np.arange(5)[::-1],
    "flags": np.array([True, False]),
}


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("block", [8, 1 << 20])
def test_values_arrive_as_they_were_and_nothing_waits(what: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "BLOCK", block)
    values = VALUES[what]
    source = values.copy() if values.flags.writeable else values
    pretend_device.wait()
    before = STATE.deferred
    tensor = rows_of().present(source)
    assert STATE.deferred - before >= (values.size > 0), "the copy blocked"
    if source.flags.writeable:
        source[...] = 0  # the caller may change it again
    assert tensor.device.type == "privateuseone"
    assert tensor.cpu().numpy().dtype == values.dtype
    np.testing.assert_array_equal(tensor.cpu().numpy(), values)


def test_a_column_is_copied_once() -> None:
    rows = rows_of(pixels=VALUES["a column"], label=VALUES["labels"])
    assert rows.column("pixels") is rows.column("pixels")
    assert rows.column("pixels").cpu().tolist() == VALUES["a column"].tolist()


def test_a_column_is_copied_as_far_as_training_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "MIN_COPIED", 16)  # two of its rows
    rows = rows_of(pixels=VALUES["a column"], label=VALUES["labels"])
    before = STATE.deferred
    assert rows.column("pixels", 1)[:1].cpu().tolist() == [[0, 1]]
    assert rows.column("pixels", 2)[:2].cpu().tolist() == [[0, 1], [2, 3]], "the first copy brought two rows"
    assert STATE.deferred == before + 1
    assert rows.read("pixels", 4).cpu().tolist() == [8, 9]
    assert rows.column("pixels").cpu().tolist() == VALUES["a column"].tolist()
    assert STATE.deferred == before + 2

"""Bundles: round trips, rejection of damaged ones, and atomic files."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import event, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gridml.protocol import bundle

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name != "__metadata__"
)
messages = st.dictionaries(
    st.text(st.characters(codec="utf-8")),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        st.lists,
        max_leaves=5,
    ),
)


@given(messages, st.dictionaries(names, arrays, max_size=4))
def test_message_and_arrays_come_back_as_they_were(message: dict[str, Any], tensors: dict[str, Any]) -> None:
    message_back, back = bundle.decode(bundle.encode(message, tensors))
    assert message_back == message
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert back[name].tobytes() == tensor.tobytes()
        assert back[name].flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    _, back = bundle.decode(bundle.encode({}, {"x": tensor}))
    assert (back["x"].dtype, back["x"].shape) == (tensor.dtype, shape)
    np.testing.assert_array_equal(back["x"], tensor)


def test_transposed_and_strided_arrays_keep_their_values() -> None:
    tensor = np.arange(24.0).reshape(4, 6)
    _, back = bundle.decode(bundle.encode({}, {"t": tensor.T, "s": tensor[::2, ::-3]}))
    np.testing.assert_array_equal(back["t"], tensor.T)
    np.testing.assert_array_equal(back["s"], tensor[::2, ::-3])


def test_a_payload_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    payload = bundle.encode({"version": 7}, {"weight": tensor})
    np.testing.assert_array_equal(safetensors.numpy.load(payload)["weight"], tensor)
    path = tmp_path / "final.safetensors"
    bundle.write_atomic(path, payload)
    with safetensors.safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["gridml"]) == {"version": 7}
        np.testing.assert_array_equal(file.get_tensor("weight"), tensor)


PAYLOAD = bundle.encode({"worker": "w1", "n": [1, 2]}, {"a": np.arange(5.0), "b": np.zeros((2, 0), np.int8)})


@pytest.mark.parametrize("length", range(len(PAYLOAD)))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="not a gridml bundle"):
        bundle.decode(PAYLOAD[:length])


@given(st.integers(0, len(PAYLOAD) - 1), st.integers(1, 255))
def test_an_altered_payload_raises_nothing_but_value_error(at: int, flip: int) -> None:
    altered = bytearray(PAYLOAD)
    altered[at] ^= flip
    assert bundle.digest(bytes(altered)) != bundle.digest(PAYLOAD)
    try:
        message, tensors = bundle.decode(bytes(altered))
    except ValueError:
        return
    # A change inside a value is only detected by the digest of the payload.
    assert isinstance(message, dict)
    assert all(isinstance(tensor, np.ndarray) for tensor in tensors.values())


def _with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@given(st.binary(max_size=200))
@example(_with_header(b"[" * 100_000))
@example(_with_header(b"{}"))
@example(_with_header(b"[]"))
@example(_with_header(b'{"__metadata__":{"gridml":3}}'))
@example(_with_header(b'{"__metadata__":{"gridml":"[1]"}}'))
@example(_with_header(b'{"__metadata__":{"gridml":"{"}}'))
@example(_with_header(b'{"__metadata__":{"gridml":"' + b"[" * 100_000 + b'"}}'))
@example(safetensors.numpy.save({"x": np.zeros(3)}))
@example(safetensors.numpy.save({"x": np.zeros(3, np.complex64)}, {"gridml": "{}"}))
def test_what_is_no_bundle_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="bundle"):
        bundle.decode(payload)


ITEM = {"BOOL": 1, "U8": 1, "I16": 2, "F32": 4, "F64": 8}
odd_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*ITEM, "F8", "X", 3, []]),
        "shape": st.lists(st.integers(-1, 6) | st.booleans(), max_size=2) | st.integers() | st.text(max_size=2),
        "data_offsets": st.lists(st.integers(-2, 12), max_size=3) | st.none(),
    }
)


def in_turn(dtypes: list[str]) -> list[dict[str, Any]]:
    """Return the header entries of consecutive tensors with two items each."""
    ends = [0, *itertools.accumulate(2 * ITEM[dtype] for dtype in dtypes)]
    return [
        {"dtype": dtype, "shape": [2], "data_offsets": list(place)}
        for dtype, place in zip(dtypes, itertools.pairwise(ends), strict=True)
    ]


@given(
    st.lists(st.sampled_from([*ITEM]), max_size=4).map(in_turn),
    st.none() | odd_entries,
    st.integers(-3, 3),
    st.randoms(use_true_random=False),
)
def test_nothing_that_safetensors_refuses_is_read_and_the_rest_as_it_reads_it(
    entries: list[dict[str, Any]], odd: dict[str, Any] | None, more: int, chance: random.Random
) -> None:
    size = max(0, (entries[-1]["data_offsets"][1] if entries else 0) + more * chance.randrange(2))
    entries = entries if odd is None else [*entries, odd]
    chance.shuffle(entries)
    named = {f"t{i}": entry for i, entry in enumerate(entries)}
    header = json.dumps({"__metadata__": {"gridml": "{}"}, **named}).encode()
    payload = len(header).to_bytes(8, "little") + header + bytes(k % 2 for k in range(size))
    try:
        read = bundle.opened(payload)[1]
    except ValueError:
        event("refused")
        return
    expected = dict(safetensors.deserialize(payload))  # type: ignore[no-untyped-call]
    assert {name: (array.tobytes(), list(array.shape)) for name, array in read.items()} == {
        name: (bytes(tensor["data"]), tensor["shape"]) for name, tensor in expected.items()
    }
    assert all(array.flags.aligned for array in read.values())


def test_arrays_are_on_the_memory_of_the_payload() -> None:
    payload = bytearray(bundle.encode({}, {"x": np.zeros(1_000, np.float32)}))
    _, read = bundle.opened(payload)
    read["x"][:] = 1.0
    assert np.frombuffer(payload, np.float32, 1_000, len(payload) - 4_000).sum() == 1_000


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "v1.safetensors"
    bundle.write_atomic(path, b"old")
    bundle.write_atomic(path, b"new", durable=False)
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "v1.safetensors"
    bundle.write_atomic(path, b"old")

    def fail(handle: int) -> None:
        raise error

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(type(error)):
        bundle.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_writing_into_a_missing_folder_raises_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bundle.write_atomic(tmp_path / "missing" / "v1", b"")
    assert list(tmp_path.iterdir()) == []

"""Device names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from gridml.model.device_memory import ACCELERATORS, DeviceName, parse


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:0", "cuda:17", "privateuseone:1"])
def test_a_device_is_written_as_it_is_read(text: str) -> None:
    assert str(parse(text)) == text


def test_a_kind_has_numbers_or_none() -> None:
    assert parse("cuda") == DeviceName("cuda")
    assert parse("cuda:3") == DeviceName("cuda", 3)
    assert [parse(name).accelerates for name in ("auto", "cpu", "cuda")] == [False, False, True]
    assert all(DeviceName(kind).accelerates for kind in ACCELERATORS)


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cuda:1024", "cpu:0", "auto:0", " cuda", "cuda\n", None],
)
def test_what_names_no_device_is_refused_with_what_does(text: object) -> None:
    with pytest.raises(UsageError, match=r"^--device is .*; expected auto, cpu, cuda, or cuda:N"):
        parse(text)


@given(st.text())
def test_any_text_is_a_device_or_refused(text: str) -> None:
    try:
        assert str(parse(text, "the device")) == text
    except UsageError as error:
        assert str(error).startswith("the device is ") and str(error).isprintable()

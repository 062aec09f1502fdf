"""Memory requests of jobs, and the request after one that was too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UsageError
from master.backends.condor.holds import MemoryRange, memory_range, next_request


@pytest.mark.parametrize(
    ("text", "first", "most"),
    [
        ("2GB", 2048, 2048),
        ("1GB..4GB", 1024, 4096),
        ("1500", 1500, 1500),
        ("1.5 GiB .. 2g", 1536, 2048),
        ("512K..1M", 1, 1),
        ("1TB", 1 << 20, 1 << 20),
    ],
)
def test_sizes_are_read_as_htcondor_reads_them(text: str, first: int, most: int) -> None:
    assert memory_range(text) == MemoryRange(first, most)


@pytest.mark.parametrize("text", ["lots", "", "..", "1GB..", "..1GB", "0", "-1GB", "2GB..1GB", "1GB..2GB..3GB", "9e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--request-memory is"):
        memory_range(text)


@given(st.integers(1, 10**6), st.none() | st.integers(0, 10**6), st.integers(1, 10**6))
def test_more_is_asked_for_until_the_most(too_little: int, used: int | None, most: int) -> None:
    asked, why = next_request(too_little, used, most)
    assert f"{too_little:,} MB" in why
    if asked is None:
        assert too_little >= most
    else:
        assert too_little < asked <= most
        assert asked == most or asked >= max(2 * too_little, 1.25 * (used or 0))

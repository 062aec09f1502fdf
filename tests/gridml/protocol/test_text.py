"""Foreign text becomes printable and short; doing it twice changes nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gridml.protocol.foreign import MAX_MESSAGE_CHARS, described, printable


@given(st.text(st.characters()), st.integers(64, 400))
@example("\udce9" * 300, 64)
@example("a" * 64 + "\x1b" * 64, 128)
@example("\U0010ffff" * 100, 64)
def test_whatever_it_was_it_prints_and_is_short(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    shown.encode()
    assert printable(shown, limit) == shown


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=64))
def test_what_prints_and_is_short_stays(text: str) -> None:
    assert printable(text, 64) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\n\ttwo", "one\n\ttwo"),
        ("\x1b[31mred\x07\r", "\\x1b[31mred\\x07\\r"),
        (os.fsdecode(b"caf\xe9.txt"), "caf\\udce9.txt"),
        ("\x9b2J\u202egnp.exe\u2028", "\\x9b2J\\u202egnp.exe\\u2028"),
        ("naïve 数 🙂", "naïve 数 🙂"),
    ],
)
def test_what_does_not_print_shows_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_too_long_loses_its_middle_and_says_how_much() -> None:
    shown = printable("begin" + "x" * 30_000_000 + "end")
    assert shown.startswith("beginx") and shown.endswith("xend")
    assert f"[... {30_000_008 - (MAX_MESSAGE_CHARS - 64):,} characters left out ...]" in shown


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_that_has_no_words_is_described_all_the_same() -> None:
    assert described(Unspeakable()) == "Unspeakable: (its message is unavailable: RuntimeError)"
    assert described(ValueError(os.fsdecode(b"caf\xe9"))) == "ValueError: caf\\udce9"

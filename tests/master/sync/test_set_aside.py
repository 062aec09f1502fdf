"""Dead letters: the last few unreadable messages are kept with their reasons, and never stop a run."""

from __future__ import annotations

from pathlib import Path

from gridml.carriers.base import Message
from master.sync.inbox import MAX_MESSAGE_BYTES, MAX_MESSAGES, DeadLetters


def test_the_last_few_are_kept_with_their_reasons(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "set-aside")
    assert not (tmp_path / "set-aside").exists()
    for number in range(MAX_MESSAGES + 3):
        letters.keep(Message("w1", number, b"%d" % number), "nonsense")
    files = sorted(path.name for path in (tmp_path / "set-aside").iterdir())
    assert files == sorted(f"{i:02d}.{kind}" for i in range(MAX_MESSAGES) for kind in ("txt", "message"))
    assert (tmp_path / "set-aside" / "02.message").read_bytes() == b"%d" % (MAX_MESSAGES + 2)
    words = (tmp_path / "set-aside" / "02.txt").read_text()
    assert words == f"message {MAX_MESSAGES + 2} of w1, 2 bytes: nonsense\n"


def test_of_a_long_one_the_beginning_is_kept(tmp_path: Path) -> None:
    DeadLetters(tmp_path).keep(Message("w1", 1, bytes(MAX_MESSAGE_BYTES + 1)), "too long")
    assert (tmp_path / "00.message").stat().st_size == MAX_MESSAGE_BYTES


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "set-aside").write_text("in the way")
    DeadLetters(tmp_path / "set-aside").keep(Message("w1", 1, b""), "nonsense")

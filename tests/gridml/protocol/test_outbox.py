"""A push without an answer, saved in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridml.protocol import bundle
from gridml.protocol import outbox as unanswered
from gridml.protocol.messages import Push, Sync, sync_from, to_json
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.push import PushContent, ReplicaPart, RowValues
from remote import worker

PUSH = Push(lease=3, term=9, sequence=2, base=5, upto=12, vertices=4)
ROWS = {"Word": RowValues(np.arange(4), {"count": np.arange(4.0)})}
KEPT = UnansweredPush(7, Sync("w2.1", have=5, push=PUSH), PushContent(ReplicaPart(rows=ROWS)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / unanswered.FILE


def test_what_is_written_is_read(path: Path) -> None:
    unanswered.write(path, KEPT)
    kept = unanswered.read(path)
    assert kept is not None and (kept.number, kept.sync, kept.push) == (7, KEPT.sync, PUSH)
    message, tensors = bundle.decode(bytes(kept.payload))
    assert sync_from(message) == KEPT.sync
    np.testing.assert_array_equal(tensors["Word/count"], np.arange(4.0))


@pytest.mark.parametrize("workers", [0, 1, 3, 20, 5000])
def test_all_pushes_that_are_kept_together_are_bounded(workers: int) -> None:
    assert workers * unanswered.share(workers) <= unanswered.MAX_OUTBOX_BYTES


def test_a_push_that_is_longer_than_may_be_kept_is_left_and_said(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(path.parent)
    worker._leave_behind(KEPT, 10_000)
    kept = path.stat().st_size
    assert kept > 0 and capsys.readouterr().err == ""
    worker._leave_behind(KEPT, kept)
    assert path.stat().st_size == kept
    worker._leave_behind(KEPT, kept - 1)
    assert path.read_bytes() == b"", "the file stays: HTCondor expects it"
    assert f"it has {kept:,} bytes, expected at most {kept - 1:,} per worker" in capsys.readouterr().err


def test_an_empty_file_holds_nothing_and_stays(path: Path) -> None:
    unanswered.write(path, KEPT)
    unanswered.clear(path)
    assert path.exists() and unanswered.read(path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"torn",
        bundle.encode({"number": 7}, {}),
        bundle.encode({"number": 7, "sync": to_json(Sync("w2"))}, {}),
        bundle.encode({"number": float("inf"), "sync": to_json(KEPT.sync)}, {}),
        bundle.encode({"number": 7, "sync": to_json(KEPT.sync)}, {"nonsense": np.zeros(1)}),
    ],
    ids=["torn", "no sync", "no push", "no number", "no such tensor"],
)
def test_what_is_no_push_counts_as_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert unanswered.read(path) is None


def test_nothing_is_where_there_is_no_file(path: Path) -> None:
    assert unanswered.read(path) is None

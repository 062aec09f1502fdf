"""Reports of any error in f are printable, short, and informative."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gridml.engine.update_runner import BatchFailed
from gridml.model.chunk import Chunk, ChunkTable
from gridml.model.shared import SharedColumn, SharedFileError
from gridml.model.update import Update
from gridml.protocol.foreign import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS
from gridml.protocol.messages import Lease, sync_from, to_json
from gridml.protocol.worker_actions import BeginChunk, Send, Train, TrainingFailed
from remote.session import Session, SessionOptions


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class FailingEngine:
    """An engine whose f raises `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        shape = Update(print, 1, 1)
        self.program = SimpleNamespace(types=dict, shape=shape, min_target_batch=1, factor=lambda at: 1.0)

    def batch_end(self, at: int, size: int, count: int) -> tuple[int, bool]:
        return at + 1, True

    def train(self, start: int, stop: int, rate: float, scale: float = 1.0, others: float = 0.0) -> None:
        raise BatchFailed(7, 7) from self.error


ERRORS = {
    "a name that is no text": (ValueError(os.fsdecode(b"caf\xe9.txt")), "ValueError: caf\\udce9.txt"),
    "no words": (Unspeakable(), "Unspeakable: (its message is unavailable: RuntimeError)"),
    "terminal escapes": (ValueError("\x1b[2J\x07"), "ValueError: \\x1b[2J\\x07"),
    "30 MB": (ValueError("x" * 30_000_000), "ValueError: xxx"),
}


@pytest.mark.parametrize(("error", "words"), ERRORS.values(), ids=ERRORS)
def test_any_error_of_f_becomes_a_failure_that_can_travel(error: Exception, words: str) -> None:
    engine: Any = FailingEngine(error)
    session = Session(SessionOptions("w1"), engine, cast(Any, None), cast(Any, None), lambda: False, lambda: 0.0)
    lease = Lease(1, 1, 0, 0, 10, "chunk", "")
    event = session._perform(Train(lease, 0, 10, 10, 1.0, False, 1, 0, 10, 10, 0))
    assert isinstance(event, TrainingFailed)
    failure = event.failure
    assert failure.message.startswith(words) and (failure.first, failure.last) == (7, 7)
    assert len(failure.message) <= MAX_MESSAGE_CHARS and len(failure.traceback) <= MAX_TRACEBACK_CHARS
    sync = to_json(session.state._send(session.state._sync._replace(failure=failure)).sync)
    assert sync_from(sync).failure == failure  # the master accepts it unchanged


def test_a_shared_file_that_goes_while_f_reads_it_is_no_failure_of_f() -> None:
    engine: Any = FailingEngine(SharedFileError("/data/rows.npy has 1 byte"))
    session = Session(SessionOptions("w1"), engine, cast(Any, None), cast(Any, None), lambda: False, lambda: 0.0)
    event = session._perform(Train(Lease(1, 1, 0, 0, 10, "chunk", ""), 0, 10, 10, 1.0, False, 1, 0, 10, 10, 0))
    assert isinstance(event, TrainingFailed)
    assert (event.failure.message, event.failure.traceback) == ("/data/rows.npy has 1 byte", "")
    assert (event.failure.first, event.failure.last) == (-1, -1)


def test_a_machine_without_a_shared_file_says_so_and_is_given_other_work() -> None:
    column = SharedColumn("/nowhere/rows.npy", 100, 0, "<f4", (25,), "")
    table = ChunkTable("Row", np.arange(3), {}, shared={"values": column})
    payload = Chunk("Row", {"Row": table}, {}).encode()
    mailbox: Any = SimpleNamespace(beat=lambda lease, upto: None, fetch=lambda name, sha256: payload)
    engine: Any = SimpleNamespace(
        program=SimpleNamespace(types=dict), begin=lambda chunk: chunk.tables["Row"].shared["values"].opened()
    )
    session = Session(SessionOptions("w1"), engine, mailbox, cast(Any, None), lambda: False, lambda: 0.0)
    event = session._perform(BeginChunk(Lease(1, 1, 0, 0, 3, "chunk", "")))
    assert isinstance(event, TrainingFailed)
    assert event.failure.first == -1
    assert "/nowhere/rows.npy: No such file or directory" in event.failure.message
    session.state.handle(event, 0.0)
    said = session.state.next_action(0.0)
    assert isinstance(said, Send)
    assert said.sync.failure == event.failure
    assert said.sync.holds == ()
    assert sync_from(to_json(said.sync)) == said.sync

"""Content of a worker's syncs beyond its work: notes, and the push of the previous process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from gridml.protocol.foreign import MAX_MESSAGE_CHARS
from gridml.protocol.messages import Push, Sync
from gridml.protocol.outbox import UnansweredPush
from gridml.protocol.push import PushContent, ReplicaPart
from gridml.protocol.worker_actions import Content, Send
from remote.session import Session, SessionOptions

PUSHED = ReplicaPart(
    {("Network", 0): {"Network/0/net/weight": np.ones(2, np.float32)}}, moments={"step/w": np.ones(())}
)
UNANSWERED = UnansweredPush(
    3, Sync("w1", note="the cache is full", push=Push(1, 1, 1, 0, 1, 1)), PushContent(replica=PUSHED)
)


def sent(notes: list[str], send: Send) -> tuple[Sync, PushContent]:
    posted: list[tuple[Sync, Callable[[], PushContent]]] = []
    engine: Any = SimpleNamespace(program=SimpleNamespace(types=dict), notes=notes)
    courier: Any = SimpleNamespace(post=lambda sync, content: posted.append((sync, content)))
    options = SessionOptions("w1", unanswered=UNANSWERED)
    session = Session(options, engine, cast(Any, None), courier, lambda: False, lambda: 0.0)
    session._perform(send)
    ((sync, content),) = posted
    return sync, content()


def test_a_note_is_joined_to_the_one_that_the_message_has() -> None:
    notes = ["no room\nfor moments", "the cache is full", "no room\nfor moments"]
    sync, _ = sent(notes, Send(UNANSWERED.sync, Content.NOTHING))
    assert sync.note == "the cache is full\nno room for moments"
    assert notes == [], "each is sent once"
    assert sent([], Send(UNANSWERED.sync, Content.NOTHING))[0].note == "the cache is full"


def test_notes_are_cut_to_what_a_message_may_hold() -> None:
    sync, _ = sent([f"note {number}" for number in range(10_000)], Send(Sync("w1"), Content.NOTHING))
    assert len(sync.note) <= MAX_MESSAGE_CHARS
    assert "characters left out" in sync.note


def test_the_push_of_the_process_before_brings_no_moments() -> None:
    """Spot checks of the previous process are not continued: its successor, with another name, would be blamed."""
    _, content = sent([], Send(UNANSWERED.sync, Content.OUTBOX))
    assert content.replica.modules.keys() == PUSHED.modules.keys()
    assert content.replica.moments == {}

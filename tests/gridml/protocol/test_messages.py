from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest

from gridml.protocol.foreign import MAX_NAME_CHARS, MAX_TRACEBACK_CHARS, printable
from gridml.protocol.messages import (
    COPIES_BOUNDS,
    FAILURE_BOUNDS,
    MAX_LOGGED,
    MAX_LOGGED_NAME_CHARS,
    PUSH_BOUNDS,
    SYNC_BOUNDS,
    Copies,
    Failure,
    Lease,
    Logged,
    Pace,
    Push,
    Reply,
    Sync,
    Verdict,
    reply_from,
    sync_from,
    to_json,
)

SYNC = Sync(
    "w1",
    have=3,
    holds=(4, 5),
    push=Push(4, 1, 2, 3, 640, 64),
    failure=Failure(5, 1, "no", "text", 1, 2),
    kind="x86_64 avx2",
    begun=2,
    begun_vertices=640,
    begin_s=0.5,
    end_s=0.1,
    travel_s=0.3,
)
REPLY = Reply(7, Pace(2, 10, 100, 64), Verdict.MERGED, "fits", lease=Lease(6, 1, 0, 0, 64, "lease-000006", "ab"))


def over_the_wire(message: Sync | Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(to_json(message)))
    return found


def test_messages_come_back_equal() -> None:
    assert sync_from(over_the_wire(SYNC)) == SYNC
    assert sync_from(over_the_wire(Sync("w2"))) == Sync("w2")
    assert sync_from(over_the_wire(Sync("w3", copies=Copies(4, -1)))) == Sync("w3", copies=Copies(4, -1))
    assert reply_from(over_the_wire(REPLY)) == REPLY


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("have",), "3"),
        (("have",), True),
        (("wants",), 1),
        (("worker",), 7),
        (("holds",), ["4"]),
        (("holds",), None),
        (("trained",), None),
        (("push", "upto"), 1.5),
        (("push", "sequence"), "2"),
        (("failure", "message"), 3),
        (("push",), "push"),
        (("push", "lease"), 2**70),
        (("holds",), [2**70]),
        (("train_s",), float("nan")),
        (("push_s",), float("inf")),
        (("kind",), 7),
        (("begun",), 1.5),
        (("begin_s",), "2"),
        (("travel_s",), float("nan")),
        (("travel_s",), -1e-9),
        (("end_s",), 1.1e9),
        (("end_s",), 10**400),
        (("have",), -2),
        (("trained",), -1),
        (("trained",), 2**53),
        (("holds",), [-1]),
        (("holds",), [1] * 257),
        (("holds",), {"1": 2}),
        (("copies",), [1, 2]),
        (("copies",), {"lease": -1, "version": 3}),
        (("copies",), {"lease": 1, "version": 0.5}),
        (("push", "base"), -2),
        (("push", "lease"), -1),
        (("push", "colour"), "red"),
        (("failure", "last"), -2),
        (("failure", "traceback"), None),
    ],
)
def test_a_field_of_another_type_is_no_sync(path: tuple[str, ...], value: object) -> None:
    message = over_the_wire(SYNC)
    inner = message
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match="not a sync"):
        sync_from(message)


def test_every_field_has_a_bound() -> None:
    for part, bounds in ((Sync, SYNC_BOUNDS), (Push, PUSH_BOUNDS), (Copies, COPIES_BOUNDS), (Failure, FAILURE_BOUNDS)):
        assert bounds.keys() == get_type_hints(part).keys(), part


@pytest.mark.parametrize(
    ("path", "value", "taken"),
    [
        (("train_s",), 1e-320, 0.0),
        (("travel_s",), 7, 7.0),
        (("failure", "message"), "\udce9\x1b", "\\udce9\\x1b"),
        (("kind",), "k" * 10_000, printable("k" * 10_000, MAX_NAME_CHARS)),
        (("failure", "traceback"), "t" * 30_000_000, printable("t" * 30_000_000, MAX_TRACEBACK_CHARS)),
        (("holds",), [], ()),
        (("failure", "first"), -1, -1),
    ],
)
def test_a_value_is_taken_within_its_bounds(path: tuple[str, ...], value: object, taken: object) -> None:
    message = over_the_wire(SYNC)
    inner = message
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    sync = sync_from(message)
    assert getattr(sync.failure if path[0] == "failure" else sync, path[-1]) == taken


def test_training_times_near_zero_are_rejected() -> None:
    assert sync_from({**over_the_wire(SYNC), "trained": 2**50, "train_s": 0.0}).train_s == 0.0  # no clock was there
    with pytest.raises(ValueError, match="which is impossible"):
        sync_from({**over_the_wire(SYNC), "trained": 2**50, "train_s": 1e-9})


def test_unknown_and_missing_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="not a sync"):
        sync_from({**over_the_wire(SYNC), "colour": "red"})
    with pytest.raises(ValueError, match="not a reply"):
        reply_from({**over_the_wire(REPLY), "verdict": "perhaps"})


def test_what_is_logged_travels_with_its_push() -> None:
    sync = Sync("w1", push=Push(1, 1, 1, 0, 10, 10, (Logged("loss", -2.5, 10), Logged("accuracy/top 5", 3, 4))))
    assert sync_from(over_the_wire(sync)) == sync


@pytest.mark.parametrize(
    "logged",
    [
        [["loss", 1.0, 11]],
        [["loss", 1.0, 0]],
        [["loss", 1e43, 10]],
        [["loss", float("inf"), 10]],
        [["loss", "1", 10]],
        [["loss", 1.0, 10], ["loss", 2.0, 10]],
        [["x" * (MAX_LOGGED_NAME_CHARS + 1), 1.0, 10]],
        [["\x1b[31m", 1.0, 10]],
        [["loss", 1.0]],
        [None],
        {"loss": 1.0},
        [[f"x{i}", 1.0, 10] for i in range(MAX_LOGGED + 1)],
    ],
    ids=["vertices", "none", "huge", "infinite", "text", "twice", "long", "escape", "short", "null", "object", "many"],
)
def test_what_cannot_have_been_logged_is_refused(logged: object) -> None:
    message = over_the_wire(Sync("w1", push=Push(1, 1, 1, 0, 10, 10)))
    with pytest.raises(ValueError, match="not a sync message"):
        sync_from({**message, "push": {**message["push"], "logged": logged}})

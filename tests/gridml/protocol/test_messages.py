from __future__ import annotations

import json
from typing import Any

import pytest

from gridml.protocol.messages import Failure, Lease, Pace, Push, Reply, Sync, Verdict, reply_from, sync_from, to_json

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


def test_unknown_and_missing_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="not a sync"):
        sync_from({**over_the_wire(SYNC), "colour": "red"})
    with pytest.raises(ValueError, match="not a reply"):
        reply_from({**over_the_wire(REPLY), "verdict": "perhaps"})

"""The in-process codec: a Sync is passed as it is, and any other object is parsed like the JSON of a sync."""

from __future__ import annotations

import pytest

from gridml.protocol.messages import Reply, Sync, to_json
from gridml.protocol.push import NOTHING, InProcessCodec, in_process_payload


def test_a_sync_is_taken_as_it_is() -> None:
    sync = Sync("w1", train_s=-1.0)
    assert InProcessCodec().read(in_process_payload(sync)) == (sync, NOTHING)


def test_its_json_is_taken_within_its_bounds() -> None:
    assert InProcessCodec().read(in_process_payload(to_json(Sync("w1", holds=(3,))))) == (
        Sync("w1", holds=(3,)),
        NOTHING,
    )
    with pytest.raises(ValueError, match="train_s"):
        InProcessCodec().read(in_process_payload({**to_json(Sync("w1")), "train_s": -1.0}))


@pytest.mark.parametrize("message", [None, Reply(1), "sync", [], {}, {"worker": "w1"}, {1: 2}])
def test_anything_else_is_no_sync(message: object) -> None:
    with pytest.raises(ValueError, match="not a sync"):
        InProcessCodec().read(in_process_payload(message))
    with pytest.raises(ValueError, match="not a sync"):
        InProcessCodec().read(b"bytes")

"""Pushes of honest workers are below the size limit of messages, which is not much larger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridml.model.loading import load
from gridml.protocol import bundle
from gridml.protocol.foreign import MAX_MESSAGE_CHARS, MAX_NAME_CHARS, MAX_TRACEBACK_CHARS
from gridml.protocol.messages import Copies, Failure, Push, Sync, to_json
from gridml.protocol.push import BundleCodec, PushContent, ReplicaPart, RowValues, encode
from master.ports.mailboxes import MAX_TEXT_BYTES, message_limits
from master.store.versions import initial

PROGRAMS = Path(__file__).parents[2] / "programs"
LONG = "\U0001f642"  # twelve bytes in JSON, which is quoted again in the header


@pytest.mark.parametrize("program", ["tally", "books", "ring", "twins", "perceptron"])
def test_the_largest_push_is_within_the_limits(program: str) -> None:
    source = PROGRAMS / f"{program}.py"
    graph = load(source).build(source)
    state = initial(graph, 0)
    every = {table.type.name: np.arange(table.count) for table in graph.tables.values()}
    fields = {
        table.type.name: RowValues(every[table.type.name], {name: table.columns[name] for name in table.type.mutable})
        for table in graph.local
    }
    modules = {key: vertex.tensors for key, vertex in state.modules.items()}
    rows = {name: RowValues(every[name], columns) for name, columns in state.arrays.items()}
    failure = Failure(2**53 - 1, 2**53 - 1, LONG * MAX_MESSAGE_CHARS, LONG * MAX_TRACEBACK_CHARS, 2**53 - 1, 2**53 - 1)
    push = Push(*[2**53 - 1] * 6)
    sync = Sync(
        worker=LONG * MAX_NAME_CHARS,
        process=LONG * MAX_NAME_CHARS,
        have=2**53 - 1,
        holds=(2**53 - 1,) * 256,
        copies=Copies(2**53 - 1, 2**53 - 1),
        wants=True,
        leaving=True,
        push=push,
        failure=failure,
        kind=LONG * MAX_NAME_CHARS,
    )
    content = encode(PushContent(ReplicaPart(modules, rows), fields))
    payload = bundle.encode(to_json(sync), content)
    limits = message_limits(graph, state)
    assert len(payload) <= limits.payload <= len(payload) + MAX_TEXT_BYTES + 1000 * len(content) + 1000
    assert BundleCodec().read(payload, limits.header)[0] == sync
    with pytest.raises(ValueError, match="expected at most"):
        BundleCodec().read(payload, int.from_bytes(payload[:8], "little") - 1)

"""The tensors of a push: values, names, and invalid ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gridml.protocol import bundle
from gridml.protocol.changes import PARTS, ChangedElements
from gridml.protocol.compression import FORMATS, StepFormat, TensorStep
from gridml.protocol.messages import Push, Sync, to_json
from gridml.protocol.push import (
    NOTHING,
    BundleCodec,
    ChangedRows,
    MalformedPush,
    PushContent,
    ReplicaPart,
    RowValues,
    decode,
    decode_patch,
    decode_replica,
    encode,
    encode_patch,
    encode_replica,
)

Arrays = dict[str, NDArray[Any]]

WORDS = {
    "@rows/Word": np.array([1, 3], np.int32),
    "Word/count": np.array([5, 6]),
    "Word/vector": np.zeros((2, 3), np.float32),
}
TEXTS = {"@ids/Text": np.array([7], np.int32), "Text/total": np.array([2.5])}
NETWORK = {"Network/1/model/0.weight": np.zeros((2, 3)), "Network/1/model/0.bias": np.zeros(2)}


def same(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert values.dtype == right[name].dtype
        np.testing.assert_array_equal(values, right[name])


def test_a_push_is_read_from_its_names() -> None:
    content = decode({**TEXTS, **NETWORK, **WORDS})
    assert content.replica.modules.keys() == {("Network", 1)}
    same(dict(content.replica.modules["Network", 1]), NETWORK)
    assert content.replica.rows["Word"].ids.tolist() == [1, 3]
    assert content.replica.rows["Word"].fields.keys() == {"count", "vector"}
    assert content.fields["Text"].fields["total"].tolist() == [2.5]
    assert content.fields.keys() == {"Text"} and content.replica.rows.keys() == {"Word"}


names = st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=3)
fields = st.dictionaries(names, st.sampled_from([np.float32, np.int64, np.bool_]), max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> RowValues:
    count = draw(st.integers(0, 3))
    return RowValues(np.arange(count), {name: np.ones((count, 2), dtype) for name, dtype in draw(fields).items()})


@given(
    st.dictionaries(st.tuples(names, st.integers(0, 10**9)), fields, max_size=3),
    st.dictionaries(names, st.tuples(st.booleans(), rows()), max_size=3),
    st.sampled_from([*FORMATS.values()]),
)
def test_what_is_written_is_read(
    modules: dict[tuple[str, int], Any], types: dict[str, tuple[bool, RowValues]], form: StepFormat
) -> None:
    tensors = {
        key: {f"{key[0]}/{key[1]}/m/{name}": np.zeros(2, dtype) for name, dtype in each.items()}
        for key, each in modules.items()
        if each
    }
    replicated, local = (
        {name: r for name, (is_local, r) in types.items() if is_local == side} for side in (False, True)
    )
    steps = {key: {f"{name}s": TensorStep(form, np.ones(3, np.uint8)) for name in tensors[key]} for key in tensors}
    content = PushContent(ReplicaPart(tensors, replicated), local, steps)
    named = encode(content)
    again = decode(named)
    same(encode(again), named)
    assert again.replica.modules.keys() == tensors.keys()
    assert again.replica.rows.keys() == replicated.keys()
    assert again.fields.keys() == local.keys()
    assert {k: {n: s.form for n, s in v.items()} for k, v in again.steps.items()} == {
        k: dict.fromkeys(v, form) for k, v in steps.items()
    }
    assert bool(again.replica) == bool(tensors or replicated)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nonsense": np.zeros(2)}, "called 'nonsense'; expected Type/field or Type/index/field/parameter"),
        ({"Network/first/model/weight": np.zeros(2)}, "called 'Network/first/model/weight'; expected"),
        ({"Page/rank": np.zeros(2)}, "Page/rank came without the ids of its rows"),
        ({"@rows/Word": np.zeros(2)}, "the ids of Word are float64 (2,); expected int32 or int64 (n,)"),
        ({"@ids/Text": np.zeros((1, 1), np.int64)}, "the ids of Text are int64 (1, 1); expected int32 or int64 (n,)"),
        ({"Word/count": np.zeros(3)}, "Word/count has float64 (3,); expected 2 rows"),
        ({"Word/count": np.zeros(())}, "Word/count has float64 (); expected 2 rows"),
        ({"@int8/Network/1/m/w": np.zeros(2), "Network/1/m/w": np.zeros(2)}, "Network/1/m/w comes twice"),
        ({"@int8/Network/1/m/w": np.zeros(2), "@int4/Network/1/m/w": np.zeros(2)}, "Network/1/m/w comes twice"),
        ({"@int8/Word/count": np.zeros(2)}, "called '@int8/Word/count'; expected @rows, @ids or a module's tensor"),
        ({"@int3/Network/1/m/w": np.zeros(2)}, "called '@int3/Network/1/m/w'; expected @rows"),
        ({"@int8/w": np.zeros(2)}, "called 'w'; expected Type/field or"),
        ({"@moments/sum/Word/count": np.zeros(2, np.uint16)}, "called '@moments/sum/Word/count'; expected @moments/"),
        ({"@moments/sum/Network/1/m/w": np.zeros(2)}, "is float64 (2,); expected bfloat16 as uint16, or float32 ()"),
        ({"@moments/step/Network/1/m/w": np.zeros(())}, "is float64 (); expected bfloat16"),
        ({"@ids/Word": np.array([1])}, "Word comes both as rows of the replica and as local vertices"),
        ({"@changed/counts/Word/size": np.zeros(2, np.uint8)}, "Word/size came with counts of its changes; expected"),
        ({f"@changed/{part}/Word/count": np.zeros(2, np.uint8) for part in PARTS}, "Word/count comes twice; expected"),
        ({f"@changed/{part}/Page/rank": np.zeros(2, np.uint8) for part in PARTS}, "Page/rank came without the ids of"),
        ({f"@changed/{part}/Text/size": np.zeros(2, np.uint8) for part in PARTS}, "Text/size came without the ids of"),
        ({"@changed/other/Word/size": np.zeros(2)}, "Word/size came with other of its changes; expected"),
        ({"@changed/counts/Network/1/m/w": np.zeros(2)}, "Network/1/m/w came; expected a field of rows"),
        ({"@changed/counts/size": np.zeros(2)}, "called 'size'; expected Type/field"),
        ({"@older/Word": np.array([1])}, "called '@older/Word'; expected @rows"),
    ],
)
def test_an_invalid_push_is_recognised(change: Arrays, says: str) -> None:
    with pytest.raises(ValueError) as error:
        decode({**WORDS, **TEXTS, **change})
    assert says in str(error.value)


def test_a_reply_brings_the_replica_alone() -> None:
    same(encode_replica(decode_replica({**WORDS, **NETWORK})), {**WORDS, **NETWORK})
    with pytest.raises(ValueError, match="local fields of Text"):
        decode_replica(TEXTS)
    with pytest.raises(ValueError, match="compressed steps"):
        decode_replica({"@int8/Network/1/model/weight": np.zeros(2, np.uint8)})


def test_changes_travel_beside_the_rows_of_a_push_and_of_a_reply() -> None:
    before = np.zeros((3, 500), np.int32)
    after = before.copy()
    after[:, 7] -= 300
    changed = ChangedElements.of(before, after)
    assert changed is not None
    rows = RowValues(np.array([4, 2, 9]), {"size": np.ones(3)})
    push = PushContent(ReplicaPart(rows={"Word": rows}), changes={"Word": {"count": changed}})
    again = decode(encode(push))
    same(dict(again.changes["Word"]["count"].parts), changed.parts)
    assert again.replica.rows["Word"].fields.keys() == {"size"}
    reply = ReplicaPart(
        {("Network", 1): NETWORK}, {"Word": rows}, changed={"Word": ChangedRows(rows.ids + 9, {"count": changed})}
    )
    brought = decode_replica(encode_replica(reply))
    same(encode_replica(brought), encode_replica(reply))
    assert brought.changed["Word"].ids.tolist() == [13, 11, 18]
    np.testing.assert_array_equal(brought.changed["Word"].changes["count"].added_to(before), after)
    assert bool(ReplicaPart(changed=reply.changed))


def test_a_reply_brings_what_is_short_in_upper_halves() -> None:
    key, name, other = ("Network", 1), "Network/1/model/weight", "Network/1/model/bias"
    values = np.array([1.0, 1.0 + 2**-20], np.float32)
    named = encode_replica(ReplicaPart({key: {name: values, other: values}}, short={name}))
    assert {n: t.dtype.name for n, t in named.items()} == {f"@bf16/{name}": "uint16", other: "float32"}
    brought = decode_replica(named).modules[key]
    np.testing.assert_array_equal(brought[name], np.ones(2, np.float32))
    np.testing.assert_array_equal(brought[other], values)
    with pytest.raises(ValueError, match="@bf16/Network/1/model/weight"):
        decode(named)  # a push brings none


def test_what_optimisers_gathered_travels_beside_the_replica() -> None:
    moments: Arrays = {
        "sum/Network/1/model/0.weight": np.ones((2, 3), np.uint16),
        "step/Network/1/model/0.weight": np.array(7, np.float32),
    }
    named = encode_replica(ReplicaPart({("Network", 1): NETWORK}, moments=moments))
    same(dict(decode_replica(named).moments), moments)
    same(dict(decode(named).replica.moments), moments)
    assert not ReplicaPart(moments=moments), "they are none of the replica"
    newer = ReplicaPart(moments={"step/Network/1/model/0.weight": np.array(9, np.float32)})
    assert decode_replica(named).updated(newer).moments["step/Network/1/model/0.weight"] == 9


def test_what_came_later_takes_the_place_of_what_came_before() -> None:
    part = decode_replica({**WORDS, **NETWORK})
    newer = ReplicaPart({("Network", 0): {}}, {"Word": RowValues(np.array([9]), {})})
    updated = part.updated(newer)
    assert updated.modules.keys() == {("Network", 0), ("Network", 1)}
    assert updated.rows["Word"].ids.tolist() == [9]
    assert part.updated(ReplicaPart()) == part


def test_local_fields_of_several_pushes_are_separate() -> None:
    first, second = decode(TEXTS).fields, {"Text": RowValues(np.array([7, 8]), {"total": np.array([3.0, 4.0])})}
    named = encode_patch([first, {}, second])
    back = decode_patch(named, 3)
    assert [{name: r.ids.tolist() for name, r in fields.items()} for fields in back] == [
        {"Text": [7]},
        {},
        {"Text": [7, 8]},
    ]
    assert back[2]["Text"].fields["total"].tolist() == [3.0, 4.0]


def test_a_sync_beside_tensors_that_are_no_push_is_still_read() -> None:
    sync = Sync("w1", push=Push(lease=1, term=1, sequence=1, base=0, upto=4, vertices=4))
    with pytest.raises(MalformedPush, match="called 'nonsense'") as error:
        BundleCodec().read(bundle.encode(to_json(sync), {"nonsense": np.zeros(2)}))
    assert error.value.sync == sync
    assert BundleCodec().read(bundle.encode(to_json(sync), {})) == (sync, NOTHING)
    with pytest.raises(ValueError, match="not a sync"):
        BundleCodec().read(bundle.encode({"what": "is this"}, {}))


@pytest.mark.parametrize("prefix", ["@rows/", "@ids/"])
@pytest.mark.parametrize("ids", [[1, 1], [3, 1, 3], [2, 0, 1, 0]])
def test_a_row_that_is_named_twice_is_refused(prefix: str, ids: list[int]) -> None:
    """One of its values would be lost silently."""
    tensors = {f"{prefix}Word": np.array(ids, np.int64), "Word/count": np.arange(len(ids))}
    with pytest.raises(ValueError, match="the ids of Word name a row twice; expected each once"):
        decode(tensors)


def test_rows_may_come_in_any_order() -> None:
    decode({"@rows/Word": np.array([2, 0, 1], np.int64), "Word/count": np.arange(3)})

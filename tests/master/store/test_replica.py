"""The master replica: values that a worker lacks, versions of changes, and bases of pushes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.aggregates import VertexState
from gridml.errors import DamagedError, LedgerError
from gridml.model.graph import Graph
from gridml.model.order import Touched, union, without
from gridml.protocol.push import RowValues, encode_replica
from master.store import replica as replica_file
from master.store.replica import Replica
from master.store.versions import Base, Versions, initial
from tests.support.effort import examples

torch = pytest.importorskip("torch")
Array = NDArray[np.generic]
COUNT = 5


def linear() -> object:
    return torch.nn.Linear(2, 1)


class Word(gridml.Vertex):
    count = gridml.array("int64")
    vector = gridml.array("float32", (2,))
    aggregate = gridml.by_name({"*/count": gridml.add()})


class Network(gridml.Vertex):
    model = gridml.module(linear)


class Line(gridml.Vertex):
    words = gridml.edge(Word)
    network = gridml.edge(Network)


def graph() -> Graph:
    g = gridml.Graph()
    g.add(Word, count=np.arange(COUNT), vector=np.zeros((COUNT, 2), np.float32))
    g.add(Network, 2)
    g.add(Line, 3, words=np.zeros((3, 2), np.int64), network=np.array([0, 1, 0]))
    return g


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    g = graph()
    made = Replica(g, Versions(tmp_path / "versions"))
    made.start(initial(g, 0))
    return made


def ids(*wanted: int) -> NDArray[np.int64]:
    return np.array(wanted, np.int64)


def row(replica: Replica, version: int, at: list[int], value: int) -> str:
    """Make a version in which some rows of Word changed."""
    replica.begin_version()
    new = {"count": np.full(len(at), value), "vector": np.full((len(at), 2), value, np.float32)}
    replica.put({}, {"Word": RowValues(ids(*at), new)}, version)
    return replica.commit_version(version)


def words(base: Base) -> Array:
    return base.rows("Word", np.arange(COUNT))["count"]


def sent_to(replica: Replica, touched: Touched, have: int, fresh: Touched) -> dict[str, Array]:
    return encode_replica(replica.outgoing(touched, have, fresh))


def test_the_first_version_is_what_the_graph_and_the_seed_say() -> None:
    first, again, other = (dict(initial(graph(), seed).tensors()) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first["Word/count"], np.arange(COUNT))
    assert first.keys() == {"Word/count", "Word/vector"} | {
        f"Network/{i}/model/{name}" for i in (0, 1) for name in ("weight", "bias")
    }
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["Network/0/model/weight"], other["Network/0/model/weight"])
    assert not np.array_equal(first["Network/0/model/weight"], first["Network/1/model/weight"])


def test_a_worker_that_has_nothing_gets_all_it_touches(replica: Replica) -> None:
    touched = {"Word": ids(1, 3), "Network": ids(1)}
    sent = sent_to(replica, touched, -1, {})
    assert sent.keys() == {"@rows/Word", "Word/count", "Word/vector", "Network/1/model/weight", "Network/1/model/bias"}
    np.testing.assert_array_equal(sent["@rows/Word"], [1, 3])
    np.testing.assert_array_equal(sent["Word/count"], [1, 3])


def test_a_worker_gets_what_changed_since_and_what_is_fresh_to_it(replica: Replica) -> None:
    row(replica, 1, [1], 100)
    row(replica, 2, [2, 3], 200)
    touched = {"Word": ids(0, 1, 2), "Network": ids(0)}
    sent = sent_to(replica, touched, 1, {})
    assert sent.keys() == {"@rows/Word", "Word/count", "Word/vector"}
    np.testing.assert_array_equal(sent["@rows/Word"], [2])
    sent = sent_to(replica, {"Word": ids(0, 1, 2, 4)}, 1, {"Word": ids(0, 4)})
    np.testing.assert_array_equal(sent["@rows/Word"], [0, 2, 4])
    np.testing.assert_array_equal(sent["Word/count"], [0, 200, 4])
    assert sent_to(replica, touched, 2, {}) == {}
    assert not replica.outgoing(touched, 2, {})


def test_a_worker_gets_the_tensors_of_a_module_that_changed_since(replica: Replica, tmp_path: Path) -> None:
    key, touched = ("Network", 0), {"Network": ids(0)}
    weight, bias = (f"Network/0/model/{name}" for name in ("weight", "bias"))
    for version, names in enumerate([[weight], [weight, bias], [bias], [weight], []], 1):
        replica.begin_version()
        tensors = {name: replica.state.modules[key].tensors[name] + 1 for name in names}
        replica.put({key: VertexState(tensors)}, {}, version)
        sha256 = replica.commit_version(version)
    assert replica.state.changed["Network"][0] == 5
    for have, names in enumerate([[weight, bias], [weight, bias], [weight, bias], [weight], [], []]):
        assert sent_to(replica, touched, have, {}).keys() == {*names}, have
    assert sent_to(replica, touched, 5, touched).keys() == {weight, bias}  # fresh: all of it
    again = Replica(graph(), Versions(tmp_path / "versions"))
    again.load(5, sha256)
    assert sent_to(again, touched, 4, {}).keys() == {weight, bias}  # another master cannot know the changes


def test_of_modules_that_a_worker_has_copies_of_only_what_changed_since_is_fresh(replica: Replica) -> None:
    weights = [f"Network/{index}/model/weight" for index in (0, 1)]
    for version in (1, 2, 3):
        replica.begin_version()
        keys = [("Network", index) for index in (0, 1)]
        changes = {k: {w: replica.state.modules[k].tensors[w] + 1} for k, w in zip(keys, weights, strict=True)}
        replica.put({key: VertexState(tensors) for key, tensors in changes.items()}, {}, version)
        replica.commit_version(version)
    touched = {"Network": ids(0, 1)}
    biases = {f"Network/{index}/model/bias" for index in (0, 1)}

    def sent(copied: Touched, copies: int) -> set[str]:
        return {*encode_replica(replica.outgoing(touched, 3, touched, copied, copies))}

    assert sent({}, -1) == {*weights, *biases}
    assert sent(touched, 2) == {*weights}
    assert sent(touched, 3) == set()
    assert sent({"Network": ids(1, 4)}, 3) == {weights[0], "Network/0/model/bias"}


def test_of_several_pushes_in_one_version_every_change_counts(replica: Replica) -> None:
    key, touched = ("Network", 0), {"Network": ids(0)}
    weight, bias = (f"Network/0/model/{name}" for name in ("weight", "bias"))
    replica.begin_version()
    for name in (weight, bias, weight):
        replica.put({key: VertexState({name: replica.state.modules[key].tensors[name] + 1})}, {}, 1)
    replica.commit_version(1)
    assert sent_to(replica, touched, 0, {}).keys() == {weight, bias}
    replica.begin_version()
    replica.put({key: VertexState({weight: replica.state.modules[key].tensors[weight] + 1})}, {}, 2)
    replica.commit_version(2)
    assert sent_to(replica, touched, 1, {}).keys() == {weight}


def test_buffers_of_rules_stay_with_the_master(replica: Replica) -> None:
    replica.state.modules["Network", 0].buffers["Network/0/model/weight"] = {"step": np.zeros((1, 2), np.float32)}
    sent = sent_to(replica, {"Network": ids(0)}, -1, {})
    assert sent.keys() == {"Network/0/model/weight", "Network/0/model/bias"}


def test_an_older_version_is_read_as_it_was(replica: Replica, tmp_path: Path) -> None:
    hashes = {version: row(replica, version, [version], 10 * version) for version in (1, 2, 3)}
    name = "Network/0/model/weight"
    weight = replica.state.modules["Network", 0].tensors[name]
    replica.begin_version()
    replica.put({("Network", 0): VertexState({name: weight + 1})}, {}, 4)
    hashes[4] = replica.commit_version(4)
    np.testing.assert_array_equal(words(replica.base(1, hashes[1])), [0, 10, 2, 3, 4])
    np.testing.assert_array_equal(replica.base(3, hashes[3]).modules["Network", 0].tensors[name], weight)
    np.testing.assert_array_equal(replica.base(4, hashes[4]).modules["Network", 0].tensors[name], weight + 1)


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, COUNT - 1), min_size=1, unique=True), min_size=1, max_size=3), max_size=8
    ),
    st.lists(st.integers(0, 9), min_size=COUNT, max_size=COUNT),
    st.integers(0, 8_000),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
def test_rows_are_read_each_as_of_its_own_version(
    tmp_path_factory: pytest.TempPathFactory, made: list[list[list[int]]], asked: list[int], room: int
) -> None:
    """`made`: the rows that each push of each version changed. `room`: bytes of overwritten rows that are kept."""
    g = graph()
    replica = Replica(g, Versions(tmp_path_factory.mktemp("versions")))
    replica.start(initial(g, 0))
    replica._overwritten.max_bytes = room
    kept = [words(replica.state)]
    for version, pushes in enumerate(made, 1):
        replica.begin_version()
        for number, at in enumerate(pushes):
            value = 100 * version + number
            new = {"count": np.full(len(at), value), "vector": np.full((len(at), 2), value, np.float32)}
            replica.put({}, {"Word": RowValues(ids(*at), new)}, version)
        replica.commit_version(version)
        kept.append(words(replica.state))
    versions = np.minimum(np.array(asked, np.int32), len(made)).astype(np.int32)
    at = ids(*reversed(range(COUNT)))
    values, unknown = replica.rows_as_of("Word", at, versions)
    known = np.delete(np.arange(COUNT), unknown)
    assert values["count"][known].tolist() == [kept[versions[i]][at[i]] for i in known]
    assert not len(unknown) or replica._overwritten.reach > versions.min()


def test_while_a_version_is_being_made_its_base_is_the_one_before(replica: Replica) -> None:
    first = row(replica, 1, [1], 10)
    replica.begin_version()
    replica.put({}, {"Word": RowValues(ids(1), {"count": np.array([20])})}, 2)
    np.testing.assert_array_equal(words(replica.base(1, first)), [0, 10, 2, 3, 4])


def test_another_master_goes_on_from_the_file(replica: Replica, tmp_path: Path) -> None:
    row(replica, 1, [1], 10)
    sha256 = row(replica, 2, [1, 2], 20)
    again = Replica(graph(), Versions(tmp_path / "versions"))
    again.load(2, sha256)
    assert again.version == 2
    read = dict(again.state.tensors())
    for name, tensor in replica.state.tensors():
        np.testing.assert_array_equal(read[name], tensor)
    np.testing.assert_array_equal(again.state.changed["Word"], [0, 2, 2, 0, 0])
    np.testing.assert_array_equal(again.state.changed["Network"], [0, 0])


def test_a_file_that_is_not_what_the_ledger_says_is_refused(replica: Replica, tmp_path: Path) -> None:
    sha256 = row(replica, 1, [1], 10)
    file = tmp_path / "versions" / "v00000001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(LedgerError, match="is damaged"):
        replica.load(1, sha256)
    replica.drop(1)
    assert not file.exists()
    with pytest.raises(LedgerError, match="version 1 of the replica, is gone"):
        replica.load(1, sha256)


rows = st.lists(st.integers(0, COUNT - 1), unique=True, max_size=COUNT)


@settings(
    max_examples=examples(100), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.lists(rows, max_size=6), rows, st.integers(0, 6))
def test_staleness_is_per_row_and_a_pull_brings_a_worker_up_to_date(
    tmp_path_factory: pytest.TempPathFactory, versions: list[list[int]], touched: list[int], have: int
) -> None:
    g = graph()
    replica = Replica(g, Versions(tmp_path_factory.mktemp("versions")))
    replica.start(initial(g, 0))
    have = min(have, len(versions))
    mine: Array = replica.state.arrays["Word"]["count"].copy()
    for version, changed in enumerate(versions, 1):
        row(replica, version, changed, 100 * version)
        if version == have:
            mine = replica.state.arrays["Word"]["count"].copy()
    for vertex in range(COUNT):
        last = max((v for v, changed in enumerate(versions, 1) if vertex in changed), default=0)
        assert replica.state.changed["Word"][vertex] == last
    sent = sent_to(replica, {"Word": ids(*sorted(touched))}, have, {})
    if sent:
        mine[sent["@rows/Word"]] = sent["Word/count"]
        assert set(sent["@rows/Word"]) <= set(touched)
    np.testing.assert_array_equal(mine[touched], replica.state.arrays["Word"]["count"][touched])


@given(st.lists(rows, max_size=4), rows)
def test_sets_of_touched_vertices(parts: list[list[int]], others: list[int]) -> None:
    whole = union({"Word": ids(*sorted(part))} for part in parts)
    assert set(whole.get("Word", ids())) == {vertex for part in parts for vertex in part}
    left = without(whole, {"Word": ids(*sorted(others))})
    assert set(left.get("Word", ids())) == set(whole.get("Word", ids())) - set(others)


def step(replica: Replica, version: int) -> str:
    """Make a version in which Network 0 has moved."""
    replica.begin_version()
    old = replica.state.modules["Network", 0]
    moved = {name: tensor + 1 for name, tensor in old.tensors.items()}
    replica.put({("Network", 0): VertexState(moved)}, {}, version)
    return replica.commit_version(version)


@pytest.fixture
def networks(tmp_path: Path) -> Replica:
    """A replica of modules alone."""
    g = Graph()
    g.add(Network, 2)
    made = Replica(g, Versions(tmp_path / "versions"))
    made.start(initial(g, 0))
    return made


@pytest.mark.parametrize(("fit", "few"), [(3, 3), (3, 4), (0, 1)], ids=["read", "mapped", "none fits"])
def test_older_versions_take_no_more_memory_than_they_may(
    networks: Replica, monkeypatch: pytest.MonkeyPatch, fit: int, few: int
) -> None:
    monkeypatch.setattr(replica_file, "MAX_BASES_BYTES", fit * networks.state.nbytes)
    monkeypatch.setattr(replica_file, "MIN_BASES", few)
    weights = {0: networks.state.modules["Network", 0].tensors["Network/0/model/weight"].copy()}
    digests: dict[int, str | None] = {0: None}
    for version in range(1, 8):
        digests[version] = step(networks, version)
        weights[version] = networks.state.modules["Network", 0].tensors["Network/0/model/weight"]
        assert [*networks._bases] == [*range(version)][-fit or version :]
    for version in (2, 0, 5, 7):
        base = networks.base(version, digests[version]).modules["Network", 0].tensors["Network/0/model/weight"]
        np.testing.assert_array_equal(base, weights[version])
        assert base.flags.writeable == (version == 7 or few <= fit or version in networks._bases)
        assert len(networks._bases) <= fit


@pytest.mark.parametrize("damage", ["flipped", "emptied", "gone"])
def test_a_mapped_version_that_is_damaged_is_not_read(
    networks: Replica, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(replica_file, "MAX_BASES_BYTES", 0)
    sha256 = step(networks, 1)
    step(networks, 2)
    path = networks._versions.path(1)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw if damage == "flipped" else b"")
    if damage == "gone":
        path.unlink()
    with pytest.raises(DamagedError, match="v00000001"):
        networks.base(1, sha256)


def test_a_tensor_that_stays_keeps_no_other_of_its_file(tmp_path: Path) -> None:
    """Each tensor of a version that was read has its own memory, also in `changed`. Otherwise a second replica would
    stay in memory as long as the run."""
    g = graph()
    versions = Versions(tmp_path / "versions")
    sha256 = versions.write(0, initial(g, 0))
    state = versions.read(0, sha256)
    for array in [*(tensor for _, tensor in state.tensors()), *state.changed.values()]:
        assert array.base is None and array.flags.owndata and array.flags.writeable


def test_an_older_version_takes_no_memory_where_the_next_group_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = graph()
    replica = Replica(g, Versions(tmp_path / "versions"))
    replica.start(initial(g, 0))
    nbytes = sum(tensor.nbytes for vertex in replica.state.modules.values() for tensor in vertex.tensors.values())
    monkeypatch.setattr(replica_file, "MAX_BASES_BYTES", nbytes)
    key = "Network", 0
    old = {name: weakref.ref(tensor) for name, tensor in replica.state.modules[key].tensors.items()}
    replica.begin_version()
    replica.put({key: VertexState({name: ref() + 1 for name, ref in old.items()})}, {}, 1)
    assert all(ref() is not None for ref in old.values())  # other pushes of the group may use it as their base
    replica.commit_version(1)
    gc.collect()
    assert all(ref() is None for ref in old.values())
    assert replica.base(0, None).modules[key].tensors.keys() == old.keys()

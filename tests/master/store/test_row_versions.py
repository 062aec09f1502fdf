"""Incremental version files, and bases on the memory of the newest version: both equal whole copies."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.aggregates import VertexState
from gridml.errors import DamagedError
from gridml.model.graph import Graph
from gridml.protocol import bundle
from gridml.protocol.push import RowValues
from master.store import replica as replica_file
from master.store import versions as versions_file
from master.store.replica import RECORD_BYTES, OverwrittenRows, Replica
from master.store.version_chain import Parent
from master.store.versions import Changes, ReplicaState, Versions
from tests.support.effort import examples

Array = NDArray[Any]
WORDS, TAGS = 600, 4
KEY, WEIGHT = ("Network", 0), "Network/0/model/weight"


class Word(gridml.Vertex):
    count = gridml.array("int64")
    vector = gridml.array("float32", (3,))
    aggregate = gridml.by_name({"*": gridml.add()})


class Tag(gridml.Vertex):
    """A type with so few rows that pushes change most of them."""

    known = gridml.array("bool")
    aggregate = gridml.by_name({"*": gridml.maximum()})


class Line(gridml.Vertex):
    words = gridml.edge(Word)
    tag = gridml.edge(Tag)


def graph() -> Graph:
    g = Graph()
    g.add(Word, count=np.arange(WORDS), vector=np.zeros((WORDS, 3), np.float32))
    g.add(Tag, known=np.zeros(TAGS, bool))
    g.add(Line, 1, words=np.zeros((1, 2), np.int64), tag=np.zeros(1, np.int64))
    return g


def first() -> ReplicaState:
    """A graph with rows and a module."""
    arrays = {
        "Word": {"count": np.arange(WORDS), "vector": np.zeros((WORDS, 3), np.float32)},
        "Tag": {"known": np.zeros(TAGS, bool)},
    }
    changed = {name: np.zeros(count, np.int64) for name, count in (("Word", WORDS), ("Tag", TAGS), ("Network", 1))}
    buffers = {WEIGHT: {"step": np.zeros(2, np.float32)}}
    return ReplicaState({KEY: VertexState({WEIGHT: np.zeros(2, np.float32)}, buffers)}, arrays, changed)


def whole(state: ReplicaState) -> dict[str, Array]:
    """Return copies of the whole content of a version."""
    changed = {f"changed {name}": versions for name, versions in state.changed.items()}
    return {name: np.array(tensor) for name, tensor in (*state.tensors(), *state.buffers(), *changed.items())}


def assert_same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        np.testing.assert_array_equal(tensor, other[name], name)


def ids(*wanted: int) -> NDArray[np.int64]:
    return np.array(wanted, np.int64)


@dataclass
class Run:
    """A replica and its facts in the ledger, with plain copies of all versions."""

    folder: Path
    max_bytes: int
    kept: dict[int, str] = field(default_factory=dict)
    plain: dict[int, dict[str, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin()
        self.keep(0, self.replica.start(first()))

    def begin(self) -> None:
        """Continue as another master."""
        self.versions = Versions(self.folder, durable=False)
        self.replica = Replica(graph(), self.versions)
        self.replica._overwritten = OverwrittenRows(self.max_bytes)

    def keep(self, version: int, sha256: str) -> None:
        self.kept[version], self.plain[version] = sha256, whole(self.replica.state)

    @property
    def newest(self) -> int:
        return max(self.kept)

    def put(self, words: list[int], tags: list[int], value: int, module: bool) -> None:
        count = len(words)
        vector = np.arange(3 * count, dtype=np.float32).reshape(count, 3) + value
        rows = {"Word": RowValues(ids(*words), {"count": np.arange(count) + value, "vector": vector})}
        rows["Tag"] = RowValues(ids(*tags), {"known": np.full(len(tags), value % 2 == 1)})
        weights = {KEY: VertexState({WEIGHT: np.full(2, value, np.float32)})} if module else {}
        self.replica.put(weights, {name: each for name, each in rows.items() if len(each.ids)}, self.making)

    @property
    def making(self) -> int:
        return self.replica.next_version

    def commit(self, pushes: list[tuple[list[int], list[int], int, bool]], credited: bool = True) -> None:
        """Merge a group of pushes. The version before it stays a base during the merge."""
        self.replica.begin_version()
        for push in pushes:
            self.put(*push)
            self.check_bases()
        version = self.making
        sha256 = self.replica.commit_version(version, 7 * version)
        assert self.versions.credited_in(version) == 7 * version
        if credited:
            self.keep(version, sha256)
        else:
            self.crash()

    def crash(self) -> None:
        """Continue after a crash: the ledger does not know the last file, whose number is not reused, and there is a
        partial file."""
        self.begin()
        (self.folder / ".v00000099.safetensors.123.tmp").write_bytes(b"half")
        self.replica.load(self.newest, self.kept[self.newest], self.versions.newest_file() + 1)

    def forget(self, which: int) -> None:
        if old := sorted(self.kept.keys() - {self.newest}):
            version = old[which % len(old)]
            del self.kept[version]
            self.replica.drop(version)

    def go_back(self, which: int) -> None:
        to = sorted(self.kept)[which % len(self.kept)]
        gone, newest = [version for version in self.kept if version > to], self.making
        sha256 = self.versions.copy(to, self.kept[to], newest, 7)
        for version in gone:
            del self.kept[version]
        self.replica.load(newest, sha256)
        expected = self.plain[to] | {
            name: np.full_like(values, newest) for name, values in self.plain[to].items() if name.startswith("changed")
        }
        assert_same(whole(self.replica.state), expected)
        self.keep(newest, sha256)
        for version in gone:
            self.replica.drop(version)

    def sweep(self) -> None:
        self.versions.sweep(self.kept)
        needed = set()
        for version in self.kept:
            at: int | None = version
            while at is not None:
                needed.add(f"v{at:08d}.safetensors")
                at = bundle.decode((self.folder / f"v{at:08d}.safetensors").read_bytes())[0].get("parent")
        assert {*os.listdir(self.folder)} == needed

    def check_bases(self) -> None:
        for version in self.kept:
            base, plain = self.replica.base(version, self.kept[version]), self.plain[version]
            wanted = ids(7, 0, 59, 7, *range(20, 40), WORDS - 1)
            rows = base.rows("Word", wanted)
            assert_same(rows, {name: plain[f"Word/{name}"][wanted] for name in ("count", "vector")})
            np.testing.assert_array_equal(base.rows("Tag", np.arange(TAGS))["known"], plain["Tag/known"])
            assert base.rows("Network", ids(0)) == {}
            np.testing.assert_array_equal(base.modules[KEY].tensors[WEIGHT], plain[WEIGHT])
            part = base.part({"Word": ids(3), "Network": ids(0)})
            np.testing.assert_array_equal(part.rows["Word"].fields["count"], plain["Word/count"][[3]])
            np.testing.assert_array_equal(part.modules[KEY][WEIGHT], plain[WEIGHT])
        assert self.replica._overwritten.nbytes <= self.max_bytes

    def check(self) -> None:
        for version, sha256 in self.kept.items():
            assert_same(whole(self.versions.read(version, sha256)), self.plain[version])
        self.check_bases()


words = st.lists(st.integers(0, 60), unique=True, max_size=8)
push = st.tuples(words, st.lists(st.integers(0, TAGS - 1), unique=True), st.integers(-9, 99), st.booleans())
group = st.lists(push, min_size=1, max_size=3)
steps = st.one_of(
    group,
    group,
    st.tuples(st.just("forget"), st.integers(0, 99)),
    st.tuples(st.just("crash"), group),
    st.tuples(st.sampled_from(["sweep", "begin"]), st.just(0)),
    st.tuples(st.just("go back"), st.integers(0, 99)),
)


@settings(
    max_examples=examples(60), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.lists(steps, max_size=14), st.sampled_from([0, 5_000, 1 << 20]), st.sampled_from([0, 2, 256]))
def test_versions_and_bases_are_what_whole_copies_are(
    tmp_path_factory: pytest.TempPathFactory, does: list[Any], max_bytes: int, longest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions_file, "MAX_CHAIN_FILES", longest)
        run = Run(tmp_path_factory.mktemp("run") / "versions", max_bytes)
        for step in does:
            if isinstance(step, list):
                run.commit(step)
                continue
            name, what = step
            if name == "forget":
                run.forget(what)
            elif name == "crash":
                run.commit(what, credited=False)
            elif name == "sweep":
                run.sweep()
            elif name == "begin":
                run.crash()
            else:
                run.go_back(what)
            run.check()
        run.check()
        run.sweep()
        run.begin()
        run.replica.load(run.newest, run.kept[run.newest])
        run.check()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose versions 1 to 4 each changed two rows."""
    made = Run(tmp_path / "versions", 1 << 20)
    for version in range(1, 5):
        made.commit([([version, 50], [], version, False)])
    return made


def there(run: Run) -> list[int]:
    return sorted(int(name[1:9]) for name in os.listdir(run.folder))


def parent_of(run: Run, version: int) -> int | None:
    parent = bundle.decode(run.versions.path(version).read_bytes())[0].get("parent")
    assert parent is None or isinstance(parent, int)
    return parent


def test_a_file_holds_the_rows_that_changed(run: Run) -> None:
    message, tensors = bundle.decode(run.versions.path(3).read_bytes())
    assert message == {"version": 3, "credited": 21, "parent": 2, "parent_sha256": run.kept[2]}
    assert tensors.keys() == {"@rows/Word", "Word/count", "Word/vector", "@rows/Tag", "Tag/known", WEIGHT} | {
        f"{WEIGHT}#step", "@changed/Network"
    }  # fmt: skip
    np.testing.assert_array_equal(tensors["@rows/Word"], [3, 50])
    np.testing.assert_array_equal(tensors["Word/count"], [3, 4])
    assert not len(tensors["@rows/Tag"])
    run.check()


def test_a_file_is_whole_where_most_rows_changed_and_a_type_is_where_all_did(run: Run) -> None:
    run.commit([([], [*range(TAGS)], 1, False)])
    tensors = bundle.decode(run.versions.path(5).read_bytes())[1]
    assert {"@rows/Word", "@changed/Tag"} <= tensors.keys() and "@rows/Tag" not in tensors
    run.commit([([*range(400)], [], 6, False)])
    assert [parent_of(run, version) for version in range(7)] == [None, 0, 1, 2, 3, 4, None]
    run.check()


@pytest.mark.parametrize("longest", [3, 256])
def test_files_since_a_whole_one_are_few_and_together_no_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(versions_file, "MAX_CHAIN_FILES", longest)
    versions, state = Versions(tmp_path / "versions"), first()
    sha256 = versions.write(0, state)
    for version in range(1, 60):
        changes = Changes(Parent(version - 1, sha256), {"Word": np.arange(version % 7)})
        sha256 = versions.write(version, state, 0, changes)
    files = [versions.path(version) for version in range(60)]
    wholes = [at for at, path in enumerate(files) if "parent" not in bundle.decode(path.read_bytes())[0]]
    assert 1 < len(wholes) <= 20
    sizes = [path.stat().st_size for path in files]
    for begin, end in pairwise(wholes):
        assert sum(sizes[begin + 1 : end]) <= sizes[begin]
        assert longest == 256 or end - begin == 3


def test_a_file_stays_as_long_as_a_version_stands_on_it(run: Run) -> None:
    for version in (0, 2, 1):
        run.forget(sorted(run.kept).index(version))
    assert there(run) == [0, 1, 2, 3, 4]
    run.forget(0)
    assert run.kept.keys() == {4} and there(run) == [0, 1, 2, 3, 4]
    run.check()
    run.commit([([*range(400)], [], 5, False)])  # whole
    run.forget(0)
    assert there(run) == [5]  # the others were removed with the last one based on them


def test_another_master_removes_what_only_an_earlier_one_kept_for_others(run: Run) -> None:
    for _ in range(4):
        run.forget(0)
    run.commit([([*range(400)], [], 5, False)])
    run.begin()
    run.replica.load(5, run.kept[5])
    run.forget(0)  # version 4: it does not know that the others are unwanted, and asks the ledger
    assert there(run) == [0, 1, 2, 3, 5]
    run.sweep()
    assert there(run) == [5]


@pytest.mark.parametrize("harm", ["flipped", "emptied", "gone"])
def test_damage_names_its_file_and_no_version_is_based_on_it(run: Run, harm: str) -> None:
    run.begin()
    run.replica.load(4, run.kept[4])
    path = run.versions.path(2)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw if harm == "flipped" else b"")
    if harm == "gone":
        path.unlink()
    named = re.escape(str(path))
    for version in (2, 3, 4):
        stands = "" if version == 2 else f".*version {version} stands on it"
        for read in (run.versions.read, run.versions.mapped):
            with pytest.raises(DamagedError, match=f"{named}.*(damaged|gone){stands}") as caught:
                read(version, run.kept[version])
            assert caught.value.file == path
    with pytest.raises(DamagedError, match=named):
        run.replica.base(3, run.kept[3])
    assert run.versions.has(4) == (harm == "flipped")
    for version in (2, 3, 4):
        del run.kept[version]
    run.commit([([1], [], 5, False)])
    run.commit([([1], [], 6, False)])
    assert [parent_of(run, version) for version in (5, 6)] == [None, 5]
    run.check()


def test_a_version_on_a_file_that_names_none_before_it_is_damaged(run: Run) -> None:
    for parent in ({"parent": 9, "parent_sha256": ""}, {"parent": 2}, {"parent": "2", "parent_sha256": ""}):
        run.versions.path(3).write_bytes(bundle.encode({"version": 3, **parent}, {}))
        with pytest.raises(DamagedError, match=r"v00000003.*expected one before 3"):
            run.versions.read(3, None)


def test_versions_that_were_written_whole_are_read_and_stood_on(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "versions")
    state = first()
    sha256 = versions.write(1, state)
    assert bundle.decode(versions.path(1).read_bytes())[0] == {"version": 1, "credited": 0}
    again = Replica(graph(), Versions(tmp_path / "versions"))
    again.load(1, sha256)
    again.put({}, {"Word": RowValues(ids(1), {"count": ids(7), "vector": np.ones((1, 3), np.float32)})}, 2)
    expected = whole(again.state)
    assert_same(whole(versions.read(2, again.commit_version(2))), expected)
    assert bundle.decode(versions.path(2).read_bytes())[0]["parent"] == 1


def test_a_disk_that_is_full_leaves_the_version_before(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    run.replica.begin_version()
    run.put([1], [], 9, False)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(bundle, "write_atomic", full)
        run.replica.commit_version(5)
    assert there(run) == [0, 1, 2, 3, 4] and run.replica.version == 4
    run.check()
    run.keep(5, run.replica.commit_version(5))
    run.check()


def test_rows_that_were_overwritten_take_no_more_memory_than_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_file, "MAX_BASES_BYTES", 0)  # of modules
    record = RECORD_BYTES + 2 * (8 + 8 + 12)
    run = Run(tmp_path / "versions", 2 * record)
    mapped: list[int] = []
    read = run.versions.mapped
    monkeypatch.setattr(run.versions, "mapped", lambda version, sha256: mapped.append(version) or read(version, sha256))
    for version in range(1, 7):
        run.commit([([version, 50], [], version, False)])
    overwritten = run.replica._overwritten
    assert overwritten.reach == 4 and overwritten.nbytes == 2 * record
    run.replica.begin_version()
    run.put([*range(WORDS)], [], 7, False)  # more than may be kept at all
    assert overwritten.reach == 7 and overwritten.nbytes == 0
    run.check_bases()
    assert {*mapped} == {*range(7)}

"""Changed fields of local vertices are applied with the credit: once, in order, and with BSP at the superstep's end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.errors import DamagedError
from gridml.model import ragged
from gridml.model.graph import Graph
from gridml.protocol.push import Fields, decode
from master.store.local_fields import LocalFields
from tests.support.effort import examples

COUNT = 6
Array = NDArray[np.generic]


class Topic(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    text = gridml.array("uint8", (4,))
    factor = gridml.array("float32", (2,), mutable=True)
    visits = gridml.array("int64", mutable=True)
    topic = gridml.edge(Topic)


def graph() -> Graph:
    g = gridml.Graph()
    topic = g.add(Topic, count=np.zeros(1, np.int64))
    g.add(
        Document,
        text=np.zeros((COUNT, 4), np.uint8),
        factor=np.zeros((COUNT, 2), np.float32),
        visits=np.zeros(COUNT, np.int64),
        topic=topic,
    )
    return g


def named(ids: list[int], visits: int, factor: float = 0.5) -> dict[str, Array]:
    """Return a push with the names of its message."""
    return {
        "@ids/Document": np.array(ids, np.int64),
        "Document/visits": np.full(len(ids), visits, np.int64),
        "Document/factor": np.full((len(ids), 2), factor, np.float32),
    }


def push(ids: list[int], visits: int, factor: float = 0.5) -> Fields:
    return decode(named(ids, visits, factor)).fields


def problem(fields: LocalFields, pushed: dict[str, Array], trained: list[int] | None = None) -> str | None:
    """Read and check a push; return the answer to the worker."""
    allowed = {"Document": np.array([1, 2, 3], np.int64)}
    ids = pushed.get("@ids/Document", np.empty(0, np.int64)) if trained is None else np.array(trained, np.int64)
    try:
        return fields.check(decode(pushed).fields, allowed, ("Document", ids))
    except ValueError as error:
        return str(error)


def shown(graph: Graph, folder: Path, *, bsp: bool = False) -> LocalFields:
    """Fields of a new run."""
    fields = LocalFields(graph, folder, bsp=bsp, durable=False)
    fields.show(None, [])
    return fields


def visits(graph: Graph) -> NDArray[np.int64]:
    return np.asarray(graph.tables["Document"].columns["visits"])


@pytest.fixture
def fields(tmp_path: Path) -> LocalFields:
    return shown(graph(), tmp_path / "fields")


def test_only_what_f_may_change_is_kept_in_files(tmp_path: Path) -> None:
    g = graph()
    text = g.tables["Document"].columns["text"]
    fields = shown(g, tmp_path / "fields")
    assert fields.any
    assert sorted(p.name for p in (tmp_path / "fields").iterdir()) == ["Document.factor.npy", "Document.visits.npy"]
    assert g.tables["Document"].columns["text"] is text


def test_a_graph_without_mutable_fields_needs_no_folder(tmp_path: Path) -> None:
    g = gridml.Graph()
    g.add(Topic, count=np.zeros(1, np.int64))
    assert not shown(g, tmp_path / "fields").any
    assert not (tmp_path / "fields").exists()


def test_a_good_push_passes(fields: LocalFields) -> None:
    assert problem(fields, named([1, 2], 1)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"@ids/Document": np.array([1, 4])}, "outside the lease"),
        ({"@ids/Document": np.array([1, COUNT + 1000])}, "outside the lease"),
        ({"@ids/Document": np.array([-1, 1])}, "outside the lease"),
        ({"@ids/Document": np.array([1.0, 2.0])}, "float64 (2,); expected int32 or int64 (n,)"),
        ({"@ids/Document": np.array([[1], [2]])}, "int64 (2, 1); expected int32 or int64 (n,)"),
        ({"@ids/Page": np.array([1])}, "outside the lease"),
        ({"Document/text": np.zeros((2, 4), np.uint8)}, "not a field that f may change"),
        ({"Document/nonsense": np.zeros(2)}, "not a field that f may change"),
        ({"nonsense": np.zeros(2)}, "called 'nonsense'; expected Type/field"),
        ({"Document/visits": np.zeros(3, np.int64)}, "int64 (3,); expected 2 rows"),
        ({"Document/factor": np.zeros((2, 3), np.float32)}, "does not fit"),
        ({"Document/visits": np.zeros(2, np.int32)}, "does not fit"),
        ({"Document/factor": np.full((2, 2), np.nan, np.float32)}, "not finite"),
        ({"Document/factor": np.full((2, 2), np.inf, np.float32)}, "not finite"),
    ],
)
def test_a_bad_push_is_explained(fields: LocalFields, change: dict[str, Array], says: str) -> None:
    message = problem(fields, {**named([1, 2], 1), **change}, trained=[1, 2])
    assert message is not None
    assert says in message


def test_fields_must_come_home_with_their_credit(fields: LocalFields) -> None:
    pushed = named([1, 2], 1)
    assert "other vertices than the 3" in str(problem(fields, pushed, trained=[1, 2, 3]))
    assert "other vertices than the 2" in str(problem(fields, pushed, trained=[2, 1]))
    del pushed["Document/factor"]
    assert problem(fields, pushed) == "Document/factor is missing"
    assert problem(fields, {}, trained=[1]) == "Document/factor is missing"


def test_a_missing_value_may_stay_missing(tmp_path: Path) -> None:
    g = graph()
    g.tables["Document"].columns["factor"][1] = np.nan
    fields = shown(g, tmp_path / "fields")
    assert problem(fields, named([1], 1, np.nan)) is None
    assert "not finite" in str(problem(fields, named([2], 1, np.nan)))


def test_a_credited_push_shows_at_once(tmp_path: Path) -> None:
    g = graph()
    fields = shown(g, tmp_path / "fields")
    fields.committed([push([1, 2], 3)])
    np.testing.assert_array_equal(visits(g), [0, 3, 3, 0, 0, 0])
    np.testing.assert_array_equal(np.load(tmp_path / "fields" / "Document.visits.npy"), [0, 3, 3, 0, 0, 0])


def test_in_a_superstep_all_see_the_values_it_began_with(tmp_path: Path) -> None:
    g = graph()
    fields = shown(g, tmp_path / "fields", bsp=True)
    pushes = [push([1, 2], 3), push([0], 4)]
    patch = (1, 0, fields.write_patch(1, pushes))
    fields.committed(pushes)
    np.testing.assert_array_equal(visits(g), np.zeros(COUNT))
    fields.show(None, [patch])  # the death of the master does not end a superstep
    np.testing.assert_array_equal(visits(g), np.zeros(COUNT))
    fields.show(fields.merge_patches(None, [patch]), [])
    np.testing.assert_array_equal(visits(g), [4, 3, 3, 0, 0, 0])


def test_a_phase_ends_when_every_vertex_has_come_home(tmp_path: Path) -> None:
    g = graph()
    fields = LocalFields(g, tmp_path / "fields", bsp=True, phases=True, durable=False)
    fields.show(None, [])
    rest, patches = [i for i in range(COUNT) if i not in (1, 2)], []
    for version, ids, number in ((1, [1, 2], 3), (2, rest, 4), (3, [1, 2], 5)):
        patches.append((version, 0, fields.write_patch(version, [push(ids, number)])))
        fields.committed([push(ids, number)])
        expected = np.where(np.isin(np.arange(COUNT), [1, 2]), 3, 4) * (version > 1)  # the second phase has not ended
        np.testing.assert_array_equal(visits(g), expected)
        fields.show(None, patches)  # nor does the death of the master end it
        np.testing.assert_array_equal(visits(g), expected)
    fields.show(None, patches[:1])  # as after a rollback into the first phase
    np.testing.assert_array_equal(visits(g), np.zeros(COUNT))
    fields.show(None, patches)
    fields.committed([push(rest, 6)])
    np.testing.assert_array_equal(visits(g), np.where(np.isin(np.arange(COUNT), [1, 2]), 5, 6))


Pushes = st.lists(st.tuples(st.lists(st.integers(0, COUNT - 1), min_size=1, unique=True), st.integers(1, 99)),
                  min_size=1, max_size=3)  # fmt: skip


@settings(
    max_examples=examples(100), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.lists(Pushes, min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 3), st.integers(0, 5))
def test_fields_are_what_the_ledger_names(
    tmp_path_factory: pytest.TempPathFactory,
    versions: list[list[tuple[list[int], int]]],
    died: int,
    times: int,
    settled: int,
) -> None:
    """A master that dies after showing `died` versions, some of them settled: each successor has the same fields."""
    folder = tmp_path_factory.mktemp("fields")
    expected = np.zeros(COUNT, np.int64)
    g = graph()
    fields = shown(g, folder)
    patches = []
    for version, group in enumerate(versions, 1):
        pushes = [push(ids, value) for ids, value in group]
        patches.append((version, 0, fields.write_patch(version, pushes)))
        if version <= died:
            fields.committed(pushes)
        for ids, value in group:
            expected[ids] = value
    base = fields.merge_patches(None, patches[:settled]) if patches[:settled] else None
    left = patches[settled:]
    for _ in range(times + 1):
        g = graph()
        again = LocalFields(g, folder, bsp=False, durable=False)
        again.show(base, left)
        np.testing.assert_array_equal(visits(g), expected)
        visits(g)[:] = -1  # any damage of the working copy
    again.sweep(base, left)
    assert len([*folder.glob("patch-*")]) == len(left)
    g = graph()
    again = LocalFields(g, folder, bsp=False, durable=False)
    last = again.merge_patches(base, left) if left else base
    again.show(last, [])
    again.sweep(last, [])
    assert len([*folder.iterdir()]) == 4  # a base and a working copy of each field
    np.testing.assert_array_equal(np.load(folder / "Document.visits.npy"), expected)


def test_a_working_copy_is_never_ahead_of_the_ledger(tmp_path: Path) -> None:
    """The working copy is never used on startup: its content, or its absence, has no effect."""
    g = graph()
    fields = shown(g, tmp_path / "fields")
    patch = (1, 0, fields.write_patch(1, [push([1, 2], 3)]))
    fields.committed([push([1, 2], 3)])
    fields.committed([push([4], 9)])  # of a commit that the ledger has lost
    file = tmp_path / "fields" / "Document.visits.npy"
    for damage in (lambda: None, lambda: os.truncate(file, 130), file.unlink):
        damage()
        g = graph()
        LocalFields(g, tmp_path / "fields", bsp=False).show(None, [patch])
        np.testing.assert_array_equal(visits(g), [0, 3, 3, 0, 0, 0])


def test_a_superseded_master_writes_into_an_unlinked_file(tmp_path: Path) -> None:
    old, new = graph(), graph()
    superseded = shown(old, tmp_path / "fields")
    shown(new, tmp_path / "fields")
    superseded.committed([push([1], 7)])
    np.testing.assert_array_equal(visits(old), [0, 7, 0, 0, 0, 0])
    np.testing.assert_array_equal(visits(new), np.zeros(COUNT))
    np.testing.assert_array_equal(np.load(tmp_path / "fields" / "Document.visits.npy"), np.zeros(COUNT))


def test_a_damaged_or_missing_patch_is_an_error(tmp_path: Path, fields: LocalFields) -> None:
    patch = (1, 0, fields.write_patch(1, [push([1], 1)]))
    (file,) = (tmp_path / "fields").glob("patch-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="is damaged"):
        fields.show(None, [patch])
    file.unlink()
    with pytest.raises(DamagedError, match="version 1, is gone") as caught:
        fields.merge_patches(None, [patch])
    assert caught.value.file == file


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-COUNT * 4] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flipped, "is damaged between vertices 2 and 3"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), "cannot be read"),
        (lambda file: os.truncate(file, 5), "cannot be read"),
        (lambda file: file.write_bytes(b""), "cannot be read"),
        (lambda file: np.save(file, np.zeros(COUNT + 1, np.int64)), r"got .*\(7,\).* bytes, expected int64 \(6,\)"),
        (lambda file: np.save(file, np.zeros(COUNT, np.int32)), r"got .*<i4.* bytes, expected int64 \(6,\)"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_damaged_base_is_an_error(
    tmp_path: Path, fields: LocalFields, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], says: str
) -> None:
    monkeypatch.setattr(ragged, "BLOCK_BYTES", 16)  # two vertices
    base = fields.merge_patches(None, [(1, 0, fields.write_patch(1, [push([1], 1)]))])
    file = tmp_path / "fields" / "Document.visits@00000001.npy"
    damage(file)
    with pytest.raises(DamagedError, match=says) as caught:
        fields.show(base, [])
    assert caught.value.file == file
    patch = (2, 1, fields.write_patch(2, [push([1], 1)]))
    with pytest.raises(DamagedError, match=says):
        fields.merge_patches(base, [patch])  # it does not become the next one


def test_a_type_without_vertices_is_no_trouble(tmp_path: Path) -> None:
    g = gridml.Graph()
    topic = g.add(Topic, count=np.zeros(1, np.int64))
    g.add(
        Document,
        text=np.zeros((0, 4), np.uint8),
        factor=np.zeros((0, 2), np.float32),
        visits=np.zeros(0, np.int64),
        topic=topic,
    )
    fields = shown(g, tmp_path / "fields")
    base = fields.merge_patches(None, [(1, 0, fields.write_patch(1, []))])
    fields.show(base, [])
    assert visits(g).shape == (0,)

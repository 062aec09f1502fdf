"""LocalFields of local vertices come home with the credit: once, in order, and for BSP when the superstep has ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from gridml.errors import LedgerError
from gridml.model.graph import Graph
from gridml.protocol.push import Fields, decode
from master.store.local_fields import LocalFields

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
    """A push by the names it travels under."""
    return {
        "@ids/Document": np.array(ids, np.int64),
        "Document/visits": np.full(len(ids), visits, np.int64),
        "Document/factor": np.full((len(ids), 2), factor, np.float32),
    }


def push(ids: list[int], visits: int, factor: float = 0.5) -> Fields:
    return decode(named(ids, visits, factor)).fields


def problem(fields: LocalFields, pushed: dict[str, Array], trained: list[int] | None = None) -> str | None:
    """The answer a worker gets, where a push is read and then checked."""
    allowed = {"Document": np.array([1, 2, 3], np.int64)}
    ids = pushed.get("@ids/Document", np.empty(0, np.int64)) if trained is None else np.array(trained, np.int64)
    try:
        return fields.check(decode(pushed).fields, allowed, ("Document", ids))
    except ValueError as error:
        return str(error)


@pytest.fixture
def fields(tmp_path: Path) -> LocalFields:
    return LocalFields(graph(), tmp_path / "fields", bsp=False)


def test_only_what_f_may_change_is_kept_in_files(tmp_path: Path) -> None:
    g = graph()
    text = g.tables["Document"].columns["text"]
    fields = LocalFields(g, tmp_path / "fields", bsp=False)
    assert fields.any
    assert sorted(p.name for p in (tmp_path / "fields").iterdir()) == ["Document.factor.npy", "Document.visits.npy"]
    assert g.tables["Document"].columns["text"] is text


def test_a_graph_without_mutable_fields_needs_no_folder(tmp_path: Path) -> None:
    g = gridml.Graph()
    g.add(Topic, count=np.zeros(1, np.int64))
    assert not LocalFields(g, tmp_path / "fields", bsp=False).any
    assert not (tmp_path / "fields").exists()


def test_a_good_push_passes(fields: LocalFields) -> None:
    assert problem(fields, named([1, 2], 1)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"@ids/Document": np.array([1, 4])}, "outside the lease"),
        ({"@ids/Document": np.array([1, COUNT + 1000])}, "outside the lease"),
        ({"@ids/Document": np.array([-1, 1])}, "outside the lease"),
        ({"@ids/Document": np.array([1.0, 2.0])}, "float64 (2,); expected int64 (n,)"),
        ({"@ids/Document": np.array([[1], [2]])}, "int64 (2, 1); expected int64 (n,)"),
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
    assert "others than the 3 vertices" in str(problem(fields, pushed, trained=[1, 2, 3]))
    assert "others than the 2 vertices" in str(problem(fields, pushed, trained=[2, 1]))
    del pushed["Document/factor"]
    assert problem(fields, pushed) == "Document/factor is missing"
    assert problem(fields, {}, trained=[1]) == "Document/factor is missing"


def test_a_missing_value_may_stay_missing(tmp_path: Path) -> None:
    g = graph()
    g.tables["Document"].columns["factor"][1] = np.nan
    fields = LocalFields(g, tmp_path / "fields", bsp=False)
    assert problem(fields, named([1], 1, np.nan)) is None
    assert "not finite" in str(problem(fields, named([2], 1, np.nan)))


def test_a_credited_push_shows_at_once(tmp_path: Path) -> None:
    g = graph()
    fields = LocalFields(g, tmp_path / "fields", bsp=False)
    fields.committed([push([1, 2], 3)])
    np.testing.assert_array_equal(g.tables["Document"].columns["visits"], [0, 3, 3, 0, 0, 0])
    np.testing.assert_array_equal(np.load(tmp_path / "fields" / "Document.visits.npy"), [0, 3, 3, 0, 0, 0])


def test_in_a_superstep_all_see_the_values_it_began_with(tmp_path: Path) -> None:
    g = graph()
    fields = LocalFields(g, tmp_path / "fields", bsp=True)
    pushes = [push([1, 2], 3), push([0], 4)]
    patch = (1, 0, fields.write_patch(1, pushes))
    fields.committed(pushes)
    fields.recover([patch])  # nor does the death of the master end a superstep
    np.testing.assert_array_equal(g.tables["Document"].columns["visits"], np.zeros(COUNT))
    fields.settle([patch])
    np.testing.assert_array_equal(g.tables["Document"].columns["visits"], [4, 3, 3, 0, 0, 0])


Pushes = st.lists(st.tuples(st.lists(st.integers(0, COUNT - 1), min_size=1, unique=True), st.integers(1, 99)),
                  min_size=1, max_size=3)  # fmt: skip


@settings(max_examples=100, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(Pushes, min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 3))
def test_patches_may_be_applied_again_and_again(
    tmp_path_factory: pytest.TempPathFactory, versions: list[list[tuple[list[int], int]]], died: int, times: int
) -> None:
    """The master dies after it has applied `died` patches; what recovers them all comes to the same fields."""
    folder = tmp_path_factory.mktemp("fields")
    expected = np.zeros(COUNT, np.int64)
    g = graph()
    fields = LocalFields(g, folder, bsp=False)
    patches = []
    for version, group in enumerate(versions, 1):
        pushes = [push(ids, visits) for ids, visits in group]
        patches.append((version, 0, fields.write_patch(version, pushes)))
        if version <= died:
            fields.committed(pushes)
        for ids, visits in group:
            expected[ids] = visits
    for _ in range(times + 1):
        g = graph()
        again = LocalFields(g, folder, bsp=False)
        again.recover(patches)
        np.testing.assert_array_equal(g.tables["Document"].columns["visits"], expected)
    again.settle(patches)
    again.remove(patches)
    assert not list(folder.glob("patch-*"))
    np.testing.assert_array_equal(np.load(folder / "Document.visits.npy"), expected)


def test_a_damaged_or_missing_patch_is_an_error(tmp_path: Path, fields: LocalFields) -> None:
    patch = (1, 0, fields.write_patch(1, [push([1], 1)]))
    (file,) = (tmp_path / "fields").glob("patch-*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(LedgerError, match="is damaged"):
        fields.recover([patch])
    file.unlink()
    with pytest.raises(LedgerError, match="version 1 cannot be read"):
        fields.recover([patch])


def test_files_of_another_graph_are_not_taken(tmp_path: Path, fields: LocalFields) -> None:
    np.save(tmp_path / "fields" / "Document.visits.npy", np.zeros(COUNT + 1, np.int64))
    with pytest.raises(LedgerError, match=r"holds int64 \(7,\), the graph int64 \(6,\)"):
        LocalFields(graph(), tmp_path / "fields", bsp=False)


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
    fields = LocalFields(g, tmp_path / "fields", bsp=False)
    fields.settle([])
    assert g.tables["Document"].columns["visits"].shape == (0,)

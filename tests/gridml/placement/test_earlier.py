"""An earlier placement in its folder is matched with a graph, or rejected with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement import folder
from gridml.placement.base import Placement
from gridml.placement.bipartite import Bipartite, Numbered, Numbers
from gridml.placement.folder import Names, before

PLACED = Placement(2, np.array([0, 1, 1], np.int32), np.array([1, 0], np.int32), "by hand")
GROWN = Bipartite.from_edges([0, 1, 2, 3], [0, 1, 2, 0])


def numbers(*given: int) -> Numbers:
    return np.array(given, np.int64)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder.save(tmp_path / "placed", PLACED, json.dumps({"parts": 2}))
    return tmp_path / "placed"


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    names = Names(numbers(-5, 3, 8), numbers(4, 6))
    folder.save(tmp_path / "placed", PLACED, json.dumps({"parts": 2}), names)
    return tmp_path / "placed"


def test_by_place_what_comes_after_is_new(root: Path) -> None:
    found = before(root, Numbered(GROWN))
    assert (found.parts, found.rows.tolist(), found.columns.tolist()) == (2, [0, 1, 1, -1], [1, 0, -1])
    assert found.rows.dtype == found.columns.dtype == np.int32


def test_by_number_what_has_another_is_new(numbered: Path) -> None:
    found = before(numbered, Numbered(GROWN, numbers(-7, -5, 8, 9), numbers(5, 6, 7)))
    assert (found.rows.tolist(), found.columns.tolist()) == ([-1, 0, 1, -1], [-1, 0, -1])
    assert sorted(path.name for path in numbered.iterdir()) == [
        "quality.json",
        "u_ids.npy",
        "u_part.npy",
        "v_ids.npy",
        "v_part.npy",
    ]


def test_a_placement_that_is_replaced_leaves_no_numbers_behind(numbered: Path) -> None:
    folder.save(numbered, PLACED, json.dumps({"parts": 2}))
    assert before(numbered, Numbered(GROWN)).rows.tolist() == [0, 1, 1, -1]


def test_another_graph_is_refused(root: Path, tmp_path: Path) -> None:
    for graph, says in (
        (Bipartite.from_edges([0, 1], [0, 1]), "3 rows were placed before, and the graph has 2"),
        (Bipartite.from_edges([0, 1, 2], [0, 0, 0]), "2 columns were placed before, and the graph has 1"),
    ):
        with pytest.raises(UsageError, match=f"placed is not of this graph: {says}; expected the same graph"):
            before(root, Numbered(graph))
    with pytest.raises(UsageError, match=r"by their places, and the graph by their numbers; expected .* same format"):
        before(root, Numbered(GROWN, numbers(1, 2, 3, 4), numbers(1, 2, 3)))
    with pytest.raises(UsageError, match=r"nowhere/quality\.json cannot be read: No such file or directory\. Name"):
        before(tmp_path / "nowhere", Numbered(GROWN))


def test_numbers_of_another_graph_are_refused(numbered: Path) -> None:
    with pytest.raises(UsageError, match=r"by their numbers, and the graph by their places; expected .* same format"):
        before(numbered, Numbered(GROWN))
    with pytest.raises(UsageError, match="they have no row, or no column, in common"):
        before(numbered, Numbered(GROWN, numbers(0, 1, 2, 4), numbers(4, 6, 7)))


def test_rows_that_were_made_are_not_known_again(tmp_path: Path) -> None:
    folder.save(tmp_path / "placed", PLACED, json.dumps({"parts": 2}), Names(made=GROWN))
    with pytest.raises(UsageError, match="made of a general graph's edges or cliques: they cannot be matched"):
        before(tmp_path / "placed", Numbered(GROWN))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("u_part.npy", b"", "u_part.npy is damaged"),
        ("v_part.npy", b"PK", "v_part.npy is damaged"),
        ("u_part.npy", np.zeros(3), r"u_part.npy is damaged: got float64 \(3,\), not a row of whole numbers"),
        ("u_part.npy", np.zeros((3, 1), np.int32), r"got int32 \(3, 1\), not a row"),
        ("u_part.npy", np.array([0, 1, 2], np.int32), "it has parts from 0 to 2 where there are 2"),
        ("v_part.npy", np.array([-1, 1], np.int32), "it has parts from -1 to 1 where"),
        ("quality.json", b"{", "quality.json is damaged: JSONDecodeError"),
        ("quality.json", b"[]", "quality.json is damaged: TypeError"),
        ("quality.json", b'{"parts": 0}', "quality.json is damaged: it says 0 parts of 3 rows"),
        ("quality.json", b'{"parts": 4}', "it says 4 parts of 3 rows"),
        ("quality.json", b'{"parts": "2"}', "it says '2' parts"),
        ("u_ids.npy", np.array([1, 1, 2]), "u_ids.npy is damaged: its numbers do not ascend"),
        ("u_ids.npy", np.array([1, 2]), r"u_ids.npy is damaged: \(2,\) numbers of \(3,\) parts"),
        ("u_part.npy", None, "u_part.npy cannot be read: No such file"),
    ],
)
def test_a_damaged_file_is_named(
    numbered: Path, name: str, content: bytes | np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None, says: str
) -> None:
    (numbered / name).unlink()
    if isinstance(content, bytes):
        (numbered / name).write_bytes(content)
    elif content is not None:
        np.save(numbered / name, content)
    with pytest.raises(UsageError, match=says):
        before(numbered, Numbered(GROWN, numbers(-5, 3, 8, 9), numbers(4, 5, 6)))


@pytest.mark.parametrize("name", ["u_part.npy", "v_part.npy", "u_ids.npy", "quality.json"])
def test_no_truncated_file_is_taken(numbered: Path, name: str) -> None:
    whole = (numbered / name).read_bytes()
    given = Numbered(GROWN, numbers(-5, 3, 8, 9), numbers(4, 5, 6))
    assert before(numbered, given).parts == 2
    for end in range(0, len(whole) - (1 if name.endswith(".npy") else 2)):  # the last byte of JSON is a line's end
        (numbered / name).write_bytes(whole[:end])
        with pytest.raises(UsageError, match="damaged"):
            before(numbered, given)
    (numbered / name).write_bytes(whole + b"x")
    with pytest.raises(UsageError, match="damaged"):
        before(numbered, given)

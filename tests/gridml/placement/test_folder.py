"""A placement's folder is written completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gridml.errors import StorageError, UsageError
from gridml.placement import folder
from gridml.placement.base import Placement

PLACED = Placement(2, np.array([0, 1, 1], np.int32), np.array([1, 0], np.int32), "by hand")
OTHER = Placement(1, np.zeros(3, np.int32), np.zeros(2, np.int32), "by hand")


def held(root: Path) -> tuple[list[int], list[int], object]:
    assert sorted(path.name for path in root.iterdir()) == ["quality.json", "u_part.npy", "v_part.npy"]
    rows, columns = np.load(root / "u_part.npy"), np.load(root / "v_part.npy")
    assert rows.dtype == columns.dtype == np.int32
    return rows.tolist(), columns.tolist(), json.loads((root / "quality.json").read_text())


def test_a_placement_is_kept_and_replaced(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "placed"
    folder.save(root, PLACED, '{"a": 1}')
    assert held(root) == ([0, 1, 1], [1, 0], {"a": 1})
    folder.save(root, OTHER, "{}")
    assert held(root) == ([0, 0, 0], [0, 0], {})
    assert [path.name for path in root.parent.iterdir()] == ["placed"]


def test_an_empty_folder_and_a_link_to_one_will_do(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    folder.save(tmp_path / "link", PLACED, "{}")
    assert (tmp_path / "link").is_symlink() and held(tmp_path / "there")[2] == {}


def test_what_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    folder.save(tmp_path / "placed", PLACED, "{}")
    (tmp_path / "placed" / "notes.txt").write_text("mine")
    for check in (folder.check_free, lambda root: folder.save(root, OTHER, "{}")):
        with pytest.raises(
            UsageError, match=r"placed holds notes\.txt already; expected an empty folder.*another --out"
        ):
            check(tmp_path / "placed")
        with pytest.raises(UsageError, match=r"notes\.txt is a file; expected a folder, or a new name"):
            check(tmp_path / "placed" / "notes.txt")
    assert (tmp_path / "placed" / "notes.txt").read_text() == "mine"
    assert np.load(tmp_path / "placed" / "u_part.npy").tolist() == [0, 1, 1]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    folder.save(tmp_path / "placed", PLACED, "{}")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"placed cannot be written: .*No space left.* another --out"):
        folder.save(tmp_path / "placed", OTHER, "{}")
    assert held(tmp_path / "placed")[0] == [0, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["placed"]


def test_a_folder_that_cannot_be_moved_to_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise PermissionError(1, "Operation not permitted")
        return real(path, target)

    folder.save(tmp_path / "placed", PLACED, "{}")
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(StorageError, match="Operation not permitted"):
        folder.save(tmp_path / "placed", OTHER, "{}")
    assert held(tmp_path / "placed")[0] == [0, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["placed"]

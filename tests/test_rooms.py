"""Rooms are ordered (`ORDER` in benchmarks/source.py): a module imports only from its room or below."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.source import ORDER, Arrow, Tree, circles

TREE = Tree(Path(__file__).resolve().parent.parent)


def tree_of(root: Path, files: Mapping[str, str]) -> Tree:
    for file, source in files.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return Tree(root)


def test_every_room_is_there_and_every_module_is_in_one() -> None:
    # The packages without folders are rooms too; all others have files.
    assert {TREE.room_of(module) for module in TREE.modules} == set(ORDER)


def test_no_import_points_up() -> None:
    assert [str(arrow) for arrow in TREE.arrows_up()] == []


def test_no_rooms_need_each_other() -> None:
    assert TREE.room_circles() == []


# The rules above must be able to fail.


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("gridml/protocol/messages.py", "gridml.model.vertex"),
        ("master/store/ledger.py", "master.views.report"),
        ("master/store/ledger.py", "master.backends.local"),
        ("master/state/spans.py", "master.store.ledger"),
        ("master/leases/leases.py", "master.run"),
        ("master/backends/condor/backend.py", "master.backends.registry"),
    ],
)
def test_an_import_that_points_up_is_seen(importer: str, imported: str, tmp_path: Path) -> None:
    target = imported.replace(".", "/") + ".py"
    tree = tree_of(tmp_path, {importer: f"def late():\n    import {imported}\n", target: ""})
    assert tree.arrows_up() == [Arrow(importer.removesuffix(".py").replace("/", "."), imported)]


def test_an_import_of_the_same_room_or_a_lower_one_is_let_through(tmp_path: Path) -> None:
    files = {
        "gridml/errors.py": "",
        "master/state/jobs.py": "",
        "master/store/reader.py": "import gridml.errors",
        "master/store/ledger.py": "from master.store import reader\nfrom master.state.jobs import State",
    }
    tree = tree_of(tmp_path, files)
    assert len(tree.arrows) == 3
    assert tree.arrows_up() == []


def test_a_file_outside_every_room_is_an_error(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {"master/attic/old.py": "", "elsewhere/file.py": ""})
    assert tree.room_of("master.attic.old") == "master"  # a folder without a line belongs to its parent
    assert "elsewhere.file" not in tree.modules


@pytest.mark.parametrize(
    ("needs", "components"),
    [
        ({}, []),
        ({"a": {"b"}, "b": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"a"}}, []),
        (
            {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}},
            [["b", "c"], ["d", "e"]],
        ),
    ],
)
def test_circles_are_the_strongly_connected_components(needs: dict[str, set[str]], components: list[list[str]]) -> None:
    assert circles(needs) == components

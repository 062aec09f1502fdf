"""Plug-ins by name, from gridml, from other packages, or from this process; each is found once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.errors import RunError, UsageError
from gridml.registry import Registry

GROUP = "gridml.of_these_tests"


@pytest.fixture
def shapes() -> Registry[object]:
    return Registry("shape", GROUP, {"dict": "builtins:dict", "broken": "no_such_module:Thing"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that installs a package with the given entry points for this process."""

    def install(entry_points: str) -> None:
        info = tmp_path / "shapes-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_a_thing_is_made_once(shapes: Registry[object]) -> None:
    assert shapes.find("dict") == {}
    assert shapes.find("dict") is shapes.find("dict")


def test_what_is_not_there_is_refused_with_what_is(shapes: Registry[object]) -> None:
    with pytest.raises(UsageError, match=r"no shape 'cube'; expected one of dict, broken"):
        shapes.find("cube")


def test_what_cannot_be_imported_shows_when_it_is_asked_for(shapes: Registry[object]) -> None:
    assert list(shapes.all()) == ["dict"]
    with pytest.raises(RunError, match=r"the shape 'broken' \(no_such_module:Thing\) cannot be imported"):
        shapes.find("broken")


def test_this_process_adds_one(shapes: Registry[object]) -> None:
    shapes.register("list", list)
    assert shapes.names() == ["dict", "broken", "list"]
    assert shapes.find("list") == []
    with pytest.raises(UsageError, match="a shape 'list' already"):
        shapes.register("list", list)


def test_another_package_adds_one(shapes: Registry[object], package: Callable[[str], None]) -> None:
    package("set = builtins:set")
    assert shapes.find("set") == set()
    assert shapes.names() == ["dict", "broken", "set"]


def test_no_package_takes_a_name_of_gridmls_own(shapes: Registry[object], package: Callable[[str], None]) -> None:
    package("dict = builtins:set")
    assert shapes.names() == ["dict", "broken"]
    assert shapes.find("dict") == {}


@pytest.mark.parametrize(
    "reference", ["json:JSONDecodeError", "gridml.errors:nothing", "no_such_module:x", "json:loads"]
)
def test_whatever_is_wrong_with_one_is_no_trouble_to_the_others(reference: str) -> None:
    registry: Registry[object] = Registry("thing", "gridml.no_such_group", {"bad": reference, "good": "builtins:dict"})
    assert registry.all() == {"good": {}}
    with pytest.raises(RunError, match="'bad'"):
        registry.find("bad")


def test_an_entry_point_may_name_extras() -> None:
    assert Registry("thing", "gridml.no_such_group", {"one": "builtins:dict [some, extras]"}).find("one") == {}

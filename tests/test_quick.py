"""The selection of tests by `make quick`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TESTS_OF = runpy.run_path(str(Path(__file__).with_name("quick.py")))["tests_of"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("master/leases/leases.py", "master/leases/test_leases.py"),
        ("master/leases/overtaking.py", "master/leases"),
        ("master/leases/below/deep.py", "master/leases"),
        ("tests/master/leases/test_leases.py", "master/leases/test_leases.py"),
        ("tests/master/leases/conftest.py", "master/leases/test_leases.py"),
        ("docs/guide.md", None),
        ("setup.py", None),
    ],
)
def test_a_file_has_the_tests_that_lie_as_it_does(changed: str, expected: str | None, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "master" / "leases").mkdir(parents=True)
    (tests / "master" / "leases" / "test_leases.py").touch()
    always = {tests / "test_rooms.py", tests / "test_backends_are_named_nowhere.py"}
    assert set(TESTS_OF([changed], tmp_path)) == always | ({tests / expected} if expected else set())

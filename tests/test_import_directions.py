"""The five packages are deployment units, so their import directions are part of docs/architecture.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.source import Tree, imports

ROOT = Path(__file__).resolve().parent.parent

# Package: the others it may import.
ALLOWED: dict[str, frozenset[str]] = {
    "gridml": frozenset(),
    "chunk_model": frozenset(),
    "master": frozenset({"gridml", "chunk_model"}),
    "remote": frozenset({"gridml"}),
    "ami": frozenset({"gridml", "remote"}),
}
# The command line and the equivalent calls may import all five packages, and none may import these, except that
# `gridml` imports a call on first use.
WIRING = ("gridml.__main__", "gridml.cli", "gridml.api")

TREE = Tree(ROOT)
MODULES = [module for module in TREE.modules if module.partition(".")[0] in ALLOWED]


def wires(name: str) -> bool:
    return any(name == wiring or name.startswith(f"{wiring}.") for wiring in WIRING)


def forbidden(module: str, imported: set[str]) -> set[str]:
    """Return the names of `imported` that the directions do not allow `module` to import."""
    if wires(module):
        return set()
    package = module.partition(".")[0]
    others = ALLOWED.keys() - ALLOWED[package] - {package}
    wrong = {name for name in imported if name.partition(".")[0] in others}
    offered = {name for name in imported if module == "gridml" and name.startswith("gridml.api.")}
    return (wrong | {name for name in imported if wires(name)}) - offered


def test_every_package_is_looked_at() -> None:
    assert {name.partition(".")[0] for name in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_its_package_may(module: str) -> None:
    wrong = forbidden(module, TREE.imports_of(module))
    assert not wrong, f"{module} imports {sorted(wrong)}, which the import directions forbid"


def test_no_product_module_imports_tests_or_benchmarks() -> None:
    outside = {"tests", "benchmarks", "examples"}
    wrong = {(m, name) for m in MODULES for name in TREE.imports_of(m) if name.partition(".")[0] in outside}
    assert not wrong


def test_no_imports_go_round_in_circles() -> None:
    assert TREE.module_circles() == [], "these modules import each other"


def test_tests_hold_no_init_file() -> None:
    # tests/master/__init__.py would make `import master` find the tests instead of the product.
    assert sorted((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.real
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "remote.worker",
            {"boto3", "paramiko", "htcondor2", "classad2", "pooch", "scipy", "matplotlib", "master", "chunk_model"},
        ),
        (
            "gridml",
            {"boto3", "paramiko", "htcondor2", "pooch", "matplotlib", "master", "remote", "ami", "chunk_model"},
        ),
    ],
)
def test_an_import_stays_light(module: str, absent: set[str], tmp_path: Path) -> None:
    """Import in a fresh interpreter, outside of the tree, with warnings as errors; it must print nothing."""
    program = f"import sys, {module}; sys.stderr.write(' '.join(sorted({absent!r} & sys.modules.keys())))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# The rules above must be able to fail.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gridml.engine.engine", "import master"),
        ("gridml.engine.engine", "from remote.worker import main"),
        ("gridml.engine.engine", "def late():\n    import master.store.ledger as ledger"),
        ("gridml.engine.engine", "from importlib import import_module\nimport_module('master.ledger')"),
        ("gridml.engine.engine", "from .. import cli"),
        ("gridml.placement.parsa", "from ..cli import main"),
        ("gridml.engine.engine", "from gridml.cli import prepare"),
        ("gridml.engine.engine", "from gridml.api.run_calls import run"),
        ("master.planning.plan", "from gridml.api.handle import load"),
        ("gridml", "from gridml.cli.start import plan"),
        ("gridml", "import master.run"),
        ("master.planning.plan", "from gridml.cli.start import plan"),
        ("chunk_model.goodput", "import gridml.errors"),
        ("remote.worker", "import numpy, chunk_model"),
        ("remote.worker", "from master import merge"),
        ("master.run", "import remote.worker"),
        ("master.run", "from gridml import cli"),
        ("ami.boot", "import master"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert forbidden(module, set(imports(source, module, is_package=False)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gridml.cli.main", "import master, remote, ami, chunk_model"),
        ("gridml.cli.main", "from gridml.cli import prepare"),
        ("gridml.cli.start", "from master.planning.plan import plan"),
        ("gridml.cli.start", "from gridml.api.run_calls import run_settings"),
        ("gridml", "from gridml.api.run_calls import run"),
        ("gridml.engine.engine", "import remote_control, mastery\nfrom .chunk import master"),
        ("master.run", "import chunk_model, gridml.errors"),
        ("ami.boot", "from remote import worker"),
    ],
)
def test_an_allowed_import_is_let_through(module: str, source: str) -> None:
    assert not forbidden(module, set(imports(source, module, is_package=False)))


def test_only_imports_made_at_import_time_count_for_circles() -> None:
    source = (
        "import a\nif TYPE_CHECKING:\n    import b\nelse:\n    import c\ndef f():\n    import d\nclass G:\n    import e"
    )
    assert set(imports(source, "m", is_package=False, at_import_only=True)) == {"a", "c", "e"}
    assert set(imports(source, "m", is_package=False)) == {"a", "b", "c", "d", "e"}

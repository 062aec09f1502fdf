"""The recipes of CONTRIBUTING: each is followed in a copy of the tree, with only the listed files, and works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gridml", "chunk_model", "master", "remote")


@dataclass(frozen=True)
class Recipe:
    """A recipe. `new` are files by path; in the file `touched`, the first text of `change` becomes the second. `proof`
    is a program that exits with 0 if the addition works."""

    name: str
    new: dict[str, str]
    touched: str
    change: tuple[str, str]
    proof: str

    @property
    def files(self) -> int:
        return len({*self.new, self.touched})


RECIPES = [
    Recipe(
        "aggregate",
        {
            "gridml/aggregates/newest.py": """
from dataclasses import dataclass
import numpy as np
from gridml.aggregates.base import Aggregate, TensorMerge

@dataclass(frozen=True)
class Newest(Aggregate):
    def merge(self, t: TensorMerge) -> float:
        with np.errstate(all="ignore"):
            t.out[...] = t.value if np.array_equal(t.replica, t.base) else t.base + t.scale * (t.replica - t.base)
            total = float(((t.replica.astype("f8") - t.base) ** 2).sum())
        finite = np.isfinite(t.replica).all() and np.isfinite(t.out).all()
        return min(total, float(np.finfo("f8").max)) if finite else float("inf")
"""
        },
        "gridml/__init__.py",
        (
            "from gridml.model.batch import",
            "from gridml.aggregates.newest import Newest as newest\nfrom gridml.model.batch import",
        ),
        """
import gridml
from gridml.testing.aggregates import check_aggregate
check_aggregate(gridml.newest())
""",
    ),
    Recipe(
        "carrier",
        {
            "gridml/carriers/loft.py": """
from gridml.carriers.directory import DirectoryMailbox
from gridml.carriers.registry import Carrier, Connection

class Loft(Carrier):
    name = "loft"
    remote = False

    def connect(self, job, directory):
        return Connection(lambda: [job], lambda worker: DirectoryMailbox(directory, worker))
"""
        },
        "gridml/carriers/registry.py",
        ('        "chirp":', '        "loft": "gridml.carriers.loft:Loft",\n        "chirp":'),
        """
import contextlib, tempfile
from pathlib import Path
from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.registry import CARRIERS
from gridml.testing.carriers import CarrierPair, check_carrier, damage_in_files
loft = CARRIERS.find("loft")

@contextlib.contextmanager
def make():
    root = Path(tempfile.mkdtemp())
    yield CarrierPair(DirectoryMailboxes(root), loft.connect("w1", root).open, damage_in_files(root))

check_carrier(make)
""",
    ),
    Recipe(
        "back end",
        {
            "master/backends/bench.py": """
from dataclasses import dataclass
from master.state.jobs import BackendOptions
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.ports.plugin import BackendPlugin, Command
from master.backends.script import Steady

@dataclass(frozen=True)
class BenchOptions(BackendOptions):
    pass

class BenchPlugin(BackendPlugin):
    name = "bench"
    options = BenchOptions
    command = Command("bench", "Train on a bench.", "gridml bench mnist.py", 2, "Workers at once.")

    def make(self, settings, directory):
        return Local(worker_command(settings, directory), Steady(2), directory.logs)
"""
        },
        "master/backends/registry.py",
        ('        "local":', '        "bench": "master.backends.bench:BenchPlugin",\n        "local":'),
        """
from gridml.cli.main import main
main(["bench", "program.py", "--run-dir", "run"])
""",
    ),
    Recipe(
        "family of lifetimes",
        {},
        "chunk_model/families.py",
        (
            "FORMULAS: dict[str, type[Family]] = {family.NAME: family for family in (Normal,",
            """@dataclass(frozen=True)
class HalfNormal(Normal):
    NAME: ClassVar[str] = "halfnormal"


FORMULAS: dict[str, type[Family]] = {family.NAME: family for family in (HalfNormal, Normal,""",
        ),
        """
from chunk_model.parse import parse
assert 0 < parse("halfnormal(1m,30s)").mean() < 120
""",
    ),
    Recipe(
        "command",
        {
            "gridml/cli/greet.py": """
from gridml.cli.arguments import RunArgument
import typer

def greet(run: RunArgument) -> None:
    \\"\\"\\"Greet a run.

    Example: gridml greet runs/mnist
    \\"\\"\\"
    typer.echo(f"good morning, {run}")
""".replace('\\"', '"')
        },
        "gridml/cli/main.py",
        (
            "    return app",
            "    from gridml.cli import greet\n    add(app, greet.greet)\n    return app",
        ),
        """
from gridml.cli.main import main
main(["greet", "runs/mnist"])
""",
    ),
    Recipe(
        "option",
        {},
        "master/store/settings.py",
        (
            "    options: BackendOptions = field",
            '    mood: str = option("fair", "How it feels.", FAILURES)\n    options: BackendOptions = field',
        ),
        """
import contextlib, inspect, io, gridml
from gridml.cli.main import main
from master.backends.registry import read_settings
from pathlib import Path
for command in ("run", "resume", "simulate"):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([command, "--help"])
    assert "--mood" in out.getvalue() and "How it feels." in out.getvalue(), out.getvalue()
    assert "mood" in inspect.signature(getattr(gridml, command)).parameters
run = gridml.simulate(vertices=100, workers=1, mood="good", run_dir="run")
assert run.settings()["mood"] == "good"
""",
    ),
    Recipe(
        "event",
        {},
        "master/run.py",
        (
            '            parts.events.record("finished", facts, text)',
            '            parts.events.record("cheered", {"times": 3}, "well done")\n'
            '            parts.events.record("finished", facts, text)',
        ),
        """
import gridml
heard = []
gridml.run("program.py", run_dir="run", workers=1, on_event=heard.append)
assert [(event.text, event.facts) for event in heard if event.topic == "cheered"] == [("well done", {"times": 3})]
assert "well done" in open("run/events.log").read()
""",
    ),
    Recipe(
        "decision",
        {
            "master/fleet/policy.py": """
def worth_cheering(credited: int) -> tuple[bool, str]:
    return credited > 0, f"{credited} vertices are credited"
"""
        },
        "master/run.py",
        (
            '            parts.events.record("finished", facts, text)',
            "            from master.fleet.policy import worth_cheering\n"
            "            is_worth, reason = worth_cheering(7)\n"
            '            parts.events.record("cheered" if is_worth else "hushed", {}, reason)\n'
            '            parts.events.record("finished", facts, text)',
        ),
        """
import gridml
heard = []
gridml.run("program.py", run_dir="run", workers=1, on_event=heard.append)
assert [event.text for event in heard if event.topic == "cheered"] == ["7 vertices are credited"]
""",
    ),
    Recipe(
        "view",
        {
            "master/views/brief.py": """
from master.views.report import Report

def brief(report: Report) -> str:
    return f"{report.credited} vertices"
"""
        },
        "gridml/cli/manage.py",
        (
            "    figures = report(run)\n",
            "    figures = report(run)\n    from master.views.brief import brief\n    typer.echo(brief(figures))\n",
        ),
        """
import contextlib, io
from gridml.cli.main import main
with contextlib.suppress(SystemExit):
    main(["run", "program.py", "--run-dir", "run"])
out = io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    main(["report", "run"])
assert " vertices" in out.getvalue().splitlines()[0], out.getvalue()
""",
    ),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:  # with compiled files, because processes of tests write none
        shutil.copytree(ROOT / package, tmp_path / package)
    shutil.copy(ROOT / "tests" / "programs" / "counts.py", tmp_path / "program.py")
    return tmp_path


@pytest.mark.real
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_newcomer_can_add_it_as_contributing_says(recipe: Recipe, copy: Path) -> None:
    assert recipe.files <= 2
    for path, source in recipe.new.items():
        (copy / path).write_text(source)
    text, (before, after) = (copy / recipe.touched).read_text(), recipe.change
    assert text.count(before) >= 1, f"{recipe.touched} has another shape now: mend the recipe, and CONTRIBUTING"
    (copy / recipe.touched).write_text(text.replace(before, after, 1))
    done = subprocess.run(
        [sys.executable, "-c", recipe.proof],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_contributing_names_the_files_of_each_recipe() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows: Callable[[str], list[str]] = lambda name: re.findall(rf"^\| an? {name} +\|.*$", text, re.MULTILINE)  # noqa: E731
    for recipe in RECIPES:
        (row,) = rows(recipe.name)
        assert recipe.touched in row, row

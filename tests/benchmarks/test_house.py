"""The counts of benchmarks/house.py, on a small tree with known counts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.house import House, attributes_of, functions_of, notes, rows, statement_lines

FILES = {
    "master/run.py": """
import master.store.ledger

class Run:
    def __init__(self, a, b, *, c, d, e, f, g):
        self._by_worker: dict[str, int] = {}  # by worker: what it said
        self.names: list[str] = []

    @staticmethod
    def cut(start, stop):
        return start
""",
    "master/store/ledger.py": '''
"""Condor is named here."""
class Ledger:
    leases: dict[int, LeaseState]

    def late(self):
        import master.run
''',
    "master/backends/condor/backend.py": "HTCondor = 1\n",
    "master/backends/registry.py": "from master.backends.condor import backend\n",
    "gridml/cli/start.py": """
def simulate(a: Annotated[int, typer.Option()], b, c, d, e, f, g, h):
    def inner(x):
        return x
""",
    "tests/test_one.py": "def test(): ...\n",
}


@pytest.fixture
def house(tmp_path: Path) -> House:
    for file, text in FILES.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(tmp_path)


def test_counts(house: House) -> None:
    counts = {row["count"]: row.get("now") for row in rows({"now": house})}
    assert counts["`master/`: files"] == 1
    assert counts["`master/`: lines"] == len(FILES["master/run.py"].splitlines())
    assert counts["lines of its tests"] == 1
    assert counts["imports that point up"] == 1
    assert counts["circles of rooms"] == 1
    assert counts["circles of modules"] == 0  # one of the two imports is in a function
    assert counts["classes that keep something by lease"] == 1
    assert counts["classes that keep something by worker"] == 1
    assert counts["files for every back end that name one"] == 1
    assert counts["most arguments of a function"] == 7
    assert counts["functions with more than 6 arguments"] == 1
    assert counts["longest command, lines"] == 3


def test_names_stand_behind_the_counts(house: House) -> None:
    text = "\n".join(notes({"now": house}))
    assert "now, by lease: Ledger (leases)" in text
    assert "now, by worker: Run (_by_worker)" in text
    assert "now, imports that point up: master.store.ledger -> master.run" in text
    assert "now, files that name a back end: master/store/ledger.py" in text
    assert "master.run.Run.__init__ (7)" in text


def test_two_checkouts_stand_in_one_table(house: House) -> None:
    first = rows({"before": house, "now": house})[0]
    assert list(first) == ["count", "before", "now"]
    assert first["before"] == first["now"]


def test_arguments_exclude_self_and_commands_are_recognised() -> None:
    source = "class A:\n    def f(self, a, *args, b, **kw): ...\n    @staticmethod\n    def s(a): ...\n"
    source += "def c(x: Annotated[int, 1]): ...\n"
    functions = {f.place: (f.arguments, f.command) for f in functions_of("m", ast.parse(source))}
    assert functions == {"m.A.f": (4, False), "m.A.s": (1, False), "m.c": (1, True)}


def test_compiled_loops_may_have_long_signatures(house: House) -> None:
    signature = "(a, b, c, d, e, f, g, h): ..."
    (house.root / "master" / "loops.py").write_text(f"@compiled\ndef fast{signature}\ndef slow{signature}\n")
    again = House(house.root)
    assert [function.place for function in again.long_signatures()] == ["master.loops.slow"]
    assert {row["count"]: row.get("now") for row in rows({"now": again})}["functions with more than 6 arguments"] == 3


def test_statements_are_counted_without_what_surrounds_them() -> None:
    lines = ['"""What it is."""', "", "import json", "# why", "values = [", "    1,", "]", "def f():"]
    lines += ['    """Say."""', '    return """a', 'b"""']
    text = "\n".join(lines)
    assert statement_lines(text) == 5  # two of the list, and three of f


def test_attributes_are_containers_of_the_instances() -> None:
    source = "class A:\n    x: dict[int, str]\n    n: int = 0\n"
    source += "    def f(self):\n        self.y = set()\n        z: list = []\n"
    assert [attribute.name for attribute in attributes_of("m", source)] == ["x", "y"]

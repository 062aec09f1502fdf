"""Count the structure of the source: the measures that a refactoring should improve.

    python -m benchmarks.house [--against CHECKOUT]

It counts this checkout and, in a column before it, another one: files and lines by room, imports that point up and in
circles, names that occur twice, classes that keep state by lease or by worker, generic files that name a back end, the
longest function and the functions with the most arguments. A test enforces `CEILINGS`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.source import PACKAGES, Tree
from benchmarks.table import Cell, write

ROOT = Path(__file__).resolve().parent.parent
MAX_ARGUMENTS = 6
MAX_HAND_WRITTEN = 7
"""Most arguments of a function that is not compiled. A compiled loop takes arrays one by one."""
# Files that may name HTCondor: its own folder (formerly its own files), and its registration.
_OWN_FILES = re.compile(r"(^|/)condor|^pools/|^gridml/cli\.py$|^master/backends/(registry|choose)\.py$")
_CONTAINERS = re.compile(r"\b(dict|defaultdict|Counter|deque|list|set|SortedList|SortedDict|SortedSet)\b")
_BY = re.compile(r"\bby (lease|worker)\b")
_RECORDS = {"lease": re.compile(r"\bLeaseState\b"), "worker": re.compile(r"\bWorkerRecord\b")}


SHARED_NAMES = frozenset({"__init__", "__main__", "base", "registry", "options", "errors"})
"""Module names that many folders use by convention."""

CEILINGS: dict[str, float] = {
    "files": 345,
    "public class names that stand twice": 0,
    "module names that repeat": 2,
    "circles of folders": 0,
    "lines of statements in it": 44_700,
    "lines of option plumbing": 3_099,
    f"hand-written functions with more than {MAX_HAND_WRITTEN} arguments": 4,
}
"""Upper bounds. A change that exceeds one must explain it in CHANGELOG. `MIN_MEDIAN_LINES` is a lower bound."""
MIN_MEDIAN_LINES = 150

PLUMBING = re.compile(
    r"(gridml|master/state)/options\.py|gridml/cli\.py|gridml/(commands|cli)/\w+\.py|gridml/(calls|api)/(beginning|run_calls|simulating|resuming|options)\.py"
    r"|master/store/(settings|identity|spec)\.py|master/(planning|simulation)/options\.py|master/backends/(condor|ec2)/options\.py"
    r"|master/backends/(local|simulated)_plugin\.py"
)
"""The files that declare, read and pass on options: the commands, the calls that begin runs, the settings, the identity
of a resumed run, simulations, and the options of back ends."""

INDEXES = {
    "Heartbeats._looks": "a heap of the next check of each worker",
    "ReplicaHeld.replicas_of": "a worker's record names leases' records",
    "WriteBatch._changed": "records whose rows the open transaction has not written",
}
"""Containers that are only indexes of records, with no state of their own."""


@dataclass(frozen=True)
class Function:
    """A function or method."""

    place: str  #: its dotted name
    lines: int
    arguments: int  #: without `self`
    command: bool  #: typer calls it
    compiled: bool = False  #: numba compiles it


@dataclass(frozen=True)
class Attribute:
    """A container that instances of a class have: a field, or assigned to `self`."""

    module: str
    owner: str
    name: str
    made_of: str  #: its annotation or, without one, its first value
    comment: str  #: on its line

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


class House:
    """The counts of a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.tree = Tree(self.root)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The source of every product module."""
        return {module: path.read_text(encoding="utf-8") for module, path in self.tree.modules.items()}

    def files_by_room(self) -> Counter[str]:
        return Counter(str(path.relative_to(self.root).parent) for path in self.tree.modules.values())

    def lines_by_room(self) -> Counter[str]:
        lines: Counter[str] = Counter()
        for module, path in self.tree.modules.items():
            lines[str(path.relative_to(self.root).parent)] += len(self.texts[module].splitlines())
        return lines

    def sizes(self) -> list[int]:
        """The lines of each file."""
        return [len(text.splitlines()) for text in self.texts.values()]

    def repeated_classes(self) -> list[str]:
        """Public class names that several modules define at the top level."""
        names = Counter(
            node.name
            for text in self.texts.values()
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sorted(name for name, number in names.items() if number > 1)

    def repeated_modules(self) -> list[str]:
        """Module names that occur in several folders, except SHARED_NAMES."""
        names = Counter(path.stem for path in self.tree.modules.values())
        return sorted(name for name, number in names.items() if number > 1 and name not in SHARED_NAMES)

    def code_lines(self, *, testing: bool) -> int:
        """Lines of statements of the product: of the code that ships for tests, or of all other code."""
        return sum(
            statement_lines(text)
            for module, text in self.texts.items()
            if (module.startswith("gridml.testing") or module == "master.backends.contract") == testing
        )

    def lines_below(self, folder: str) -> int:
        return sum(
            len(path.read_text(encoding="utf-8").splitlines()) for path in sorted((self.root / folder).rglob("*.py"))
        )

    def naming_a_back_end(self) -> list[str]:
        """The generic files that name HTCondor, in code or in prose."""
        files = {module: str(path.relative_to(self.root)) for module, path in self.tree.modules.items()}
        return [
            file
            for module, file in files.items()
            if "condor" in self.texts[module].lower() and not _OWN_FILES.search(file)
        ]

    def plumbing(self) -> list[str]:
        """The sources of the files that declare, read and pass on options."""
        files = {module: str(path.relative_to(self.root)) for module, path in self.tree.modules.items()}
        return [self.texts[module] for module, file in files.items() if PLUMBING.fullmatch(file)]

    @cached_property
    def functions(self) -> list[Function]:
        return [function for module, text in self.texts.items() for function in functions_of(module, ast.parse(text))]

    def long_signatures(self) -> list[Function]:
        """The functions with more than MAX_HAND_WRITTEN arguments, except commands and compiled loops."""
        return [f for f in self.functions if f.arguments > MAX_HAND_WRITTEN and not (f.command or f.compiled)]

    @cached_property
    def attributes(self) -> list[Attribute]:
        """The attributes of the master, without back ends, views and simulation, which are independent of it."""
        excluded = ("master.backends", "master.views", "master.simulation", "master.planning")
        return [
            attribute
            for module, text in self.texts.items()
            if module.startswith("master.") and not module.startswith(excluded)
            for attribute in attributes_of(module, text)
        ]

    def keepers(self, of: str) -> dict[str, list[str]]:
        """The classes that keep state by `of`, lease or worker, and the attributes that hold it."""
        keepers: dict[str, list[str]] = {}
        for attribute in self.attributes:
            match = _BY.search(attribute.comment)
            says_so = match is not None and match[1] == of
            if str(attribute) in INDEXES:
                continue
            if says_so or _RECORDS[of].search(attribute.made_of):
                keepers.setdefault(attribute.owner, []).append(attribute.name)
        return keepers


def statement_lines(text: str) -> int:
    """Count the lines of a module that hold more of a statement than a closing bracket, without imports and
    docstrings."""
    lines = {
        number for number, line in enumerate(text.splitlines(), 1) if line.strip(" ()[]{},") and line.lstrip()[0] != "#"
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def functions_of(module: str, tree: ast.Module) -> Iterator[Function]:
    """Yield all functions of a module, including nested ones."""

    def walk(node: ast.AST, name: str, in_class: bool) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                place = f"{name}.{child.name}"
                yield _measured(place, child, in_class)
                yield from walk(child, place, False)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{name}.{child.name}", True)
            else:
                yield from walk(child, name, in_class)

    return walk(tree, module, False)


def _measured(place: str, node: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> Function:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
    command = any(each.annotation is not None and "Annotated[" in ast.unparse(each.annotation) for each in arguments)
    compiled = any(ast.unparse(decorator) == "compiled" for decorator in node.decorator_list)
    bound = in_class and not static
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return Function(place, lines, len(arguments) - bound, command, compiled)


def attributes_of(module: str, text: str) -> Iterator[Attribute]:
    """Yield the containers that instances of a module's classes have, without duplicates."""
    lines = text.splitlines()
    for owner in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
        seen = set()
        for node in ast.walk(owner):
            if isinstance(node, ast.AnnAssign):
                target, made_of = ast.unparse(node.target), ast.unparse(node.annotation)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, made_of = ast.unparse(node.targets[0]), ast.unparse(node.value)
            else:
                continue
            name = target.removeprefix("self.")
            own = name != target or node in owner.body
            if own and name.isidentifier() and name not in seen and _CONTAINERS.search(made_of):
                seen.add(name)
                yield Attribute(module, owner.name, name, made_of, lines[node.lineno - 1].partition("#")[2])


def counts(house: House) -> dict[str, float]:
    """Return the counts that are bounded by CEILINGS and MIN_MEDIAN_LINES."""
    return {
        "files": len(house.sizes()),
        "lines of the median file": median(house.sizes()),
        "public class names that stand twice": len(house.repeated_classes()),
        "module names that repeat": len(house.repeated_modules()),
        "circles of folders": len(house.tree.folder_circles()),
        "lines of statements in it": house.code_lines(testing=False),
        "lines of option plumbing": sum(len(text.splitlines()) for text in house.plumbing()),
        f"hand-written functions with more than {MAX_HAND_WRITTEN} arguments": len(house.long_signatures()),
    }


def rows(houses: dict[str, House]) -> list[dict[str, Cell]]:
    """Return a line for each count, with a column for each checkout."""
    table: dict[str, dict[str, Cell]] = {}

    def count(what: str, column: str, value: Cell) -> None:
        table.setdefault(what, {})[column] = value

    rooms = sorted({room for house in houses.values() for room in house.files_by_room()})
    for room in rooms:
        for column, house in houses.items():
            files = house.files_by_room()[room]
            count(f"`{room}/`: files", column, files or None)
            count(f"`{room}/`: lines", column, house.lines_by_room()[room] or None)
    for column, house in houses.items():
        product = [house.lines_below(package) for package in PACKAGES]
        functions = [function for function in house.functions if not function.command]
        for what, number in counts(house).items():
            count(what, column, number)
        count("most files in one room", column, max(house.files_by_room().values()))
        count("lines of the product", column, sum(product))
        count("lines of statements in checks and doubles that it ships", column, house.code_lines(testing=True) or None)
        count("lines of its tests", column, house.lines_below("tests"))
        count("lines of its benchmarks", column, house.lines_below("benchmarks"))
        count("lines of statements in these, texts too", column, sum(map(statement_lines, house.plumbing())))
        count("imports that point up", column, len(house.tree.arrows_up()))
        count("circles of rooms", column, len(house.tree.room_circles()))
        count("circles of modules", column, len(house.tree.module_circles()))
        count("classes that keep something by lease", column, len(house.keepers("lease")))
        count("classes that keep something by worker", column, len(house.keepers("worker")))
        count("files for every back end that name one", column, len(house.naming_a_back_end()))
        count("longest function, lines", column, max(function.lines for function in functions))
        count("longest command, lines", column, max(f.lines for f in house.functions if f.command))
        count("most arguments of a function", column, max(function.arguments for function in functions))
        many = sum(function.arguments > MAX_ARGUMENTS for function in functions)
        count(f"functions with more than {MAX_ARGUMENTS} arguments", column, many)
    return [{"count": what, **values} for what, values in table.items()]


def notes(houses: dict[str, House]) -> list[str]:
    """Return notes that list the counted names."""
    lines = [
        "a room is a folder; an import points up when it names a module of a higher room (`ORDER` in "
        "`benchmarks/source.py`); commands are functions that typer calls, and are counted separately",
        "what the master keeps by lease or by worker: containers of its classes, without back ends, views, simulation",
        "lines of statements: no blank lines, comments, docstrings, imports or lone closing brackets; the checks and "
        "doubles that ship (`gridml/testing/`, `master/backends/contract.py`) were part of the tests before",
        "option plumbing: all lines of the files that describe, read and pass on options (`PLUMBING` in "
        "`benchmarks/house.py`)",
        "of what the master keeps, only indexes, which hold no fact of their own: "
        + "; ".join(f"{name}, {what}" for name, what in INDEXES.items()),
    ]
    for column, house in houses.items():
        for of in ("lease", "worker"):
            kept = [f"{owner} ({', '.join(names)})" for owner, names in sorted(house.keepers(of).items())]
            lines.append(f"{column}, by {of}: {', '.join(kept) or 'none'}")
        circles = "; ".join(" = ".join(circle) for circle in house.tree.room_circles())
        lines.append(f"{column}, rooms in circles: {circles or 'none'}")
        circles = "; ".join(", ".join(circle) for circle in house.tree.folder_circles())
        lines.append(f"{column}, folders in circles: {circles or 'none'}")
        lines.append(f"{column}, classes that stand twice: {', '.join(house.repeated_classes()) or 'none'}")
        lines.append(f"{column}, module names that repeat: {', '.join(house.repeated_modules()) or 'none'}")
        lines.append(f"{column}, imports that point up: {', '.join(map(str, house.tree.arrows_up())) or 'none'}")
        lines.append(f"{column}, files that name a back end: {', '.join(house.naming_a_back_end()) or 'none'}")
        functions = [function for function in house.functions if not function.command]
        longest = max(functions, key=lambda function: function.lines)
        lines.append(f"{column}, longest function: {longest.place}")
        many = sorted((f for f in functions if f.arguments > MAX_ARGUMENTS), key=lambda f: (-f.arguments, f.place))
        named = ", ".join(f"{function.place} ({function.arguments})" for function in many)
        lines.append(f"{column}, more than {MAX_ARGUMENTS} arguments: {named or 'none'}")
    return lines


def main(
    against: Annotated[Path | None, typer.Option(help="Another checkout, for a column before this one.")] = None,
    smallest: Annotated[bool, typer.Option("--smallest", help="Keep nothing: for tests.")] = False,
) -> None:
    """Count this checkout, and another."""
    houses = {"now": House(ROOT)} if against is None else {"before": House(against), "now": House(ROOT)}
    write("house", "The source tree: rooms, import directions, registers, sizes", rows(houses), notes(houses))


if __name__ == "__main__":
    typer.run(main)

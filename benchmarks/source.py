"""A checkout as source: its modules, their imports, and their rooms. The checkout is never imported."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("chunk_model", "gridml", "remote", "ami", "master", "pools")

ORDER = (
    "chunk_model",
    "gridml/errors.py",
    "gridml/registry.py",
    "gridml/dataclass_json.py",
    "gridml/aggregates",
    "gridml/protocol",
    "gridml/model",
    "gridml/codegen",
    "gridml/caching",
    "gridml/engine",
    "gridml/datasets",
    "gridml/placement",
    "gridml/carriers",
    "gridml/testing",
    "remote",
    "ami",
    "master/caching",
    "master/state",
    "master/store",
    "master/evaluation",
    "master/ports",
    "master/telemetry",
    "master/leases",
    "master/trust",
    "master/sync",
    "master/sftp",
    "master/backends/condor",
    "master/backends/ec2",
    "master/backends",
    "master/fleet",
    "master/placing",
    "master",
    "master/planning",
    "master/views",
    "master/simulation",
    "gridml/api",
    "gridml/cli",
    "gridml",
    "pools",
)
"""Rooms from low to high; a room imports only those below it. A room is a folder, without its files and folders that
have a line of their own."""

LEAVES = ("gridml/errors.py", "gridml/registry.py", "gridml/dataclass_json.py")
"""Files that are rooms by themselves: all others import them, and they import none."""

WITHIN = ("gridml/placement",)
"""Folders that are one room with those in them."""


@dataclass(frozen=True)
class Arrow:
    """Module `importer` imports module `imported`."""

    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}"


@dataclass(frozen=True)
class Tree:
    """The checkout in folder `root`."""

    root: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """The file of every product module, by dotted name."""
        return {
            ".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__"): path
            for package in PACKAGES
            for path in sorted((self.root / package).rglob("*.py"))
        }

    def imports_of(self, module: str, *, at_import_only: bool = False) -> set[str]:
        """Return the dotted names that a module imports; see `imports`."""
        path = self.modules[module]
        source = path.read_text(encoding="utf-8")
        return set(imports(source, module, is_package=path.name == "__init__.py", at_import_only=at_import_only))

    def defining(self, name: str) -> str | None:
        """Return the product module that an imported name is, or is defined in; None: it is from elsewhere."""
        return next((module for module in (name, name.rpartition(".")[0]) if module in self.modules), None)

    def needs(self, *, at_import_only: bool = False) -> dict[str, set[str]]:
        """Return the product modules that each module imports."""
        return {
            module: {
                imported
                for name in self.imports_of(module, at_import_only=at_import_only)
                if (imported := self.defining(name)) and imported != module
            }
            for module in self.modules
        }

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """All imports between product modules, sorted, including those in functions and for type checking."""
        return tuple(
            Arrow(importer, imported)
            for importer, all_of in sorted(self.needs().items())
            for imported in sorted(all_of)
        )

    def room_of(self, module: str) -> str:
        """Return the room of a module. Raises ValueError if ORDER has none."""
        path = self.modules[module].relative_to(self.root)
        room = next((str(place) for place in (path, *path.parents) if str(place) in ORDER), None)
        if room is None:
            raise ValueError(f"{path} is in no room; expected one of ORDER in {__name__}: add a line for it there.")
        return room

    def arrows_up(self) -> list[Arrow]:
        """Return the imports of modules in a higher room."""
        rank = {module: ORDER.index(self.room_of(module)) for module in self.modules}
        return [arrow for arrow in self.arrows if rank[arrow.imported] > rank[arrow.importer]]

    def module_circles(self) -> list[list[str]]:
        """Return the sets of modules that import each other at import."""
        return circles(self.needs(at_import_only=True))

    def folder_circles(self) -> list[list[str]]:
        """Return the sets of folders that import each other. A file of LEAVES counts as a folder, and folders below one
        of WITHIN belong to it."""
        folders = {
            module: str(file if (file := path.relative_to(self.root)).as_posix() in LEAVES else self._folder(file))
            for module, path in self.modules.items()
        }
        needs: dict[str, set[str]] = {folder: set() for folder in folders.values()}
        for importer, imported in self.needs().items():
            needs[folders[importer]] |= {folders[each] for each in imported} - {folders[importer]}
        return circles(needs)

    @staticmethod
    def _folder(file: Path) -> Path:
        return next((Path(whole) for whole in WITHIN if Path(whole) in file.parents), file.parent)

    def room_circles(self) -> list[list[str]]:
        """Return the sets of rooms that import each other."""
        needs: dict[str, set[str]] = {self.room_of(module): set() for module in self.modules}
        for arrow in self.arrows:
            needs[self.room_of(arrow.importer)].add(self.room_of(arrow.imported))
        return circles(needs)


def imports(source: str, module: str, *, is_package: bool, at_import_only: bool = False) -> Iterator[str]:
    """Yield the dotted names that a module imports; `from a import b` gives `a.b`, which is a module or a name in one.

    With `at_import_only`, the imports in functions and TYPE_CHECKING blocks are left out.
    """

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if at_import_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if at_import_only and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from (node for other in child.orelse for node in [other, *walk(other)])
                continue
            yield child
            yield from walk(child)

    package = module if is_package else module.rpartition(".")[0]
    for node in walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (
                arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )


def circles(needs: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one name, each sorted."""
    left = {name: set(needed) - {name} for name, needed in needs.items()}
    components: list[list[str]] = []
    while True:
        try:
            graphlib.TopologicalSorter(left).prepare()
        except graphlib.CycleError as error:
            start = error.args[1][0]
            members = sorted(_reached(left, start) & {name for name in left if start in _reached(left, name)})
            components.append(members)
            for name in members:
                left[name] -= set(members)
        else:
            return sorted(components)


def _reached(needs: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the modules that `start` imports, directly or indirectly; with itself if it lies on a circle."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in needs.get(waiting.pop(), set()) - reached:
            reached.add(name)
            waiting.append(name)
    return reached

"""What a user's file imports from beside itself: found, so that a run can keep it, and loaded from what a run kept.

A module is the user's own where Python finds it beside the file and nowhere else: folders of programs come last in the
search, so that they shadow nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


def own_files(program: Path) -> dict[str, Path]:
    """Return the program's file and those of its own modules, by their paths in its folder, the program first.

    Found are all that the source names in an import, wherever it stands, and all that are loaded. What cannot be read
    or parsed is left to the import that fails on it.
    """
    folder = program.resolve().parent
    found = {program.name: program}
    waiting = [(program, "")]
    while waiting:
        file, package = waiting.pop()
        for name in _imported(file, package):
            for path in _files(folder, name):
                relative = path.relative_to(folder).as_posix()
                if relative not in found:
                    found[relative] = path
                    parts = path.relative_to(folder).with_suffix("").parts
                    waiting.append((path, ".".join(parts[:-1])))
    for name, module in list(sys.modules.items()):
        for path in _files(folder, name) if getattr(module, "__file__", None) is not None else ():
            if Path(str(module.__file__)) in (path, program.parent / path.relative_to(folder)):
                found.setdefault(path.relative_to(folder).as_posix(), path)
    return found


def _imported(file: Path, package: str) -> Iterator[str]:
    """The modules that a source file of a package may import, by their full names."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".") if package else []
            start = up[: len(up) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            if module:
                yield module
            yield from (".".join(filter(None, [module, alias.name])) for alias in node.names)


def _files(folder: Path, name: str) -> Iterator[Path]:
    """The files in a folder that make a module: its own, and those of the packages around it."""
    parts = name.split(".")
    if not _is_own(folder, parts[0]):
        return
    for depth in range(1, len(parts) + 1):
        at = folder.joinpath(*parts[:depth])
        for path in (at / "__init__.py", at.with_name(f"{at.name}.py")):
            if path.is_file():
                yield path
                break


def _is_own(folder: Path, name: str, *twins: Path) -> bool:
    """Whether a top-level name is found in a folder, and nowhere else but in its twins."""
    if not name.isidentifier() or name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return False
    if not (folder / f"{name}.py").is_file() and not (folder / name).is_dir():
        return False
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() not in (folder, *twins)]
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is None or spec.origin is None  # a folder without __init__.py elsewhere is no module


class Kept(MetaPathFinder, Loader):
    """Loads a program's own modules from the copy that a run keeps, as if they lay where the program does: what they
    look for beside themselves is there."""

    def __init__(self, copy: Path, folder: Path) -> None:
        self._copy = copy.resolve()
        self._folder = folder.resolve()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if rest:
            above = sys.modules.get(fullname.rpartition(".")[0])
            if above is None or getattr(above.__spec__, "loader", None) is not self:
                return None
        elif not _is_own(self._copy, first, self._folder):
            return None
        at = self._copy.joinpath(*fullname.split("."))
        shown = self._folder.joinpath(*fullname.split("."))
        if (at / "__init__.py").is_file():
            return spec_from_file_location(
                fullname, shown / "__init__.py", loader=self, submodule_search_locations=[str(shown)]
            )
        if at.with_name(f"{at.name}.py").is_file():
            return spec_from_file_location(fullname, shown.with_name(f"{shown.name}.py"), loader=self)
        if at.is_dir():  # a package without __init__.py
            spec = ModuleSpec(fullname, self, is_package=True)
            spec.submodule_search_locations = [str(shown)]
            return spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        if module.__spec__.origin is None:
            return
        shown = Path(module.__spec__.origin)
        exec(compiled(self._copy / shown.relative_to(self._folder), shown), vars(module))


def compiled(file: Path, shown: Path) -> CodeType:
    """Return the code of a source file that says of itself to be another: tracebacks name that, and show this one's
    lines. Raises what reading and compiling raise."""
    source = file.read_bytes()
    code = compile(source, str(shown), "exec", dont_inherit=True)
    text = importlib.util.decode_source(source)
    linecache.cache[str(shown)] = (len(text), None, text.splitlines(keepends=True), str(shown))
    return code

"""What a user's file imports from beside itself: found, so that a run can keep it, and loaded from what a run kept.

A module is the user's own where Python finds it beside the file and nowhere else: folders of programs come last in the
search, so that they shadow nothing. Beside means in the folder of the file itself, wherever links to it lie.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

_GRIDML = {"gridml", "master", "chunk_model", "remote", "ami", "pools"}  # never the user's, wherever it lies
_OTHERS = frozenset(_GRIDML | sys.stdlib_module_names | {*sys.builtin_module_names})


def folder_of(program: Path) -> Path:
    """Return the folder that a program's own modules lie in."""
    return program.resolve().parent


def own_files(program: Path, folder: Path | None = None) -> dict[str, Path]:
    """Return the program's file and those of its own modules, by their paths in its folder, the program first. Modules
    lie in `folder`, None: where the program does.

    Found are all that the source names in an import, wherever it stands, and all that are loaded. What cannot be read
    or parsed is left to the import that fails on it.
    """
    folder = folder_of(program) if folder is None else folder.resolve()
    files = {program.name: program}
    waiting = [(program, "")]
    while waiting:
        file, package = waiting.pop()
        for name in _imported(file, package):
            for path in _files(folder, name):
                relative = path.relative_to(folder).as_posix()
                if relative not in files:
                    files[relative] = path
                    parts = path.relative_to(folder).with_suffix("").parts
                    waiting.append((path, ".".join(parts[:-1])))
    beside: set[str] = set()
    with contextlib.suppress(OSError):
        beside.update(entry.partition(".")[0] for entry in os.listdir(folder))
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in beside:  # as of nearly all of thousands
            continue
        with contextlib.suppress(Exception):  # what stands for a module may be anything
            file = Path(vars(module)["__file__"])
            for path in _files(folder, name):
                if file.resolve() == path.resolve():
                    files.setdefault(path.relative_to(folder).as_posix(), path)
    return files


def _imported(file: Path, package: str) -> Iterator[str]:
    """The modules that a source file of a package may import, by their full names."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
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
    if not name.isidentifier() or name in _OTHERS:
        return False
    if not (folder / f"{name}.py").is_file() and not (folder / name).is_dir():
        return False
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() not in (folder, *twins)]
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is None or spec.origin is None  # a folder without __init__.py elsewhere is no module


class Kept(MetaPathFinder):
    """Finds a program's own modules in the copy that a run keeps, and has them loaded as if they lay where the program
    does: what they look for beside themselves is there."""

    def __init__(self, copy: Path, folder: Path) -> None:
        self._copy = copy.resolve()
        self._folder = folder.resolve()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if (rest and not self._has_found(fullname.rpartition(".")[0])) or not _is_own(self._copy, first, self._folder):
            return None
        at = self._copy.joinpath(*fullname.split("."))
        shown = self._folder.joinpath(*fullname.split("."))
        if (file := at / "__init__.py").is_file():
            loader = _KeptLoader(fullname, shown / file.name, file)
            return spec_from_file_location(
                fullname, shown / file.name, loader=loader, submodule_search_locations=[str(shown)]
            )
        if (file := at.with_name(f"{at.name}.py")).is_file():
            seen = shown.with_name(file.name)
            return spec_from_file_location(fullname, seen, loader=_KeptLoader(fullname, seen, file))
        if at.is_dir():  # a package without __init__.py
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(shown)]
            return spec
        return None

    def _has_found(self, package: str) -> bool:
        """Whether a package comes from the copy: all of it does, or none."""
        above = sys.modules.get(package)
        places = [str(self._folder.joinpath(*package.split(".")))]
        return above is not None and [*getattr(above, "__path__", [])] == places


class _KeptLoader(SourceFileLoader):
    """Loads a module from its copy; whatever else is asked of it, it answers as one of the file `seen`."""

    def __init__(self, fullname: str, seen: Path, copy: Path) -> None:
        super().__init__(fullname, str(seen))
        self._seen, self._kept = seen, copy

    def get_code(self, fullname: str) -> CodeType:
        return compiled(self._kept, self._seen)

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._kept.read_bytes())


def compiled(file: Path, shown: Path) -> CodeType:
    """Return the code of a source file that says of itself to be another: tracebacks name that, and show this one's
    lines. Raises what reading and compiling raise."""
    source = file.read_bytes()
    code = compile(source, str(shown), "exec", dont_inherit=True)
    text = importlib.util.decode_source(source)
    linecache.cache[str(shown)] = (len(text), None, text.splitlines(keepends=True), str(shown))
    return code

"""Discovery of a program's own modules, so that a run can copy them, and of modules that Python imports instead.

A module is the user's own if it is in the folder of the program's file, with links resolved: Python searches that
folder first for a script. As for a script, three things take precedence: modules that Python itself has loaded,
`gridml`, and, over a folder without `__init__.py`, an installed package or module of the same name.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]  # the folder of gridml's packages
# The other top-level packages of gridml's distribution. A user's own module may have one of these names, too.
SIBLINGS = ("master", "remote", "chunk_model", "ami")
# Names that are gridml's own, not the user's, if the program is in a checkout of gridml.
_CHECKOUT = {*SIBLINGS, "pools"}

# If a module's plain name is taken, the module is loaded under a package with this prefix. So sys.modules can have both
# modules.
ALIAS_PREFIX = "gridml_own_"
_ALIAS = re.compile(rf"{ALIAS_PREFIX}[0-9a-f]+\.")


def folder_of(program: Path) -> Path:
    """Return the folder of a program's own modules."""
    return program.resolve().parent


@dataclass(frozen=True)
class OwnFiles:
    """A program and its own modules. Each file is parsed at most once."""

    program: Path
    files: dict[str, Path]  #: by path relative to the program's folder; the program is the first
    _imported: dict[str, list[str]]  #: cache of the modules that a file imports, by its relative path

    def imported(self) -> Iterator[str]:
        """Yield the full names of the modules that these files may import."""
        for relative, file in self.files.items():
            if relative not in self._imported:
                self._imported[relative] = _imported(file, _package_of(relative))
            yield from self._imported[relative]

    def hidden(self) -> Iterator[tuple[str, str]]:
        """Yield (file, description of the module imported instead) for each hidden file next to the program. A file is
        hidden if an import names it but gets another module. Files are relative paths."""
        folder, seen = folder_of(self.program), set()
        for name in self.imported():
            for path, by in _hidden(folder, name):
                if path not in seen:
                    seen.add(path)
                    yield path.relative_to(folder).as_posix(), by

    def hidden_on_path(self) -> Iterator[tuple[str, str]]:
        """Yield (file, file imported instead) for each import of the loaded program that got a module loaded earlier,
        not the first file of that name on Python's search path. The program or the user has put that file's folder on
        the path."""
        folder = folder_of(self.program)
        imported = {name.partition(".")[0] for name in self.imported()}
        for name in sorted(imported & sys.modules.keys()):
            if is_own(folder, name) or _goes_first(name):
                continue
            spec = PathFinder.find_spec(name)
            first, loaded = spec and spec.origin, getattr(sys.modules[name], "__file__", None)
            if (
                first
                and loaded
                and Path(first).parent != folder
                and os.path.realpath(first) != os.path.realpath(loaded)
            ):
                yield first, loaded


def own_files(program: Path, folder: Path | None = None) -> OwnFiles:
    """Return a program and its own modules, which are in `folder`, by default the program's folder.

    Finds all modules that the source names in any import statement, and all loaded modules. A file that cannot be read
    or parsed is skipped; importing it reports the error.
    """
    folder = folder_of(program) if folder is None else folder.resolve()
    own = OwnFiles(program, {program.name: program}, {})
    files, waiting = own.files, [program.name]
    while waiting:
        relative = waiting.pop()
        own._imported[relative] = _imported(files[relative], _package_of(relative))
        for name in own._imported[relative]:
            for path in _files(folder, name):
                found = path.relative_to(folder).as_posix()
                if found not in files:
                    files[found] = path
                    waiting.append(found)
    beside: set[str] = set()
    with contextlib.suppress(OSError):
        beside.update(entry.partition(".")[0] for entry in os.listdir(folder))
    for called, module in list(sys.modules.items()):
        name = plain_name(called)
        if name.partition(".")[0] not in beside:  # a cheap test that rules out nearly all modules
            continue
        with contextlib.suppress(Exception):  # sys.modules may hold arbitrary objects
            file = Path(vars(module)["__file__"])
            for path in _files(folder, name):
                if file.resolve() == path.resolve():
                    files.setdefault(path.relative_to(folder).as_posix(), path)
    return own


def plain_name(name: str) -> str:
    """Return a module's name without the alias package: the name that the importing source has."""
    return _ALIAS.sub("", name, count=1) if name.startswith(ALIAS_PREFIX) else name


def is_own(folder: Path, name: str, *, kept: bool = False) -> bool:
    """Return True if a program in `folder` that imports the top-level `name` gets a file of that folder. If the folder
    is a run's copy (`kept`), all modules in it are already known to be the program's own."""
    if not name.isidentifier() or _goes_first(name) or (folder == HOME and name in _CHECKOUT):
        return False
    if is_regular(folder, name):
        return kept or not _is_library(folder) or not found_elsewhere(name, folder)
    return (folder / name).is_dir() and (
        _has_modules(folder / name) if kept or name in SIBLINGS else not found_elsewhere(name, folder)
    )


def is_regular(folder: Path, name: str) -> bool:
    """Return True if a folder has a module of this name, or a package with an `__init__.py`."""
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def found_elsewhere(name: str, *folders: Path) -> str | None:
    """Return the file of the module or package that an import of a top-level name would find outside these folders, or
    None. A folder without `__init__.py` does not count."""
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() not in folders]
    spec = PathFinder.find_spec(name, elsewhere)
    return None if spec is None else spec.origin


def _imported(file: Path, package: str) -> list[str]:
    """Return the full names of the modules that a source file of a package may import."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".") if package else []
            start = up[: len(up) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names += filter(None, [module, *(".".join(filter(None, [module, alias.name])) for alias in node.names)])
    return names


def _package_of(relative: str) -> str:
    """Return the package of a file, from its path relative to the program's folder."""
    return ".".join(relative.split("/")[:-1])


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module in a folder: its own, and the `__init__.py` of its packages."""
    if not is_own(folder, name.partition(".")[0]):
        return
    for candidates in _candidates(folder, name):
        yield from candidates[:1]


def _candidates(folder: Path, name: str) -> Iterator[list[Path]]:
    """Yield the files in a folder for each part of a module's name, in Python's order of precedence."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        at = folder.joinpath(*parts[:depth])
        yield [path for path in (at / "__init__.py", at.with_name(f"{at.name}.py")) if path.is_file()]


def _hidden(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield (file, description of the module imported instead) for hidden files of a module."""
    first = name.partition(".")[0]
    if not first.isidentifier() or (folder == HOME and first in {*_CHECKOUT, "gridml"}):
        return
    own, by = is_own(folder, first), _what_goes_first(folder, first)
    for candidates in _candidates(folder, name):
        for path in candidates[own:]:
            yield path, f"the package {candidates[0].parent.relative_to(folder).as_posix()}/ next to it" if own else by


def _what_goes_first(folder: Path, name: str) -> str:
    if name == "gridml":
        return "gridml itself"
    if _goes_first(name):
        return f"Python's own module {name}, which is loaded before any program"
    return f"{name} of {found_elsewhere(name, folder)}, which takes precedence over a folder without __init__.py"


def _goes_first(name: str) -> bool:
    """Return True if no file next to a script can replace the module of this name."""
    built_in = BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
    return built_in is not None or name in ("gridml", "encodings", "__main__")


def _is_library(folder: Path) -> bool:
    """Return True if packages are installed in a folder. Then a name that is also found elsewhere is not the user's."""
    return any(folder.glob("*.dist-info"))


def _has_modules(folder: Path) -> bool:
    return next(folder.rglob("*.py"), None) is not None

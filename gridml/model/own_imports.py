"""Import hooks for programs: modules in a program's folder take precedence for that program alone, as for a script.

If a name in the folder is taken (by a package of gridml, an installed one, or a module of another program), the
folder's module is loaded under an alias package in `sys.modules`, and imports from within the folder are redirected to
it. All other modules are loaded under their plain names.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import takewhile
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gridml.model.own_modules import ALIAS_PREFIX, HOME, SIBLINGS, found_elsewhere, is_own, is_regular, plain_name

PROGRAM = "gridml_program_"  # prefix of the module name of a program's file


class OwnFinder(MetaPathFinder):
    """Finds the modules in a program's folder. If the run has a copy of them, the copy is executed under the original
    paths, so that modules find data files next to themselves."""

    def __init__(self, folder: Path, copy: Path | None, taken: frozenset[str]) -> None:
        self.folder = folder
        self.taken = taken  #: top-level names of modules in the folder that modules elsewhere have, too
        #: the alias package, under which modules with taken names are loaded
        self.package = f"{ALIAS_PREFIX}{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
        self._copy = copy
        # True if the folder is the working directory: code typed at a prompt or in a notebook imports from there.
        self._has_prompt = not sys.flags.safe_path and _resolved(".") == folder
        self._askers: dict[tuple[str, Any], bool] = {}  # cache of `is_asked_by`, by (module name, file)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._copy is None:
            return None  # the alias package has a __path__, by which Python finds the module
        name = fullname.removeprefix(f"{self.package}.")
        first, _, rest = name.partition(".")
        if rest and not self._has_found(fullname.rpartition(".")[0], name.rpartition(".")[0]):
            return None
        if (first in self.taken) != (name != fullname) or not is_own(self._copy, first, kept=True):
            return None
        at = self._copy.joinpath(*name.split("."))
        shown = self.folder.joinpath(*name.split("."))
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

    def _has_found(self, package: str, name: str) -> bool:
        """Return True if this finder has loaded the package `name`: its submodules must come from the same copy."""
        above = sys.modules.get(package)
        places = [str(self.folder.joinpath(*name.split(".")))]
        return above is not None and [*getattr(above, "__path__", [])] == places

    def is_asked_by(self, importer: Mapping[str, Any]) -> bool:
        """Return True if the module with these globals is in the folder: a program, a script, or a module of theirs."""
        spec, file = importer.get("__spec__"), importer.get("__file__")
        name = str(getattr(spec, "name", None) or importer.get("__name__"))
        if (name, file) not in self._askers:
            self._askers[name, file] = self._is_of_folder(name, file)
        return self._askers[name, file]

    def _is_of_folder(self, name: str, file: Any) -> bool:
        if name.startswith(f"{self.package}."):
            return True
        if not isinstance(file, str):
            return name == "__main__" and self._has_prompt
        path = _resolved(file)
        if name == "__main__" or name.startswith(PROGRAM):
            return path.parent == self.folder
        # A file below the folder counts only if its path fits its name: the folder can have a virtual environment.
        first = self.folder / name.partition(".")[0]
        return path == first.with_suffix(".py") or first in path.parents


class _KeptLoader(SourceFileLoader):
    """Loads a module from its copy, and reports the original file, `seen`, as its path."""

    def __init__(self, fullname: str, seen: Path, copy: Path) -> None:
        super().__init__(fullname, str(seen))
        self._seen, self._kept = seen, copy

    def get_code(self, fullname: str) -> CodeType:
        return compiled(self._kept.read_bytes(), self._seen)

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._kept.read_bytes())


class _SiblingFinder(MetaPathFinder):
    """Finds gridml's sibling packages before modules of the same names elsewhere on the path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(HOME)]) if fullname in SIBLINGS else None


class _Import:
    """Replacement of `__import__` that redirects imports from within a folder to the folder's own modules."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self._plain = plain

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        # globals is None if a program calls __import__ itself; then the caller's frame has them.
        importer = sys._getframe(1).f_globals if globals is None else globals
        if level:
            package = str(importer.get("__package__") or "")
            if package.startswith(ALIAS_PREFIX) and level > package.count("."):
                raise ImportError("attempted relative import beyond top-level package", name=name)
            return self._plain(name, globals, locals, fromlist, level)
        finder = _finder_for(importer, name)
        if finder is None:
            return self._plain(name, globals, locals, fromlist, level)
        with _plain_name_in_errors(finder):
            module = self._plain(f"{finder.package}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{finder.package}.{name.partition('.')[0]}"]


class _ImportModule:
    """Replacement of `importlib.import_module` that redirects imports as `_Import` does."""

    def __init__(self, plain: Callable[..., ModuleType]) -> None:
        self._plain = plain

    def __call__(self, name: str, package: str | None = None) -> ModuleType:
        finder = _finder_for(sys._getframe(1).f_globals, name)
        if finder is None:
            return self._plain(name, package)
        with _plain_name_in_errors(finder):
            return self._plain(f"{finder.package}.{name}")


def install_finder(folder: Path, copy: Path | None = None, among: Collection[str] | None = None) -> OwnFinder:
    """Redirect imports from within a folder to the folder's own modules. `among` limits this to some names. `copy` is
    the folder with the run's copies of the modules.

    Removes earlier finders of the same folder, and all finders without taken names, which only served a copy.
    """
    places = (folder,) if copy is None else (folder, copy)
    names = {name for place in places for name in _names_in(place)}
    own = {n for n in names if is_own(folder, n) or (copy is not None and is_own(copy, n, kept=True))}
    taken = frozenset(n for n in own if (among is None or n in among) and _is_taken(n, places))
    finder = OwnFinder(folder, copy, taken)
    sys.meta_path[:] = [
        each for each in sys.meta_path if not isinstance(each, OwnFinder) or (each.taken and each.folder != folder)
    ]
    # First, so that the run's copy wins over the files in the program's folder.
    if taken or copy is not None:
        sys.meta_path.insert(0, finder)
    if not taken:
        return finder
    # The alias package is empty and its path is the folder, so Python itself finds its submodules.
    if finder.package not in sys.modules:
        sys.modules[finder.package] = ModuleType(finder.package)
        sys.modules[finder.package].__path__ = [str(folder)]
    if not isinstance(builtins.__import__, _Import):
        builtins.__import__ = _Import(builtins.__import__)
    if not isinstance(importlib.import_module, _ImportModule):
        importlib.import_module = _ImportModule(importlib.import_module)
    return finder


def conflicting_names(folder: Path) -> frozenset[str]:
    """Return the taken names (`OwnFinder.taken`) of the finders that are installed for a folder."""
    return frozenset[str]().union(
        *(each.taken for each in sys.meta_path if isinstance(each, OwnFinder) and each.folder == folder)
    )


def protect_gridml_packages() -> None:
    """Make gridml's packages importable even if a script's folder, or another folder earlier on the path, has modules
    of the same names. Code in those folders still gets its own modules."""
    searched = (_resolved(entry or ".") for entry in sys.path)
    before = [*takewhile(lambda folder: folder != HOME, searched)]
    folders = {folder for folder in before if any(is_own(folder, n) and is_regular(folder, n) for n in SIBLINGS)}
    loaded = {name: _folder_of(sys.modules[name]) for name in SIBLINGS if name in sys.modules}
    theirs = {name: folder for name, folder in loaded.items() if folder not in (None, HOME)}
    if not folders and not theirs:
        return
    if not any(isinstance(finder, _SiblingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SiblingFinder())
    for folder in {*folders, *theirs.values()}:
        assert folder is not None
        finder = install_finder(folder, among=SIBLINGS)
        for name in (name for name, its in theirs.items() if its == folder):
            _rename(name, f"{finder.package}.{name}")


def _rename(old: str, new: str) -> None:
    """Rename a loaded module and its submodules, unless one of them is being loaded now."""
    names = [name for name in sys.modules if name == old or name.startswith(f"{old}.")]
    if any(getattr(sys.modules[name].__spec__, "_initializing", False) for name in names):
        return
    for name in names:
        module, renamed = sys.modules.pop(name), new + name.removeprefix(old)
        for part in vars(module).values():
            if getattr(part, "__module__", None) == name:
                with contextlib.suppress(AttributeError, TypeError):
                    part.__module__ = renamed
        module.__name__ = renamed
        if module.__spec__ is not None:
            module.__spec__.name = renamed
            module.__package__ = module.__spec__.parent
        sys.modules[renamed] = module


def _finder_for(importer: Mapping[str, Any], name: str) -> OwnFinder | None:
    """Return the finder to which an import by the module with these globals is redirected, or None.

    Every import of the process calls this, so the cheap test of the name, which rules out nearly all, comes first.
    """
    first = name.partition(".")[0]
    for finder in sys.meta_path:
        if type(finder) is OwnFinder and first in finder.taken and finder.is_asked_by(importer):
            return finder
    return None


@contextlib.contextmanager
def _plain_name_in_errors(finder: OwnFinder) -> Iterator[None]:
    """Replace the alias by the plain name in the error of a missing module."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.msg = error.msg.replace(f"{finder.package}.", "")
        error.name = plain_name(error.name or "")
        raise


def _names_in(folder: Path) -> set[str]:
    """Return the top-level names of possible modules in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = {each.name.removesuffix(".py") for each in entries if each.name.endswith(".py") or "." not in each.name}
        return {name for name in found if is_regular(folder, name) or name in sys.modules or name in SIBLINGS}
    return set()


def _is_taken(name: str, folders: Sequence[Path]) -> bool:
    """Return True if the name of a module in these folders is also that of a module elsewhere."""
    if name in SIBLINGS:
        return True
    if (loaded := sys.modules.get(name)) is not None:
        return _folder_of(loaded) not in folders
    return name in sys.stdlib_module_names or found_elsewhere(name, *folders) is not None


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder in which a top-level module was found; None if there is no such folder, or several."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        path = _resolved(file)
        return path.parents[path.name == "__init__.py"]
    places = {_resolved(place).parent for place in getattr(module, "__path__", ())}
    return places.pop() if len(places) == 1 else None


def _resolved(path: str) -> Path:
    return Path(os.path.realpath(path))


def compiled(source: bytes, shown: Path) -> CodeType:
    """Compile a source. Tracebacks show the path `shown` and the lines of this source. Raises what `compile` raises."""
    code = compile(source, str(shown), "exec", dont_inherit=True)
    text = importlib.util.decode_source(source)
    linecache.cache[str(shown)] = (len(text), None, text.splitlines(keepends=True), str(shown))
    return code

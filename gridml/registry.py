"""Registries of plug-ins by name: built-in ones, and those of other packages.

A package adds a plug-in by an entry point, which every process in the same environment sees:

    [project.entry-points."gridml.backends"]
    lab = "lab_pool.plugin:LabPool"

or by `register`, which only the calling process sees.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gridml.errors import RunError, UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Plug-ins by name. A plug-in's module is imported on its first use.

    `noun` names the kind of plug-in in messages, `group` is the group of entry points. `built_in` maps names to
    `module:callable`.
    """

    def __init__(self, noun: str, group: str, built_in: Mapping[str, str]) -> None:
        self.noun = noun
        self.group = group
        self._references = dict(built_in)  # `module:callable` by name; entry points are added by `_search`
        self._loaded: dict[str, T] = {}
        self._searched = False

    def register(self, name: str, make: Callable[[], T]) -> None:
        """Add a plug-in for this process. Raises UsageError if the name is taken."""
        if name in self.names():
            raise UsageError(f"there is a {self.noun} {name!r} already; register another name.")
        self._loaded[name] = make()

    def names(self) -> list[str]:
        """Return all names: built-in ones first, then those of other packages."""
        self._search()
        return [*self._references, *(name for name in self._loaded if name not in self._references)]

    def find(self, name: str) -> T:
        """Return the plug-in of this name. Raises UsageError if there is none, RunError if it cannot be imported."""
        if name not in self._loaded:
            if name not in self._references:
                self._search()
            if name not in self._references:
                raise UsageError(
                    f"there is no {self.noun} {name!r}; expected one of {', '.join(self.names())}, or the package that "
                    f"brings it installed."
                )
            reference = self._references[name].partition("[")[0].strip()  # without the extras of an entry point
            try:
                self._loaded[name] = pkgutil.resolve_name(reference)()
            except Exception as error:  # importing another package may raise anything
                raise RunError(
                    f"the {self.noun} {name!r} ({reference}) cannot be imported: {type(error).__name__}: {error}. Fix "
                    f"or remove the package that brings it."
                ) from error
        return self._loaded[name]

    def all(self) -> dict[str, T]:
        """Return all plug-ins that can be imported, by name. The others raise their errors when they are used."""
        for name in self.names():
            with contextlib.suppress(RunError):
                self.find(name)
        return {name: self._loaded[name] for name in self.names() if name in self._loaded}

    def _search(self) -> None:
        """Read the entry points, once. They cannot replace built-in names."""
        if not self._searched:
            from importlib.metadata import entry_points  # deferred: slow to import, and workers do not need it

            self._searched = True
            for entry in entry_points(group=self.group):
                self._references.setdefault(entry.name, entry.value)

"""Where the source of a program is that a call was given: workers load it from there, or from a copy."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from gridml.calls.cells import source_of_cells
from gridml.errors import ProgramError, StorageError, UsageError
from gridml.model.program import Program

_NOTEBOOK = "notebook"  # the name of a program in cells where the notebook's own is not known


@dataclass(frozen=True)
class Source:
    """A program's `file`; or where it has none, what is to be written into a run's copy of it: files by their paths,
    the program's own, called as `file` is, and those of its own modules."""

    file: Path
    contents: Mapping[str, bytes] = field(default_factory=dict)

    def placed(self, root: Path) -> Path:
        """Return the file of the program for a run in `root`, written there where it has none of its own. Raises
        StorageError."""
        if not self.contents:
            return self.file
        from master.store.rundir import RunDirectory

        directory = RunDirectory(root)
        directory.create()
        program = directory.kept_program(self.file).program.absolute()
        try:
            for name, content in self.contents.items():
                (program.parent / name).parent.mkdir(parents=True, exist_ok=True)
                (program.parent / name).write_bytes(content)
        except OSError as error:
            raise StorageError(f"{program} cannot be written: {error}. Make room, or name another run_dir.") from error
        return program


def source_of(program: Any, call: str) -> Source:
    """Return the source of what a call was given for its program: a path, or a Program that a script, a module or a
    cell has made.

    Raises UsageError for anything else, ProgramError for a Program whose source cannot be found.
    """
    if isinstance(program, str | os.PathLike):
        return Source(Path(program).absolute())
    if not isinstance(program, Program):
        raise UsageError(
            f"{call} got {type(program).__name__} for its program; expected a gridml.Program, or the path of a file."
        )
    home, name = _home(program, call)
    shell = _shell()
    if home.__name__ == "__main__" and getattr(home, "__file__", None) is None and shell is not None:
        text = source_of_cells(shell.user_ns.get("In", []), name, shell.user_ns)
        return _written(text, _notebook_name())
    file = getattr(home, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise ProgramError(
            f"{name} was made where there is no file, such as at Python's prompt, by python -c or on standard input; "
            "workers load a program from its source. Write it into a file, or into a notebook's cell."
        )
    if home.__name__ != "__main__" and "." in home.__name__:
        return _in_package(home, name)
    return Source(Path(file).absolute())


def _home(program: Program, call: str) -> tuple[ModuleType, str]:
    """Return the module that made a program, and its name there."""
    named = [getattr(part, "__module__", None) for part in (program.update.function, program.graph)]
    modules = [sys.modules[name] for name in dict.fromkeys([*named, "__main__"]) if name in sys.modules]
    for module in [*modules, *list(sys.modules.values())]:
        try:
            name = next((name for name, value in vars(module).items() if value is program), None)
        except TypeError:  # what stands for a module may be anything
            continue
        if name is not None:
            return module, name
    raise ProgramError(
        f"{call} got a Program that no module has under a name, by which workers load it from its source. Make it "
        "at the top of a file or of a cell, as in program = gridml.Program(graph, train), and give options to the call."
    )


def _in_package(home: ModuleType, name: str) -> Source:
    """A program in a module of a package: a file that imports it from there, beside the package."""
    parts = home.__name__.split(".")
    assert home.__file__ is not None
    file = Path(home.__file__).resolve()
    depth = len(parts) + (file.name == "__init__.py")
    text = f'"""Written by gridml."""\n\nfrom {home.__name__} import {name} as program\n'
    folder = file.parents[depth - 1]
    if {"site-packages", "dist-packages"} & {*folder.parts}:  # it is installed, and so must it be where workers are
        return Source(Path(f"{parts[-1]}.py"), {f"{parts[-1]}.py": text.encode()})
    return _written(text, parts[-1], folder)


def _written(text: str, stem: str, folder: Path | None = None) -> Source:
    """A program of this text, with its own modules, which lie in `folder`, None: where this process works."""
    from master.store.kept_program import contents_of

    folder = Path.cwd() if folder is None else folder
    with tempfile.TemporaryDirectory() as aside:
        # What a program imports is looked for beside its file.
        file = Path(aside) / f"{stem}.py"
        file.write_text(text, encoding="utf-8")
        contents = contents_of(file, folder)
    return Source(Path(f"{stem}.py"), contents)


def _shell() -> Any:
    """The IPython that runs this process, None where it is plain Python."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _notebook_name() -> str:
    """What the program of a notebook is called: as that, where its server says so."""
    stem = re.sub(r"\W+", "_", Path(os.environ.get("JPY_SESSION_NAME", "")).stem).strip("_")
    return stem[:100] if stem.isidentifier() else _NOTEBOOK

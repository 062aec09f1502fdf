"""Program loading: executes the user's file and returns the one Program in it."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path
from typing import NamedTuple

from gridml.errors import DataError, Interruption, ProgramError, UnguardedError, UsageError
from gridml.model.own_imports import PROGRAM, compiled, install_finder
from gridml.model.own_modules import folder_of
from gridml.model.program import Program, user_traceback

MAX_NAME_BYTES = 200  # of a program's file; longer names are derived from it, and file systems allow 255

_SAME_NAME = ("torch",)  # top-level modules whose package has the same name on the index

_loading: list[Path] = []  # program files being executed, innermost last; mutated only by `loaded`


def check_guarded(call: str) -> None:
    """Raise UnguardedError if a program's file, while it is loaded, makes a `call` that starts a run."""
    if _loading:
        raise UnguardedError(
            f"{_loading[-1]} calls {call} while it is loaded: the master and every worker load this file, and each "
            f'would begin a run of its own. Put the call under  if __name__ == "__main__":  in that file.'
        )


class Loaded(NamedTuple):
    """A program and the source that it was loaded from. The file may have changed since."""

    program: Program
    source: bytes


def load(path: Path, original: Path | None = None) -> Program:
    """Return the program in a file, as `loaded` does."""
    return loaded(path, original).program


def loaded(path: Path, original: Path | None = None) -> Loaded:
    """Return the one Program in a user's file, and the source, which is read once. A run's copy of a program, with its
    modules next to it, is loaded under the path of the `original`.

    Raises UsageError if the file cannot be read, ProgramError if it fails, or holds no Program or several.
    """
    if (problem := _problem(path)) is not None:
        raise UsageError(f"{problem}. Expected the Python file of a program, as in `gridml run examples/mnist.py`.")
    copy, path = path, path if original is None else original
    name = f"{PROGRAM}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file. Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = folder_of(path)
    install_finder(folder, None if original is None else copy.parent.resolve())
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that imports of other modules do not find the files next to the program
    _loading.append(path)
    try:
        source = copy.read_bytes()
        exec(compiled(source, path), vars(module))
    except (DataError, UnguardedError, Interruption):
        del sys.modules[name]
        raise  # the message needs no traceback of the user's file
    except BaseException as error:
        del sys.modules[name]
        raise ProgramError(f"{path} cannot be loaded:\n{user_traceback(error, path)}{_install(error)}") from error
    finally:
        _loading.remove(path)
    programs: dict[str, Program] = {n: v for n, v in vars(module).items() if issubclass(type(v), Program)}
    distinct = {id(p): name for name, p in programs.items()}
    if len(distinct) != 1:
        names = f"{len(distinct)} ({', '.join(programs)})" if distinct else "none"
        raise ProgramError(
            f"{path} must hold exactly one gridml.Program; found {names}. Write program = gridml.Program(graph, train)."
        )
    program = next(iter(programs.values()))
    program.check()
    return Loaded(program, source)


def _install(error: BaseException) -> str:
    """Return advice on installing the missing package, or "" if the error is not a failed import."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    get = f"pip install {package}" + ("" if package in _SAME_NAME else ", if it is called that")
    return f"\n{sys.executable} has no {package}. Install it there: {get}; workers elsewhere need it, too."


def _problem(path: Path) -> str | None:
    """Return the reason that a program cannot be read from a path, or None."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"no such file: {path}"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(mode):
        return f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}"
    if (length := len(path.name.encode(errors="surrogateescape"))) > MAX_NAME_BYTES:
        return f"the name of {path} has {length} bytes, which is more than {MAX_NAME_BYTES}"
    return None

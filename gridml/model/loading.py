"""How a program is loaded from the user's file."""

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

MAX_NAME_BYTES = 200  # bytes of a program's file name: others are made of it, and a file system's limit is 255

_SAME_NAME = ("torch",)  # modules that pip knows by the same name

_loading: list[Path] = []  # the programs whose files are executed now


def check_guarded(call: str) -> None:
    """Raise UnguardedError where a program's file, as it is loaded, makes a `call` that would begin a run."""
    if _loading:
        raise UnguardedError(
            f"{_loading[-1]} calls {call} while it is loaded: the master and every worker load this file, and each "
            f'would begin a run of its own. Put the call under  if __name__ == "__main__":  in that file.'
        )


class Loaded(NamedTuple):
    """A program, and the source that made it: its file may hold another by now."""

    program: Program
    source: bytes


def load(path: Path, original: Path | None = None) -> Program:
    """Return the program of `loaded`."""
    return loaded(path, original).program


def loaded(path: Path, original: Path | None = None) -> Loaded:
    """Return the one Program in a user's file, which is read once. A copy that a run keeps, with the modules beside it,
    is loaded as the `original` that it was made of.

    Raises UsageError when the file is not there, ProgramError when it cannot be run or holds no Program, or two.
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
        sys.path.append(str(folder))  # last: what others import must not be a module beside the file
    _loading.append(path)
    try:
        source = copy.read_bytes()
        exec(compiled(source, path), vars(module))
    except (DataError, UnguardedError, Interruption):
        del sys.modules[name]
        raise  # it says all there is to say
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
    """Return how a package is got for the want of which a program cannot be loaded, "" where that is not why."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    get = f"pip install {package}" + ("" if package in _SAME_NAME else ", if it is called that")
    return f"\n{sys.executable} has no {package}. Install it there: {get}; workers elsewhere need it, too."


def _problem(path: Path) -> str | None:
    """Return why a program cannot be read from a path, None where it can."""
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

"""Program loading: executes the user's file and returns the one Program in it."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path
from typing import NamedTuple

from gridml.errors import DataError, Interruption, ProgramError, UnguardedError, UsageError, advice
from gridml.model.own_imports import PROGRAM, compiled, install_finder
from gridml.model.own_modules import folder_of
from gridml.model.program import Program, user_traceback

# Maximum length of a program file's name. Names derived from it are longer, and file systems allow 255 bytes.
MAX_NAME_BYTES = 200

_loading: list[Path] = []  # program files being executed, innermost last; mutated only by `loaded`


def check_guarded(call: str) -> None:
    """Raise UnguardedError if a program's file is being loaded, because `call` would start a run on each load."""
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
    """Return the one Program in a user's file, and the source, which is read once. If `path` is a run's copy of a
    program, with copies of its modules next to it, the program is loaded as if from the path `original`.

    Raises UsageError if the file cannot be read, ProgramError if its code fails, or it has no Program or several.
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
        sys.path.append(str(folder))  # last, so that a file next to the program does not hide a module from others
    _loading.append(path)
    try:
        source = copy.read_bytes()
        exec(compiled(source, path), vars(module))
    except (DataError, UnguardedError, Interruption):
        del sys.modules[name]
        raise  # the message needs no traceback of the user's file
    except BaseException as error:
        del sys.modules[name]
        shown = user_traceback(error, path)
        hint = advice(error, shown.rpartition("\n")[2])
        raise ProgramError(f"{path} cannot be loaded:\n{shown}{hint}") from error
    finally:
        _loading.remove(path)
    programs: dict[str, Program] = {n: v for n, v in vars(module).items() if issubclass(type(v), Program)}
    distinct = {id(p): name for name, p in programs.items()}
    if len(distinct) != 1:
        names = f"{len(distinct)} ({', '.join(programs)})" if distinct else "none"
        raise ProgramError(
            f"{path} must hold exactly one gridml.Program; found {names}. Write program = gridml.Program(graph, train) "
            f"at the top level of the file, once, and not under  if __name__ ...:  or in a function."
        )
    program = next(iter(programs.values()))
    program.check()
    return Loaded(program, source)


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

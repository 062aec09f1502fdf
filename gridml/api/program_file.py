"""Source of the program passed to a call such as `gridml.run`: the program's own file, or a file written into the run.

A program defined in notebook cells has no file. Its source is then a slice of the statements that the kernel ran, in
order. Other statements must not reach a worker, because cells are run twice, fail, plot, or start the run itself. The
slice has the statement that binds the program and, recursively, all statements that it needs. A name that is read while
a statement runs comes from the last earlier statement that binds the name. A name that is read in a function's body
comes from the last of all statements that bind the name, because the function is called later. So a worker that runs
the slice gets the same values as the kernel.

`write_state_dicts` saves the state dicts that a call got as initial values.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import symtable
import sys
import tempfile
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gridml.errors import ProgramError, StorageError, UsageError
from gridml.model.program import Program
from gridml.protocol import bundle
from gridml.protocol.push import Array

_CHANGING = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "sort", "update"}
)  # methods that are usually called to change their object
_AT_ONCE = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})  # scopes that run with their statement
_WRITTEN = bool | int | float | str | None  # types of values whose `repr` is their source


@dataclass(frozen=True)
class _Statement:
    """A statement of a cell, and the names that it uses."""

    text: str
    binds: frozenset[str]  #: names that it assigns or imports
    changes: frozenset[str]  #: names whose values it modifies in place
    now: frozenset[str]  #: names that it reads while it runs
    later: frozenset[str]  #: names that the functions in it read when they are called


@dataclass
class _Slice:
    """The statements that a program needs, found by following names backwards."""

    statements: Sequence[_Statement]
    taken: set[int] = field(default_factory=set)  #: positions of needed statements
    unbound: set[str] = field(default_factory=set)  #: names that no statement binds

    def take_name(self, name: str, before: int) -> None:
        """Take the last statement before position `before` that binds a name, and the statements from there to `before`
        that change the name's value in place."""
        at = self._binding(name, before)
        if at is None:
            self.unbound.add(name)
            return
        self._take(at)
        for later in range(at + 1, before):
            if name in self.statements[later].changes:
                self._take(later)

    def _binding(self, name: str, before: int) -> int | None:
        return next((at for at in range(before - 1, -1, -1) if name in self.statements[at].binds), None)

    def _take(self, at: int) -> None:
        if at in self.taken:
            return
        self.taken.add(at)
        statement, end = self.statements[at], len(self.statements)
        for name in sorted(statement.now):
            # A name that is not bound before can be bound later: an annotation can use a class that is defined later.
            self.take_name(name, at if self._binding(name, at) is not None else end)
        for name in sorted(statement.later):
            self.take_name(name, end)


def source_of_cells(cells: Sequence[str], program: str, namespace: Mapping[str, Any]) -> str:
    """Return the source of a file that defines what the cells have bound to the name `program`.

    `cells` are the cells that were run, oldest first, without magics (IPython's `In`). `namespace` holds the kernel's
    current values. Raises ProgramError for a name that the program needs and that no cell binds.
    """
    statements = [statement for cell in cells for statement in _statements(cell)]
    needed = _Slice(statements)
    needed.take_name(program, len(statements))
    first = [f"from __future__ import {name}" for name in _futures(cells)]
    first += _bound_elsewhere(needed.unbound, program, namespace)
    texts = [*first, *(statements[at].text for at in sorted(needed.taken))]
    return "\n\n".join(['"""Written by gridml from the cells of a notebook."""', *texts]) + "\n"


def _bound_elsewhere(names: Collection[str], program: str, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield a statement for each of `names`, which no cell binds: an import of a module, or an assignment of a value.

    A name that the kernel does not have is skipped: the code that reads it raises NameError in the kernel, too. Raises
    ProgramError for a value whose `repr` is not its source.
    """
    for name in sorted(names):
        if name not in namespace or hasattr(builtins, name) or (name.startswith("__") and name != program):
            continue
        value = namespace[name]
        if isinstance(value, types.ModuleType):
            yield f"import {value.__name__} as {name}"
        elif isinstance(value, _WRITTEN):
            yield f"{name} = {value!r}"
        else:
            what = "" if name == program else f"the program {program} needs {name}, and "
            raise ProgramError(
                f"{what}no cell that was run defines {name}; it may come from a magic such as %run or from a shell "
                "command. Workers load the program from its source: define it in a cell, or put the program into a "
                "file and import that."
            )


def _futures(cells: Sequence[str]) -> list[str]:
    names = [
        alias.name
        for cell in cells
        for node in _body(cell)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    ]
    return list(dict.fromkeys(names))


def _body(cell: str) -> list[ast.stmt]:
    try:
        return ast.parse(cell).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the kernel could not run this cell either


def _statements(cell: str) -> Iterator[_Statement]:
    body = _body(cell)
    lines, spans = cell.splitlines(), [_lines_of(node) for node in body]
    for node, (first, last) in zip(body, spans, strict=True):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        # The original text keeps comments. Statements that share a line (`a = 1; b = 2`) are split by unparsing each.
        alone = sum(first <= end and begin <= last for begin, end in spans) == 1
        text = "\n".join(lines[first - 1 : last]) if alone else ast.unparse(node)
        yield _read(node, text)


def _lines_of(node: ast.stmt) -> tuple[int, int]:
    """Return the first and last line of a statement, including decorators; lines count from 1."""
    decorators = getattr(node, "decorator_list", [])
    return min(node.lineno, *(d.lineno for d in decorators), node.lineno), node.end_lineno or node.lineno


def _read(node: ast.stmt, text: str) -> _Statement:
    table = symtable.symtable(ast.unparse(node), "cell", "exec")  # symtable takes text, not a syntax tree
    binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    binds |= {each.get_name() for each in table.get_symbols() if each.is_namespace()}
    now = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    later: set[str] = set()
    for inner in table.get_children():
        _collect_reads(inner, now, later, deferred=False)
    changes: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            now.add(part.target.id)  # `x += 1` also reads x, which symtable does not report
        if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            changes |= _root(part)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            later.add(part.value)  # a string can name a type, as in `gridml.edge("Word")` or an annotation
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in _CHANGING:
            changes |= _root(called)
    return _Statement(text, frozenset(binds), frozenset(changes), frozenset(now), frozenset(later))


def _collect_reads(table: symtable.SymbolTable, now: set[str], later: set[str], *, deferred: bool) -> None:
    """Add the globals that a scope reads to `now` if it runs with its statement (class body, comprehension), or to
    `later` if it is in a function."""
    at_once = table.get_type() == "class" or table.get_name() in _AT_ONCE
    deferred = deferred or not at_once
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            (later if deferred else now).add(symbol.get_name())
    for inner in table.get_children():
        _collect_reads(inner, now, later, deferred=deferred)


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


_NOTEBOOK = "notebook"  # stem of the program's file if the name of the notebook is unknown


@dataclass(frozen=True)
class ProgramSource:
    """The file that a program is loaded from, or the contents to write such a file."""

    file: Path
    #: content of the program's file and of its own modules, by relative path; empty if `file` exists
    contents: Mapping[str, bytes] = field(default_factory=dict)

    def materialise(self, root: Path) -> Path:
        """Return the program's file. If there is none, first write it into the run directory `root`. Raises
        StorageError."""
        if not self.contents:
            return self.file
        from master.store.rundir import RunDirectory

        directory = RunDirectory(root)
        directory.create()
        program = directory.saved_program(self.file).program.absolute()
        try:
            for name, content in self.contents.items():
                (program.parent / name).parent.mkdir(parents=True, exist_ok=True)
                (program.parent / name).write_bytes(content)
        except OSError as error:
            raise StorageError(f"{program} cannot be written: {error}. Free space, or give another run_dir.") from error
        return program


def source_of(program: Any, call: str) -> ProgramSource:
    """Return the source of a call's program: a path, or a Program defined in a script, a module or a notebook cell.

    Raises UsageError for anything else, ProgramError for a Program whose source cannot be found.
    """
    if isinstance(program, str | os.PathLike):
        return ProgramSource(Path(program).absolute())
    if not isinstance(program, Program):
        raise UsageError(
            f"{call} got {type(program).__name__} as its program; expected a gridml.Program or the path of a file."
        )
    home, name = _home(program, call)
    shell = ipython_shell()
    if home.__name__ == "__main__" and getattr(home, "__file__", None) is None and shell is not None:
        text = source_of_cells(shell.user_ns.get("In", []), name, shell.user_ns)
        return _written(text, _notebook_name())
    file = getattr(home, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise ProgramError(
            f"{name} was not defined in a file, but at Python's prompt, by python -c or on standard input. Workers "
            "load a program from its source: write it into a file, or into a notebook cell."
        )
    if home.__name__ != "__main__" and "." in home.__name__:
        return _in_package(home, name)
    return ProgramSource(Path(file).absolute())


def _home(program: Program, call: str) -> tuple[ModuleType, str]:
    """Return the module that defines a program, and the program's name there. Raises ProgramError if no module has the
    program."""
    named = [getattr(part, "__module__", None) for part in (program.shape.function, program.graph)]
    # The modules that define f and the graph come first, because any other module could merely import the program.
    modules = [sys.modules[name] for name in dict.fromkeys([*named, "__main__"]) if name in sys.modules]
    for module in [*modules, *list(sys.modules.values())]:
        try:
            name = next((name for name, value in vars(module).items() if value is program), None)
        except TypeError:  # `sys.modules` can hold objects without `__dict__`
            continue
        if name is not None:
            return module, name
    raise ProgramError(
        f"{call} got a Program that no module has bound to a name, by which workers load it. Define it at the top "
        "level of a file or cell, as in program = gridml.Program(graph, train), and give options to the call."
    )


def _in_package(home: ModuleType, name: str) -> ProgramSource:
    """Return the source of a program in module `home` of a package: a new file that imports the program from there.

    The module's own file cannot be loaded alone, because its relative imports need the package.
    """
    parts = home.__name__.split(".")
    assert home.__file__ is not None
    file = Path(home.__file__).resolve()
    depth = len(parts) + (file.name == "__init__.py")
    text = f'"""Written by gridml."""\n\nfrom {home.__name__} import {name} as program\n'
    folder = file.parents[depth - 1]
    if {"site-packages", "dist-packages"} & {*folder.parts}:  # not copied: workers must have the package installed
        return ProgramSource(Path(f"{parts[-1]}.py"), {f"{parts[-1]}.py": text.encode()})
    return _written(text, parts[-1], folder)


def _written(text: str, stem: str, folder: Path | None = None) -> ProgramSource:
    """Return a source with this text, and the user's own modules in `folder` (default: the working directory)."""
    from master.store.saved_program import contents_of

    folder = Path.cwd() if folder is None else folder
    with tempfile.TemporaryDirectory() as temporary:  # `folder` is the user's: no file is written there
        file = Path(temporary) / f"{stem}.py"
        file.write_text(text, encoding="utf-8")
        contents = contents_of(file, folder)
    return ProgramSource(Path(f"{stem}.py"), contents)


def ipython_shell() -> Any:
    """Return the IPython shell of this process; None in plain Python."""
    # Every kernel has loaded IPython. It is not imported here: that takes time, and it may not be installed.
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _notebook_name() -> str:
    """Return the name for a notebook's program: the notebook's own name, if the notebook server passes it on."""
    stem = re.sub(r"\W+", "_", Path(os.environ.get("JPY_SESSION_NAME", "")).stem).strip("_")
    return stem[:100] if stem.isidentifier() else _NOTEBOOK


_FILE = "first.safetensors"  # the initial values, in the run directory
_VERTEX = re.compile(r"(\w+)(?:\[(\d+)\])?\.(\w+)")  # "Network.model", "Network[3].model", "Word.count"

InitialValues = str | os.PathLike[str] | Mapping[str, Any]  # a run, "RUN:best", a file of tensors, or state dicts


def split_initial_values(given: InitialValues | None) -> tuple[str | os.PathLike[str] | None, Mapping[str, Any] | None]:
    """Return (value of the `init_from` option, None), or (None, state dicts): the option cannot hold state dicts."""
    return (None, given) if isinstance(given, Mapping) else (given, None)


def write_state_dicts(given: Mapping[str, Any], root: Path, call: str) -> Path:
    """Write state dicts to a file in the run directory, and return its path. `given` is the state dict of the program's
    only module, or a result of `gridml.load`, of which ids of vertices are left out. Raises UsageError for anything
    else, StorageError."""
    tensors: dict[str, Array] = {}
    for name, value in given.items():
        parts = _VERTEX.fullmatch(str(name))
        if isinstance(value, np.ndarray) and str(name).endswith(".ids"):
            continue  # no field has this name
        if isinstance(value, Mapping):
            if parts is None:
                raise UsageError(
                    f"{call} got init_from with the state dict {name!r}; expected names as gridml.load returns them, "
                    'such as "Network.model".'
                )
            whole = f"{parts[1]}/{parts[2] or 0}/{parts[3]}"
            tensors |= {f"{whole}/{key}": _array(tensor, call) for key, tensor in value.items()}
        elif isinstance(value, np.ndarray) and parts is not None:
            tensors[f"{parts[1]}/{parts[3]}"] = value
        else:
            # A tensor of the program's only module: the master finds the vertex of that module in the graph.
            tensors[str(name)] = _array(value, call)
    if not tensors:
        raise UsageError(f"{call} got init_from without a tensor; expected a state dict, or a result of gridml.load.")
    from master.store.rundir import RunDirectory

    RunDirectory(root).create()
    path = root / _FILE
    try:
        bundle.write_atomic(path, bundle.pieces({}, tensors))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}. Free some space, or give another run_dir.") from error
    return path


def _array(tensor: Any, call: str) -> Array:
    """Return a torch tensor or a NumPy array as a NumPy array. bfloat16, which NumPy lacks, becomes float32. Raises
    UsageError for any other type."""
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        values = tensor.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        array: Array = values.numpy()
        return array
    except AttributeError:
        raise UsageError(
            f"{call} got init_from with a {type(tensor).__name__} in it; expected tensors, as in a state dict."
        ) from None

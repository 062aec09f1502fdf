"""The source of a program that cells of a notebook define: those of their statements that it takes, in the order in
which they were run.

A kernel has no file. What was run is a list of cells, some of them twice, some in vain; others begin the run itself,
draw, or change the kernel. A program takes the statement that makes it, and what that needs: a name that is read while
a statement runs is the one that was bound last before it, a name in the body of a function the one that was bound last
of all. So a worker that runs these statements has what the kernel has.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gridml.errors import ProgramError

_CHANGING = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "sort", "update"}
)  # methods that are called to change what they belong to
_AT_ONCE = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})
_WRITTEN = bool | int | float | str | None  # of these values the representation is the source


@dataclass(frozen=True)
class _Statement:
    """A statement of a cell: the names it binds, those whose values it changes, and those it reads, `now` while it runs
    and `later`, when a function is called that it makes."""

    text: str
    binds: frozenset[str]
    changes: frozenset[str]
    now: frozenset[str]
    later: frozenset[str]


@dataclass
class _Slice:
    """Statements that are taken, by their positions, and names that nothing binds."""

    statements: Sequence[_Statement]
    taken: set[int] = field(default_factory=set)
    unbound: set[str] = field(default_factory=set)

    def take_name(self, name: str, before: int) -> None:
        """Take what binds a name last before a position, and what has changed its value since."""
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
        for name in sorted(statement.now):  # an annotation that is never evaluated may name what comes later
            self.take_name(name, at if self._binding(name, at) is not None else end)
        for name in sorted(statement.later):
            self.take_name(name, end)


def source_of_cells(cells: Sequence[str], program: str, namespace: Mapping[str, Any]) -> str:
    """Return the source of a file that makes what cells have bound to the name `program`.

    `cells` are those that were run, oldest first, without magics (as IPython has them in `In`); `namespace` is what the
    kernel's names stand for now. Raises ProgramError for a name that the program takes, and that no cell binds.
    """
    statements = [statement for cell in cells for statement in _statements(cell)]
    needed = _Slice(statements)
    needed.take_name(program, len(statements))
    first = [f"from __future__ import {name}" for name in _futures(cells)]
    first += _bound_elsewhere(needed.unbound, program, namespace)
    texts = [*first, *(statements[at].text for at in sorted(needed.taken))]
    return "\n\n".join(['"""Written by gridml of the cells of a notebook."""', *texts]) + "\n"


def _bound_elsewhere(names: Collection[str], program: str, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield statements for what no cell binds: modules, and plain values. Names that the kernel does not have either
    are left to the code that reads them."""
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
                f"{what}no cell that was run defines {name}: a magic such as %run may have, or a shell command. "
                "Workers load the program from its source: define it in a cell, or keep the program in a file and "
                "import that."
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
        return []  # so the kernel could not run it either


def _statements(cell: str) -> Iterator[_Statement]:
    body = _body(cell)
    lines, spans = cell.splitlines(), [_lines_of(node) for node in body]
    for node, (first, last) in zip(body, spans, strict=True):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        alone = sum(first <= end and begin <= last for begin, end in spans) == 1
        text = "\n".join(lines[first - 1 : last]) if alone else ast.unparse(node)
        yield _read(node, text)


def _lines_of(node: ast.stmt) -> tuple[int, int]:
    """The first and the last line of a statement, its decorators included; lines count from 1."""
    decorators = getattr(node, "decorator_list", [])
    return min(node.lineno, *(d.lineno for d in decorators), node.lineno), node.end_lineno or node.lineno


def _read(node: ast.stmt, text: str) -> _Statement:
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    binds |= {each.get_name() for each in table.get_symbols() if each.is_namespace()}
    now = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    later: set[str] = set()
    for inner in table.get_children():
        _look_inside(inner, now, later, deferred=False)
    changes: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            now.add(part.target.id)
        if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            changes |= _root(part)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            later.add(part.value)  # a type may be named before there is one
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in _CHANGING:
            changes |= _root(called)
    return _Statement(text, frozenset(binds), frozenset(changes), frozenset(now), frozenset(later))


def _look_inside(table: symtable.SymbolTable, now: set[str], later: set[str], *, deferred: bool) -> None:
    """Gather the globals that a scope reads: of a class and of a comprehension at once, of a function later."""
    at_once = table.get_type() == "class" or table.get_name() in _AT_ONCE
    deferred = deferred or not at_once
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            (later if deferred else now).add(symbol.get_name())
    for inner in table.get_children():
        _look_inside(inner, now, later, deferred=deferred)


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()

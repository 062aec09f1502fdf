"""Errors that name the read-only field that f wrote to; numpy's own error does not."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Iterator
from traceback import walk_tb
from types import TracebackType
from typing import Any

import numpy as np

from gridml.errors import ProgramError
from gridml.model.batch import Batch, Rows
from gridml.model.vertex import Vertex

_NUMPY_SAYS = ("assignment destination is read-only", "output array is read-only")


def name_written_field(error: BaseException, tables: Collection[Any]) -> BaseException:
    """Return a ProgramError that names the read-only field that f wrote to, with the traceback of `error`. Return
    `error` itself if it has another cause. `tables` are those of the chunk. Called only after f has failed, so batches
    that succeed take no longer."""
    if not (isinstance(error, ValueError) and str(error) in _NUMPY_SAYS):
        return error
    for values, names in _on_the_lines(error.__traceback__):
        written = _field(values, names, [table for table in tables if isinstance(table, Rows)])
        if written is not None:
            table, name = written
            try:
                table.check_writable(name)
            except ProgramError as named:
                named.__cause__ = error
                return named.with_traceback(error.__traceback__)
    return error


def _field(values: list[Any], names: set[str], tables: list[Rows]) -> tuple[Rows, str] | None:
    """Return the (table, field) that f wrote to, found by the name of an attribute or by the memory of an array."""
    for value in values:
        if isinstance(value, Batch | Vertex):
            table = getattr(value, "_rows" if isinstance(value, Batch) else "_store")
            if not isinstance(table, Rows):
                continue
            held = [name for name in table.vertex_type.arrays if name in names and name not in table.changed]
            if held:
                return table, held[0]
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            for table in tables:
                for name, column in table.fields.items():
                    if name not in table.changed and np.may_share_memory(value, column):
                        return table, name
    return None


def _on_the_lines(traceback: TracebackType | None) -> Iterator[tuple[list[Any], set[str]]]:
    """Yield (values of the variables, names of the attributes) on the current line of each frame, innermost first."""
    for frame, line in reversed([*walk_tb(traceback)]):
        try:
            nodes = [*ast.walk(ast.parse(linecache.getline(frame.f_code.co_filename, line).strip()))]
        except SyntaxError:  # the line is only a part of a statement
            continue
        targets = [target for node in nodes for target in _targets(node)]
        nodes = [node for target in targets for node in ast.walk(target)] or nodes
        names = [node.id for node in nodes if isinstance(node, ast.Name)]
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        yield [frame.f_locals[name] for name in names if name in frame.f_locals], attributes


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment; empty for any other statement."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign) else []

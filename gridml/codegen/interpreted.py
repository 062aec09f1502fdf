"""Stages as plain Python, for `gridml check` and for a debugger: the user's own lines run, on views of vertices.

The result is that of the compiled stage, bit for bit if that was compiled with `exact=True` and uses no function of
`math` on float32, whose last bit may differ. For that, numbers have the same dtypes as in compiled code, and changes of
accumulators and of fields with `add` are collected in the same way. An index out of range raises IndexError here, and
is not noticed in compiled code.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.kernel import Column, Kernel, checked
from gridml.codegen.stage_code import Code, Fields, called, field_target, is_max_of, own_functions
from gridml.model.stage_fields import accumulator
from gridml.model.stages import ApplyStage, Argument, ExchangeStage, Part

_MASK = 2**64 - 1
Array = NDArray[Any]
Columns = Mapping[str, Any]  # by field: its array, or a number


class VertexView:
    """A vertex, or an edge, of a stage that runs as plain Python."""

    __slots__ = ("_changes", "_columns", "_end", "_row")

    def __init__(self, columns: Columns, row: int, changes: PendingChanges, end: VertexView | None = None) -> None:
        for name, value in (("_columns", columns), ("_row", row), ("_changes", changes), ("_end", end)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "end" and self._end is not None:
            return self._end
        column = self._columns[name]
        return column if isinstance(column, np.generic) else column[self._row]

    def __setattr__(self, name: str, value: Any) -> None:
        self._columns[name][self._row] = value


class LinkViews:
    """The edges of one vertex: `gridml.Links`."""

    def __init__(self, each: Sequence[tuple[int, int]], link: Columns, end: Columns, changes: PendingChanges) -> None:
        self._each, self._link, self._end, self._changes = each, link, end, changes

    def __len__(self) -> int:
        return len(self._each)

    def __iter__(self) -> Iterator[VertexView]:
        for edge, end in self._each:
            yield VertexView(self._link, edge, self._changes, VertexView(self._end, end, self._changes))


class PendingChanges:
    """Changes that are in force only when a stage, or the mini-batch, ends."""

    def __init__(self, columns: Sequence[Column], arrays: Sequence[Any]) -> None:
        self._sums: dict[str, Array] = {}  # by column: the sums of the stage so far
        self._arrays: dict[str, tuple[accumulator, Array]] = {}
        self.logs: dict[str, list[tuple[int, Any]]] = {}  #: by column: (element of the flat array, change)
        for column, array in zip(columns, arrays, strict=True):
            access = column.access
            if access.is_summed:
                assert isinstance(access.declared, accumulator)
                self._arrays[access.array] = access.declared, array
                self._sums[access.array] = np.zeros_like(array)
            if column.logs:
                self.logs[access.array] = []

    def add(
        self, view: VertexView, column: str, row: int, index: tuple[int, ...], shape: tuple[int, ...], by: Any
    ) -> None:
        """Add to an element of a field."""
        if column in self._sums:
            place = index or (0,)
            self._sums[column][place] = self._sums[column][place] + by
            return
        flat = row
        for size, each in zip(shape, index, strict=True):
            if not -size <= each < size:
                raise IndexError(f"index {each} is out of bounds for axis with size {size}")
            flat = flat * size + int(each) % size
        self.logs[column].append((flat, by))

    def raise_to(self, column: str, index: tuple[int, ...], to: Any) -> None:
        """Raise an element of an accumulator to a number."""
        place = index or (0,)
        self._sums[column][place] = max(self._sums[column][place], to)

    def finish(self) -> None:
        """Add the sums of the stage to the accumulators."""
        for name, (declared, array) in self._arrays.items():
            total = self._sums[name]
            array[...] = array + total if declared.by == "add" else np.maximum(array, total)


class Draws:
    """The random numbers of one vertex, as generated code draws them."""

    def __init__(self) -> None:
        self._state = 0

    def begin(self, seed: int, vertex: int) -> None:
        self._state = seed ^ (vertex * 0xD1342543DE82EF95 & _MASK)
        self.next()

    def next(self) -> np.float64:
        """Return the next number in [0, 1)."""
        self._state = self._state + 0x9E3779B97F4A7C15 & _MASK
        z = self._state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        return np.float64((z ^ z >> 31) >> 11) * np.float64(2.0**-53)


def interpreted(stage: ExchangeStage | ApplyStage, kernel: Kernel, *, holds: bool = False) -> Callable[..., Any]:
    """Return a function that is called like the kernel of a stage, and runs its Python. `holds` as in `kernel_of`."""
    fields = checked(stage, holds=holds)
    dtype = fields.float_dtype(column.access for column in kernel.columns)
    draws = Draws()
    function = _function(fields.code, fields, dtype, draws)

    def run(*given: Any) -> Any:
        count = (5 if isinstance(stage, ExchangeStage) else 1) + 2 * kernel.draws
        span, rest = given[:count], given[count:]
        arrays, logs = rest[: len(kernel.columns)], rest[len(kernel.columns) :]
        changes = PendingChanges(kernel.columns, arrays)
        columns: dict[tuple[str, bool], dict[str, Any]] = {}
        for column, array in zip(kernel.columns, arrays, strict=True):
            access = column.access
            context = access.argument.part is Part.CONTEXT and bool(access.declared.shape)
            owned = columns.setdefault((access.argument.name, access.of_end), {})
            owned[access.name] = array[None] if context else array
        with np.errstate(all="ignore"):
            for arguments in _calls(stage, span, columns, changes, draws):
                function(*arguments)
        changes.finish()
        dtypes = [by.dtype for by in logs[1 : 2 * len(changes.logs) : 2]]
        return tuple(
            (np.array([at for at, _ in log], np.int64), np.array([by for _, by in log]).astype(dtype), len(log))
            for log, dtype in zip(changes.logs.values(), dtypes, strict=True)
        )

    return run


def _calls(
    stage: ExchangeStage | ApplyStage,
    span: Sequence[Any],
    columns: Mapping[tuple[str, bool], Columns],
    changes: PendingChanges,
    draws: Draws,
) -> Iterator[list[Any]]:
    """Yield the arguments of each call of the stage."""

    def view(argument: Argument, row: int) -> VertexView:
        return VertexView(columns.get((argument.name, False), {}), row, changes)

    if isinstance(stage, ApplyStage):
        for row in span[0].tolist():
            yield [view(each, row if each.part is Part.SCANNED else 0) for each in stage.arguments]
        return
    start, stop, begins, stops, ends, *drawn = span
    scanned = next(each for each in stage.arguments if each.part is Part.SCANNED)
    links = next((each for each in stage.arguments if each.part is Part.LINKS), None)
    if stage.is_turned:
        for end in range(start, stop):
            for edge in range(int(begins[end]), int(stops[end])):
                row = int(ends[edge])
                if stage.when is None or columns[scanned.name, False][stage.when][row]:
                    rows = {Part.SCANNED: row, Part.END: end, Part.LINK: edge, Part.CONTEXT: 0}
                    yield [view(argument, rows[argument.part]) for argument in stage.arguments]
        return
    for row in range(start, stop):
        if stage.when is not None and not columns[scanned.name, False][stage.when][row]:
            continue
        if drawn:
            draws.begin(int(drawn[0]), int(drawn[1][row]))
        edges = [(edge, int(ends[edge])) for edge in range(int(begins[row]), int(stops[row]))]
        if links is not None:
            each = LinkViews(edges, columns.get((links.name, False), {}), columns.get((links.name, True), {}), changes)
            yield [each if a is links else view(a, row if a is scanned else 0) for a in stage.arguments]
            continue
        for edge, end in edges:
            rows = {Part.SCANNED: row, Part.END: end, Part.LINK: edge, Part.CONTEXT: 0}
            yield [view(argument, rows[argument.part]) for argument in stage.arguments]


def _function(code: Code, fields: Fields | None, dtype: np.dtype[Any], draws: Draws) -> Callable[..., Any]:
    """Return one of the user's functions, at its own lines, with the numbers of compiled code."""
    names: dict[str, Any] = {**_builtins(), "_random": draws.next}
    tree = copy.deepcopy(code.tree)
    tree.decorator_list, tree.returns = [], None
    for argument in tree.args.args:
        argument.annotation = None
    numbered = _Numbers(code, fields, dtype, names)
    tree.body = [numbered.visit(statement) for statement in tree.body[len(tree.body) - len(code.body) :]]
    for name, function in own_functions(code, fields).items():
        names[f"_{name}"] = _function(Code.of(function), None, dtype, draws)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    scope = {**code.function.__globals__, **names}
    exec(compile(module, code.file, "exec"), scope)
    made: Callable[..., Any] = scope[code.tree.name]
    return made


class _Numbers(ast.NodeTransformer):
    """Gives numbers the dtypes of compiled code, and turns collected changes into calls."""

    def __init__(self, code: Code, fields: Fields | None, dtype: np.dtype[Any], names: dict[str, Any]) -> None:
        self._code = code
        self._fields = fields
        self._dtype = dtype
        self._names = names

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            return node
        return self._named(node, node.value)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id in (*self._code.stored, *self._code.parameters):
            return node
        value = self._code.lookup(node.id)
        return self._named(node, value) if isinstance(value, int | float) and not isinstance(value, bool) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self._fields is not None and self._fields.find(node) is not None:
            return node
        if isinstance(node.value, ast.Name) and node.value.id not in (*self._code.stored, *self._code.parameters):
            value = getattr(self._code.lookup(node.value.id), node.attr)
            return self._named(node, value) if isinstance(value, int | float) else node
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        node.left = self.visit(node.left)
        if not (isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant)):  # x ** 2 keeps the dtype of x
            node.right = self.visit(node.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if self._fields is not None and self._fields.draws(node):
            return ast.copy_location(ast.Call(ast.Name("_random", ast.Load()), [], []), node)
        what = called(self._code, node)
        node.args = [self.visit(each) for each in node.args]
        if isinstance(what, FunctionType):
            name = f"_{what.__name__}"
        elif what.startswith("math."):
            name = f"_math_{what[5:]}"
            self._names[name] = _typed(getattr(math, what[5:]))
        elif what.startswith("np."):
            name = f"_np_{what[3:]}"
            self._names[name] = getattr(np, what[3:])
        else:
            name = f"_builtin_{what}"
        node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        assert node.value is not None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        raised = is_max_of(target, node.value) if len(node.targets) == 1 else None
        if raised is not None and self._collected(target):
            return self._call("_raise", target, node, self.visit(raised))
        self.generic_visit(node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if self._collected(node.target):
            value = self.visit(node.value)
            value = ast.UnaryOp(ast.USub(), value) if isinstance(node.op, ast.Sub) else value
            return self._call("_add", node.target, node, value)
        self.generic_visit(node)
        return node

    def _collected(self, target: ast.expr) -> bool:
        access = None if self._fields is None else self._fields.find(field_target(target))
        if access is None or self._fields is None:
            return False
        return access.is_summed or self._fields.logs(access)

    def _call(self, name: str, target: ast.expr, node: ast.stmt, value: ast.expr) -> ast.stmt:
        """Return a call of `_add` or `_raise` for the element that is written."""
        assert self._fields is not None
        field = field_target(target)
        access = self._fields.find(field)
        assert access is not None and isinstance(field, ast.Attribute)
        given: list[ast.expr] = []
        if isinstance(target, ast.Subscript):
            given = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        index = ast.Tuple([self.visit(each) for each in given], ast.Load())
        shape = ast.Tuple([ast.Constant(size) for size in access.declared.shape], ast.Load())
        call = ast.Call(ast.Name(name, ast.Load()), [field.value, ast.Constant(access.array), index, shape, value], [])
        return ast.copy_location(ast.Expr(call), node)

    def _named(self, node: ast.expr, value: Any) -> ast.expr:
        """Return a name that stands for a number with its dtype."""
        name = f"_number_{len(self._names)}"
        kind: Any = (
            type(value) if isinstance(value, np.number) else np.int64 if isinstance(value, int) else self._dtype.type
        )
        self._names[name] = kind(value)
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _add(view: VertexView, column: str, index: tuple[int, ...], shape: tuple[int, ...], by: Any) -> None:
    view._changes.add(view, column, view._row, index, shape, by)


def _raise(view: VertexView, column: str, index: tuple[int, ...], shape: tuple[int, ...], to: Any) -> None:
    view._changes.raise_to(column, index, to)


def _builtins() -> dict[str, Any]:
    """Return the functions that stages may call, with the types of their results in compiled code."""

    def chosen(choose: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *values: np.result_type(*values).type(choose(*values))

    made = {
        "abs": abs,
        "min": chosen(builtins.min),
        "max": chosen(builtins.max),
        "range": lambda *given: map(np.int64, range(*map(int, given))),
        "len": lambda values: np.int64(len(values)),
        "int": np.int64,
        "float": np.float64,
        "bool": np.bool_,
    }
    return {
        **{f"_builtin_{name}": value for name, value in made.items()},
        "_add": _add,
        "_raise": _raise,
    }


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `math` whose result has the dtype of its arguments. Where math raises, it is NaN or
    infinity, as in compiled code."""

    def call(*values: Any) -> Any:
        kind = np.result_type(*values)
        kind = kind if kind.kind == "f" else np.dtype(np.float64)
        try:
            found = function(*(value.item() if isinstance(value, np.generic) else value for value in values))
        except OverflowError:
            found = math.inf
        except ValueError:
            found = math.nan
        return found if isinstance(found, bool) else np.int64(found) if isinstance(found, int) else kind.type(found)

    return call

"""The source of a kernel: a stage as a function of arrays, in a Python module that numba compiles.

The text depends on the stage, and on the dtypes of fields and numbers. Values of the module's numbers are arguments, so
that loops over them are not unrolled, and that changing one compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from gridml.codegen.rewrite import (
    Access,
    Code,
    Fields,
    called,
    check_nodes,
    field_target,
    is_max_of,
    number_named,
    own_functions,
)
from gridml.model.stage_fields import accumulator, scratch
from gridml.model.stages import ApplyStage, ExchangeStage, Part

_LOGS = """def _grown(values):
    longer = np.empty(2 * len(values), values.dtype)
    longer[: len(values)] = values
    return longer


def _at(index, size):  # of a flat array, in which a negative index would mean another row
    return index + size if index < 0 else index
""".splitlines()

# SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). `gridml.codegen.interpreted` computes the same.
_RANDOM = """def _random(state):
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 1.1102230246251565e-16
""".splitlines()

# Flags of LLVM that let it vectorise sums. Those that assume finite numbers are left out: NaN stays NaN.
FAST = ("arcp", "contract", "nsz", "reassoc")


@dataclass(frozen=True)
class Column:
    """An argument of a kernel: an array, or a number of a context."""

    access: Access
    is_number: bool  #: the field of a context that is one number, which the stage only reads
    is_written: bool
    logs: bool  #: changes go to a log, which is two more arguments


@dataclass(frozen=True)
class Kernel:
    """A stage as source."""

    text: str  #: of the module, which defines `kernel`
    columns: tuple[Column, ...]  #: the arguments behind the range, in order
    numbers: tuple[tuple[str, Any], ...]  #: the arguments behind these: numbers of the module, by name
    lines: dict[int, tuple[str, int]]  #: by line of `text`: file and line of the user's
    when: str | None
    draws: bool = False  #: two more arguments follow the range: a seed, and the ids of the scanned vertices


def kernel_of(stage: ExchangeStage | ApplyStage, *, exact: bool = False) -> Kernel:
    """Return the kernel of a stage. Raises StageError, at the user's line, for what cannot be compiled."""
    return _Writer(stage, exact=exact).kernel()


def checked(stage: ExchangeStage | ApplyStage) -> Fields:
    """Check the code of a stage, and return its fields. Raises StageError."""
    code = Code.of(stage.function)
    check_nodes(code, code.body, returns=False)
    for node in (each for statement in code.body for each in ast.walk(statement)):
        if isinstance(node, ast.For | ast.While):
            _check_returns(code, node)
    return Fields(stage, code)


def _check_returns(code: Code, loop: ast.For | ast.While) -> None:
    """Raise StageError for a return inside a loop: in generated code a stage is itself the body of a loop."""
    inside = [node for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.Return)]
    if inside:
        raise code.error(
            inside[0], "return inside a loop is not compiled; leave the loop with break, and test a variable."
        )


class _Writer:
    def __init__(self, stage: ExchangeStage | ApplyStage, *, exact: bool) -> None:
        self._stage = stage
        self._fields = checked(stage)
        self._code = self._fields.code
        self._exact = exact
        self._text: list[str] = []
        self._lines: dict[int, tuple[str, int]] = {}

    def kernel(self) -> Kernel:
        edges = isinstance(self._stage, ExchangeStage)
        pass_one = _Rewriter(self._fields, np.dtype(np.float64))
        for statement in self._code.body:
            pass_one.visit(copy.deepcopy(statement))  # finds the fields; the numbers' dtype follows from these
        dtype = self._fields.float_dtype(pass_one.accesses.values())
        rewriter = _Rewriter(self._fields, dtype, pass_one.written)
        body = [each for statement in self._code.body for each in _listed(rewriter.visit(copy.deepcopy(statement)))]
        columns = [self._column(name, access, rewriter) for name, access in sorted(rewriter.accesses.items())]
        when = self._when() if edges else None
        if when is not None and when.array not in rewriter.accesses:
            columns.append(Column(when, is_number=False, is_written=False, logs=False))
        numbers = {name: _narrowed(value, dtype) for name, value in sorted(rewriter.numbers.items())}
        self._header(columns, draws=rewriter.draws)
        for name, function in own_functions(self._code, self._fields).items():
            self._function(name, function, dtype)
        self._kernel(columns, list(numbers), body, when, draws=rewriter.draws)
        text, named = "\n".join([*self._text, ""]), None if when is None else when.array
        return Kernel(text, tuple(columns), tuple(numbers.items()), self._lines, named, rewriter.draws)

    def _when(self) -> Access | None:
        if not isinstance(self._stage, ExchangeStage) or self._stage.when is None:
            return None
        scanned = next(each for each in self._stage.arguments if each.part is Part.SCANNED)
        assert scanned.type is not None
        declared = scanned.type.arrays[self._stage.when]
        return Access(scanned, False, scanned.name, self._stage.when, declared, scanned.type)

    def _column(self, name: str, access: Access, rewriter: _Rewriter) -> Column:
        written, logs = name in rewriter.written, name in rewriter.written and self._fields.logs(access)
        single = access.argument.part is Part.CONTEXT and not access.declared.shape
        return Column(access, single and (logs or not written), written and not logs, logs)

    def _header(self, columns: Sequence[Column], *, draws: bool) -> None:
        shapes = [f"{c.access}: {c.access.declared.dtype}{list(c.access.declared.shape)}" for c in columns]
        self._text += [
            f'"""Stage {self._stage.name}, generated by gridml. Fields: {", ".join(shapes)}."""',
            "",
            "import math",
            "",
            "import numpy as np",
            "",
            "from gridml.codegen.compiled import compiled",
            "",
        ]
        helpers = [(("_grown", "_at"), _LOGS)] if any(column.logs for column in columns) else []
        for names, lines in (*helpers, *([(("_random",), _RANDOM)] if draws else [])):
            self._text += ["", *lines, ""]
            self._text += [f"{name} = compiled({name}, {self._options()}, keep=False)" for name in names]

    def _options(self) -> str:
        return f"fast={() if self._exact else FAST!r}"

    def _function(self, name: str, function: FunctionType, dtype: np.dtype[Any]) -> None:
        """Write one of the user's plain functions. Its numbers are constants."""
        code = Code.of(function)
        check_nodes(code, code.body, returns=True)
        rewriter = _PlainRewriter(code, dtype)
        body = [each for statement in code.body for each in _listed(rewriter.visit(copy.deepcopy(statement)))]
        self._text += ["", f"def _{name}({', '.join(code.parameters)}):"]
        self._body(code, body, 1)
        self._text += ["", f"_{name} = compiled(_{name}, {self._options()}, keep=False)", ""]

    def _kernel(
        self,
        columns: Sequence[Column],
        numbers: Sequence[str],
        body: list[ast.stmt],
        when: Access | None,
        *,
        draws: bool,
    ) -> None:
        exchange, text = isinstance(self._stage, ExchangeStage), self._text
        logs = [column.access.array for column in columns if column.logs]
        arguments = ["_start", "_stop", "_offsets", "_ends"] if exchange else ["_order"]
        arguments += ["_seed", "_ids"] * draws
        arguments += [column.access.array for column in columns]
        arguments += [f"{name}{part}" for name in logs for part in ("__at", "__by")]
        text += ["", f"def kernel({', '.join([*arguments, *numbers])}):"]
        text += [f"    {name}__n = 0" for name in logs]
        sums = [column.access for column in columns if isinstance(column.access.declared, accumulator)]
        for access in sums:
            zero = f"np.zeros_like({access.array})" if access.declared.shape else f"np.{access.declared.dtype}(0)"
            text += [f"    {access.array}__sum = {zero}"]
        depth = 2
        text += ["    _state = np.empty(1, np.uint64)"] * draws
        if exchange:
            text += ["    for _x in range(_start, _stop):"]
            # A vertex draws the same numbers wherever, and however often, it is trained in a pass.
            text += ["        _state[0] = _seed ^ (np.uint64(_ids[_x]) * np.uint64(0xD1342543DE82EF95))"] * draws
            text += ["        _random(_state)"] * draws
            text += [f"        if not {when.array}[_x]:", "            continue"] * (when is not None) if when else []
            if not any(each.part is Part.LINKS for each in self._stage.arguments):
                text += ["        for _e in range(_offsets[_x], _offsets[_x + 1]):", "            _y = _ends[_e]"]
                depth = 3
        else:
            text += ["    for _i in range(len(_order)):", "        _x = _order[_i]"]
        self._body(self._code, body, depth)
        for access in sums:
            name, declared = access.array, access.declared
            assert isinstance(declared, accumulator)
            if declared.by == "add":
                text += [f"    {name}[{':' if declared.shape else '0'}] += {name}__sum"]
            elif declared.shape:
                text += [f"    {name}[:] = np.maximum({name}, {name}__sum)"]
            else:
                text += [f"    {name}[0] = max({name}[0], {name}__sum)"]
        if logs:
            text += [f"    return {', '.join(f'({name}__at, {name}__by, {name}__n)' for name in logs)},"]
        text += ["", "", f"kernel = compiled(kernel, {self._options()})"]

    def _body(self, code: Code, body: Iterable[ast.stmt], depth: int) -> None:
        """Append statements, and record which line of the user's each comes from."""
        whole = ast.fix_missing_locations(ast.Module(list(body), []))
        written = ast.unparse(whole)
        pairs = zip(_statements(whole), _statements(ast.parse(written)), strict=True)
        for mine, theirs in pairs:
            self._lines[len(self._text) + theirs.lineno] = code.file, mine.lineno
        self._text += [f"{'    ' * depth}{line}" for line in written.splitlines()]


def _statements(tree: ast.AST) -> list[ast.stmt]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _listed(nodes: Any) -> list[ast.stmt]:
    return nodes if isinstance(nodes, list) else [nodes]


def _narrowed(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number of the user's as an argument of a kernel: a float in `dtype`, others as they are."""
    return dtype.type(value) if type(value) is float else value


class _PlainRewriter(ast.NodeTransformer):
    """Rewrites a function of numbers: numbers with a point get their dtype, and functions their generated names."""

    def __init__(self, code: Code, dtype: np.dtype[Any]) -> None:
        self._code = code
        self._dtype = dtype

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self._number(node, node.value) if isinstance(node.value, float) else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = None if isinstance(node.ctx, ast.Store) else number_named(self._code, node)
        return node if value is None else self._named(node, node.id, value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in self._code.parameters and node.attr == "shape":
            return node  # of an array that the function is given
        return self._number(node, number_named(self._code, node))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        what = called(self._code, node)
        name = what if isinstance(what, str) else f"_{what.__name__}"
        func = ast.parse(name, mode="eval").body
        return ast.copy_location(ast.Call(func, [self._argument(each) for each in node.args], []), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            raise self._code.error(node, "a variable is declared without a value; give it one.")
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def _argument(self, node: ast.expr) -> ast.expr:
        visited: ast.expr = self.visit(node)
        return visited

    def _named(self, node: ast.expr, name: str, value: Any) -> ast.expr:
        return self._number(node, value)

    def _number(self, node: ast.expr, value: Any) -> ast.expr:
        """Return a number as a constant of its dtype."""
        typed = _narrowed(value, self._dtype)
        text = repr(typed)
        if isinstance(typed, np.number):
            plain = {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}.get(str(typed), repr(typed.item()))
            text = f"np.{typed.dtype}({plain})"
        return ast.copy_location(ast.parse(text, mode="eval").body, node)


class _Rewriter(_PlainRewriter):
    """Rewrites the body of a stage."""

    def __init__(self, fields: Fields, dtype: np.dtype[Any], written: Collection[str] = ()) -> None:
        """`written` names the arrays that the stage writes, once that is known."""
        super().__init__(fields.code, dtype)
        self._fields = fields
        self._in_place = written
        self.accesses: dict[str, Access] = {}  #: by name of the array
        self.written: set[str] = set()  #: names of the arrays that are written
        self.numbers: dict[str, Any] = {}  #: numbers of the module, by name
        self.draws = False  #: True if the stage draws random numbers

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return ast.copy_location(ast.Continue(), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        if not (isinstance(node.iter, ast.Name) and isinstance(node.target, ast.Name)):
            if not (isinstance(node.iter, ast.Call) and called(self._code, node.iter) == "range"):
                raise self._code.error(
                    node,
                    f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)} is not "
                    f"compiled; write a loop over range(n), or over an argument gridml.Links.",
                )
            self.generic_visit(node)
            return node
        if node.target.id not in self._fields.loops or node.iter.id != self._fields.loops[node.target.id].name:
            raise self._code.error(
                node,
                f"a loop over {node.iter.id} is not compiled; write range(n), or loop over an argument gridml.Links.",
            )
        link = node.target.id
        body = [each for statement in node.body for each in _listed(self.visit(statement))]
        find = ast.parse(f"_y_{link} = _ends[_e_{link}]").body[0]
        span = ast.parse("range(_offsets[_x], _offsets[_x + 1])", mode="eval").body
        target = ast.Name(f"_e_{link}", ast.Store())
        loop = ast.For(target, span, [ast.copy_location(find, node), *body], [])
        return ast.copy_location(loop, node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        if len(node.targets) == 1:
            target, access = node.targets[0], self._find(field_target(node.targets[0]))
            raised = None if access is None else is_max_of(target, node.value)
            if access is not None and raised is not None and isinstance(access.declared, accumulator):
                self._fields.check_write(access, node, adds=False, raises=True)
                place = self._place(access, target, ast.Store())
                now = self._place(access, target, ast.Load())
                value = ast.Call(ast.Name("max", ast.Load()), [now, self.visit(raised)], [])
                return ast.copy_location(ast.Assign([place], value), node)
        node.value = self.visit(node.value)
        node.targets = [self._target(each) for each in node.targets]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        access = self._find(field_target(node.target))
        if access is None:
            if not isinstance(node.target, ast.Name):
                raise self._code.error(node, f"{ast.unparse(node.target)} is no field that a stage can change.")
            node.value = self.visit(node.value)
            return node
        adds = isinstance(node.op, ast.Add | ast.Sub)
        self._fields.check_write(access, node, adds=adds, raises=False)
        value = self.visit(node.value)
        if self._fields.logs(access):
            return self._log(access, node, value)
        if not (isinstance(access.declared, accumulator) or not access.declared.travels):
            self._fields.check_read(access, node)
        place = self._place(access, node.target, ast.Store())
        assert isinstance(place, ast.Name | ast.Subscript)
        return ast.copy_location(ast.AugAssign(place, node.op, value), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._fields.arguments or node.id in self._fields.loops:
            held = self._fields.arguments.get(node.id) or self._fields.loops[node.id]
            what = sorted(self._fields.link_fields) if held.type is None else sorted(self._fields._fields(held.type))
            raise self._code.error(node, f"{node.id} stands alone; use one of its fields {what}.")
        return super().visit_Name(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        access = self._find(node)
        if access is None:
            return super().visit_Attribute(node)
        if access.declared.shape:
            raise self._code.error(
                node, f"{access} is an array of shape {access.declared.shape}; use its elements, {access}[i]."
            )
        self._fields.check_read(access, node)
        return self._place(access, node, ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        access = self._find(node.value)
        if access is None:
            if isinstance(node.value, ast.Attribute | ast.Subscript | ast.Call):
                raise self._code.error(node, f"{ast.unparse(node)} is no element of a field; write user.p[i, j].")
            raise self._code.error(node, f"{ast.unparse(node.value)} has no elements; only fields have.")
        self._fields.check_read(access, node)
        return self._place(access, node, ast.Load())

    def _argument(self, node: ast.expr) -> ast.expr:
        """Rewrite an argument of a call: an array may be given whole to a function of the user's."""
        access = self._find(node)
        if access is None or not access.declared.shape:
            return super()._argument(node)
        self._fields.check_read(access, node)
        self._use(access, write=isinstance(access.declared, scratch))  # a function may write into working memory only
        return self._indexed(access, [], ast.Load(), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        func = node.func
        if self._fields.draws(node):
            self.draws = True
            return ast.copy_location(ast.parse("_random(_state)", mode="eval").body, node)
        if (
            isinstance(func, ast.Name)
            and func.id == "len"
            and len(node.args) == 1
            and isinstance(node.args[0], ast.Name)
        ):
            argument = self._fields.arguments.get(node.args[0].id)
            if argument is not None and argument.part is Part.LINKS:
                return ast.copy_location(ast.parse("(_offsets[_x + 1] - _offsets[_x])", mode="eval").body, node)
        return super().visit_Call(node)

    def _named(self, node: ast.expr, name: str, value: Any) -> ast.expr:
        self.numbers[name] = value
        return node

    def _find(self, node: ast.expr) -> Access | None:
        return self._fields.find(node)

    def _use(self, access: Access, *, write: bool = False) -> None:
        self.accesses[access.array] = access
        if write:
            self.written.add(access.array)

    def _target(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._target(each) for each in node.elts], ast.Store()), node)
        access = self._find(field_target(node))
        if access is None:
            if isinstance(node, ast.Name) and node.id in (*self._fields.arguments, *self._fields.loops):
                raise self._code.error(node, f"{node.id} was assigned, which is an argument; use another name.")
            if not isinstance(node, ast.Name):
                raise self._code.error(node, f"{ast.unparse(node)} is no field that a stage can change.")
            return node
        self._fields.check_write(access, node, adds=False, raises=False)
        return self._place(access, node, ast.Store())

    def _place(self, access: Access, node: ast.expr, ctx: ast.expr_context) -> ast.expr:
        """Return the element that `node` (user.p[f], at.loss) means, in the arrays of the kernel."""
        self._use(access, write=isinstance(ctx, ast.Store))
        inside: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            given = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            inside = [self.visit(copy.deepcopy(each)) for each in given]
        shape = access.declared.shape
        if len(inside) != len(shape):
            of = f"an array of shape {shape}" if shape else "one number"
            wanted = f"{access}[{', '.join('ijklmn'[: len(shape)])}]" if shape else f"{access}"
            raise self._code.error(node, f"{access} is {of}; write {wanted}, an element.")
        return self._indexed(access, inside, ctx, node)

    def _indexed(self, access: Access, inside: list[ast.expr], ctx: ast.expr_context, node: ast.expr) -> ast.expr:
        name, part = access.array, access.argument.part
        if isinstance(access.declared, accumulator):
            name = f"{name}__sum"
            if not inside:
                return ast.copy_location(ast.Name(name, ctx), node)
            first: list[ast.expr] = []
        elif part is Part.CONTEXT:
            if not access.declared.shape:
                # A number that does not change while the kernel runs is an argument itself, and no array of one.
                first = [ast.Constant(0)] if name in self._in_place and not self._fields.logs(access) else []
            else:
                first = []
            if not first and not inside:
                return ast.copy_location(ast.Name(name, ctx), node)
        else:
            first = [ast.Name(self._row(access), ast.Load())]
        index = [*first, *inside]
        where = index[0] if len(index) == 1 else ast.Tuple(index, ast.Load())
        return ast.copy_location(ast.Subscript(ast.Name(name, ast.Load()), where, ctx), node)

    def _log(self, access: Access, node: ast.AugAssign, value: ast.expr) -> list[ast.stmt]:
        """Return statements that append a change to the log of a field: (element of the flat array, change)."""
        element = self._place(access, node.target, ast.Store())
        index: list[ast.expr] = []
        if isinstance(element, ast.Subscript):
            index = element.slice.elts if isinstance(element.slice, ast.Tuple) else [element.slice]
        at = "0"
        inner = index[len(index) - len(access.declared.shape) :]
        if len(inner) < len(index):
            at = ast.unparse(index[0])  # the row
        for size, each in zip(access.declared.shape, inner, strict=True):
            at = f"({at}) * {size} + _at({ast.unparse(each)}, {size})"
        name, sign = access.array, "-" if isinstance(node.op, ast.Sub) else ""
        lines = f"""
if {name}__n == len({name}__at):
    {name}__at, {name}__by = _grown({name}__at), _grown({name}__by)
{name}__at[{name}__n] = {at}
{name}__by[{name}__n] = {sign}({ast.unparse(value)})
{name}__n += 1
"""
        made = ast.parse(lines).body
        for statement in made:
            for inside in ast.walk(statement):
                ast.copy_location(inside, node)
        return made

    @staticmethod
    def _row(access: Access) -> str:
        match access.argument.part:
            case Part.SCANNED:
                return "_x"
            case Part.END:
                return "_y"
            case Part.LINK:
                return "_e"
        return f"_y_{access.owner}" if access.of_end else f"_e_{access.owner}"

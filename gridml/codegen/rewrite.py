"""Rewriting of stages: a field of a vertex becomes an element of an array.

In a stage, `user.p[f]` becomes `_user__p[_x, f]`, where `_x` is the row of the vertex that the stage looks at, `_y` the
row of the edge's end, `_e` the edge; with `Links`, `_e_link` and `_y_link` belong to the variable of the loop. Numbers
with a point get their dtype.
"""

from __future__ import annotations

import ast
import copy
import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np

from gridml.codegen.stage_code import Access, Code, Fields, called, field_target, is_max_of, number_named
from gridml.model.stage_fields import accumulator, scratch
from gridml.model.stages import Part

MAX_TOTALLED = 1 << 12  # elements of a field


def listed(nodes: Any) -> list[ast.stmt]:
    return nodes if isinstance(nodes, list) else [nodes]


def narrowed(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number of the user's as an argument of a kernel: a float in `dtype`, others as they are."""
    return dtype.type(value) if type(value) is float else value


def is_totalled(access: Access) -> bool:
    """Return whether changes of a field, which go to a log, are first added up: whole numbers of a context, as their
    sum is the same in any order, and many vertices change the same few."""
    few = math.prod(access.declared.shape) <= MAX_TOTALLED
    return access.argument.part is Part.CONTEXT and access.declared.dtype.kind in "iu" and few


def grows(name: str, room: str) -> str:
    """Return the statement that makes room in the log of an array."""
    both = f"{name}__at, {name}__by"
    return f"while len({name}__at) < {room}:\n    {both} = _grown({name}__at), _grown({name}__by)"


class PlainRewriter(ast.NodeTransformer):
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
        typed = narrowed(value, self._dtype)
        text = repr(typed)
        if isinstance(typed, np.number):
            plain = {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}.get(str(typed), repr(typed.item()))
            text = f"np.{typed.dtype}({plain})"
        return ast.copy_location(ast.parse(text, mode="eval").body, node)


class StageRewriter(PlainRewriter):
    """Rewrites the body of a stage."""

    def __init__(
        self,
        fields: Fields,
        dtype: np.dtype[Any],
        written: Collection[str] = (),
        unbounded: Collection[str] = (),
        *,
        gathers: bool = True,
    ) -> None:
        """`written` names the arrays that the stage writes, once that is known, and `unbounded` those whose log may
        have any number of changes for an edge. `gathers`: the kernel sums up what all edges to one end add."""
        super().__init__(fields.code, dtype)
        self._fields = fields
        self._in_place = written
        self._gathers = gathers
        self._checked = unbounded
        self._loops: list[bool] = []  # around the statement: True for a loop over links
        self.changes: Counter[str] = Counter()  #: statements that append to a log, by name of the array
        self.unbounded: set[str] = set()  #: names of the arrays for which such a statement is in a loop of another kind
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
            return self._loop(node)
        if node.target.id not in self._fields.loops or node.iter.id != self._fields.loops[node.target.id].name:
            raise self._code.error(
                node,
                f"a loop over {node.iter.id} is not compiled; write range(n), or loop over an argument gridml.Links.",
            )
        link = node.target.id
        self._loops.append(True)
        body = [each for statement in node.body for each in listed(self.visit(statement))]
        self._loops.pop()
        find = ast.parse(f"_y_{link} = np.uint32(_ends[_e_{link}])").body[0]
        # An unsigned index needs no test for a negative one, which takes a third of the time.
        span = ast.parse("range(np.uint64(_from[_x]), np.uint64(_to[_x]))", mode="eval").body
        target = ast.Name(f"_e_{link}", ast.Store())
        loop = ast.For(target, span, [ast.copy_location(find, node), *body], [])
        return ast.copy_location(loop, node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.While) -> ast.stmt:
        self._loops.append(False)
        self.generic_visit(node)
        self._loops.pop()
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        if len(node.targets) == 1:
            target, access = node.targets[0], self._find(field_target(node.targets[0]))
            by = access.declared.by if access is not None and isinstance(access.declared, accumulator) else "max"
            raised = None if access is None else is_max_of(target, node.value, by)
            if access is not None and raised is not None and isinstance(access.declared, accumulator):
                self._fields.check_write(access, node, adds=False, raises=True)
                place = self._place(access, target, ast.Store())
                now = self._place(access, target, ast.Load())
                value = ast.Call(ast.Name(by, ast.Load()), [now, self.visit(raised)], [])
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
        if not (isinstance(access.declared, accumulator) or not access.travels):
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
                return ast.copy_location(ast.parse("(_to[_x] - _from[_x])", mode="eval").body, node)
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
        if access.is_gathered and self._gathers:
            return ast.copy_location(ast.Name(f"{name}__sum", ctx), node)
        if access.is_summed:
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
        if self._loops not in ([], [True]):
            self.unbounded.add(access.array)
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
        name, change = access.array, f"{'-' if isinstance(node.op, ast.Sub) else ''}({ast.unparse(value)})"
        if is_totalled(access):
            lines = f"{name}__total[{at}] += np.{access.declared.dtype}({change})"
        else:
            self.changes[name] += 1
            lines = f"{grows(name, f'{name}__n + 1')}\n" if name in self._checked else ""
            lines += f"{name}__at[{name}__n] = {at}\n{name}__by[{name}__n] = {change}\n{name}__n += 1"
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

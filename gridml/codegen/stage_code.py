"""The code of stages: what it may contain, and which fields it may read and write.

A stage may have loops, conditions, numbers, fields and indices, functions of `math`, numbers of the module, and plain
functions that contain only these. An error names the user's file and line, and says what to write instead.

Numbers: an integer is an int64. A number with a point, and a number of the module, has the widest floating-point dtype
among the fields that the stage uses, accumulators left aside: float32 if all are float32, else float64.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gridml.aggregates import rule_for
from gridml.aggregates.sums import Add, Owned
from gridml.errors import ProgramError
from gridml.model.stage_fields import accumulator, derived, scratch
from gridml.model.stages import ApplyStage, Argument, ExchangeStage, Part, StageFunction, uniform
from gridml.model.vertex import VertexType, array, edge

BUILTINS = frozenset(("abs", "min", "max", "range", "len", "int", "float", "bool"))
NUMBERS = frozenset(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)) - {
    "float8",
    "float16",
}  # constructors of numpy that stages may call

# What to write instead of a statement or an expression that is not compiled.
_LOOP = "write a loop, for i in range(n) or for link in links, and count or add up in it"
_INSTEAD: dict[type[ast.AST], str] = {
    ast.Try: "errors cannot be caught in a stage; test the value with if",
    ast.Raise: "a stage raises no errors; leave the vertex out with return, or count the case in an accumulator",
    ast.Assert: "a stage raises no errors; write if, and count the case in an accumulator",
    ast.With: "with has no use in a stage; leave it out",
    ast.Lambda: "write a function with def at the top level of the file, and call it",
    ast.FunctionDef: "write the function at the top level of the file, and call it",
    ast.ListComp: _LOOP,
    ast.SetComp: _LOOP,
    ast.DictComp: _LOOP,
    ast.GeneratorExp: _LOOP,
    ast.List: "declare a field for it, such as gridml.scratch of a context, and write its elements",
    ast.Dict: "declare a field for it, such as gridml.scratch of a context, and write its elements",
    ast.Set: "declare a field for it, such as gridml.scratch of a context, and write its elements",
    ast.JoinedStr: "stages have numbers only, and no text; leave it out",
    ast.Slice: "write a loop over the elements: for i in range(n)",
    ast.Starred: "write out the elements",
    ast.Global: "put the number into a field of a context",
    ast.Nonlocal: "put the number into a field of a context",
    ast.Import: "import it at the top of the file",
    ast.ImportFrom: "import it at the top of the file",
    ast.Delete: "nothing is deleted in a stage; leave it out",
    ast.NamedExpr: "assign the variable on a line of its own",
    ast.Yield: "a stage gives nothing back; leave it out",
    ast.YieldFrom: "a stage gives nothing back; leave it out",
    ast.Await: "a stage waits for nothing; leave it out",
    ast.Match: "write if and elif",
    ast.ClassDef: "declare it at the top level of the file",
    ast.MatMult: "write a loop over the elements: for i in range(n)",
    ast.In: "compare the elements in a loop: for i in range(n)",
    ast.NotIn: "compare the elements in a loop: for i in range(n)",
    ast.Is: "compare with ==",
    ast.IsNot: "compare with !=",
}
_ALLOWED = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass, ast.Return,
    ast.Expr, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Constant, ast.Name,
    ast.Attribute, ast.Subscript, ast.Tuple, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.keyword,
)  # fmt: skip


class StageError(ProgramError):
    """A stage has something that cannot be compiled, at a line of the user's file."""


_TREES: WeakKeyDictionary[FunctionType, ast.FunctionDef] = WeakKeyDictionary()  # reading one takes a millisecond


def _tree(function: FunctionType) -> ast.FunctionDef:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError) as error:
        raise ProgramError(
            f"the source of {function.__name__} cannot be read ({error}); write it with def, in a file."
        ) from error
    if not isinstance(tree, ast.FunctionDef):
        raise ProgramError(f"{function.__name__} is not written with def; write it so, in a file.")
    ast.increment_lineno(tree, first - 1)
    return tree


@dataclass(frozen=True)
class Code:
    """The source of one of the user's functions."""

    function: FunctionType
    tree: ast.FunctionDef = field(repr=False)  #: with the line numbers of the file

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Code:
        """Read the source of a function. Raises ProgramError if it is not in a file."""
        assert isinstance(function, FunctionType)
        if function not in _TREES:
            _TREES[function] = _tree(function)
        return cls(function, _TREES[function])

    @property
    def file(self) -> str:
        return inspect.getsourcefile(self.function) or self.function.__code__.co_filename

    @property
    def body(self) -> list[ast.stmt]:
        """The statements, without the docstring."""
        first = self.tree.body[0]
        documents = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        return self.tree.body[1:] if documents else self.tree.body

    @cached_property
    def stored(self) -> frozenset[str]:
        """The names of local variables that the function assigns."""
        names = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name))
        return frozenset(node.id for node in names if isinstance(node.ctx, ast.Store))

    @cached_property
    def parameters(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)

    def lookup(self, name: str) -> Any:
        """Return the value of a name that is not local. Raises KeyError if there is none."""
        free = self.function.__code__.co_freevars
        if name in free and self.function.__closure__ is not None:
            return self.function.__closure__[free.index(name)].cell_contents
        if name in self.function.__globals__:
            return self.function.__globals__[name]
        return vars(builtins)[name]

    def error(self, node: ast.AST, message: str) -> StageError:
        """Return an error that names the file and the line of a node."""
        return StageError(f"{Path(self.file).name}:{getattr(node, 'lineno', self.tree.lineno)}: {message}")


@dataclass(frozen=True)
class Access:
    """A field of a vertex or of an edge, as a stage writes it: `user.p`, `rating.weight`, `token.end.count`."""

    argument: Argument
    of_end: bool  #: True: of the vertex at the end of an edge of `Links`
    owner: str  #: the variable: an argument, or the variable of a loop over `Links`
    name: str
    declared: array
    type: VertexType | None  #: None for a field of the edge
    before: bool = False  #: True: of another local vertex, as the last pass left it

    @property
    def array(self) -> str:
        """The name of the array in generated code. Two underscores, which no name of a stage has, keep names apart."""
        return f"_{self.owner}__{'end__' * self.of_end}{self.name}"

    @property
    def travels(self) -> bool:
        """False for working memory: of stages, and the accumulators of local vertices."""
        return self.type is None or self.name in self.type.arrays

    @property
    def is_gathered(self) -> bool:
        """True for a number that a kernel sums up over all edges to one end."""
        return (
            isinstance(self.declared, accumulator)
            and self.argument.part is Part.END
            and not (self.travels or self.declared.shape)
        )

    @property
    def is_summed(self) -> bool:
        """True for an accumulator of a context: a kernel sums it up on its own, and adds the sum at its end."""
        return isinstance(self.declared, accumulator) and self.argument.part is Part.CONTEXT

    def __str__(self) -> str:
        return f"{self.owner}.{'end.' * self.of_end}{self.name}"


def edge_fields(declared: edge) -> dict[str, array]:
    """Return the fields of an edge, by name."""
    weight = {} if declared.weight is None else {"weight": array(declared.weight)}
    return {**weight, **declared.fields}


class Fields:
    """Finds fields in the code of a stage, and says how each may be written."""

    def __init__(self, stage: ExchangeStage | ApplyStage, code: Code) -> None:
        self.stage = stage
        self.is_at_owner = isinstance(stage, ApplyStage) and stage.at == "owner"  # of a local type: at its worker
        self.code = code
        self.arguments = {argument.name: argument for argument in stage.arguments}
        self.loops: dict[str, Argument] = {}  # by loop variable: the Links it goes through
        links = [argument for argument in stage.arguments if argument.part is Part.LINKS]
        for node in ast.walk(code.tree):
            if (
                isinstance(node, ast.For)
                and isinstance(node.iter, ast.Name)
                and links
                and node.iter.id == links[0].name
            ):
                if not isinstance(node.target, ast.Name):
                    raise code.error(
                        node, f"a loop over {links[0].name} has one variable: for link in {links[0].name}."
                    )
                self.loops[node.target.id] = links[0]

    @cached_property
    def link_fields(self) -> dict[str, array]:
        """The fields of the edges that the stage looks at."""
        if not isinstance(self.stage, ExchangeStage):
            return {}
        return edge_fields(self.stage.source.edges[self.stage.edge])

    def find(self, node: ast.expr) -> Access | None:
        """Return the field that an expression reads; None if it reads none. Raises StageError for an unknown field."""
        if not isinstance(node, ast.Attribute):
            return None
        inner, of_end = node.value, False
        if isinstance(inner, ast.Attribute) and inner.attr == "end" and isinstance(inner.value, ast.Name):
            inner, of_end = inner.value, True
        if not isinstance(inner, ast.Name):
            return None
        owner = inner.id
        if owner in self.loops:
            argument = self.loops[owner]
            of, fields = (argument.type, self._fields(argument.type)) if of_end else (None, self.link_fields)
            if not of_end and node.attr == "end":
                return None
        elif owner in self.arguments and not of_end:
            argument = self.arguments[owner]
            if argument.part is Part.LINKS:
                raise self.code.error(node, f"{owner} has no fields; write a loop: for link in {owner}.")
            of = argument.type
            fields = self.link_fields if of is None else self._fields(of)
        else:
            return None
        if node.attr not in fields:
            what = of.name if of is not None else "the edge"
            more = " An edge's value is declared by gridml.edge(..., weight=...)." * (of is None)
            raise self.code.error(node, f"{what} has no field {node.attr!r}; it has {sorted(fields)}.{more}")
        declared = fields[node.attr]
        if "__" in node.attr:
            raise self.code.error(node, f"{ast.unparse(node)} has two underscores, as generated names do; rename it.")
        if declared.dtype.kind == "f" and declared.dtype.itemsize < 4:
            raise self.code.error(node, f"{ast.unparse(node)} is {declared.dtype}; stages compute in float32, float64.")
        before = False
        if isinstance(self.stage, ExchangeStage) and of is not None and self.stage.is_linked:
            before = argument.part is Part.SCANNED if self.stage.is_turned else of_end
        return Access(argument, of_end, owner, node.attr, declared, of, before)

    @staticmethod
    def _fields(of: VertexType | None) -> dict[str, array]:
        return {} if of is None else {**of.arrays, **of.workspace}

    def draws(self, node: ast.Call) -> bool:
        """Return whether a call is `gridml.uniform()`. Raises StageError where nothing can be drawn."""
        if isinstance(node.func, ast.Name | ast.Attribute) and self.find(node.func) is None:
            if called(self.code, node) is not uniform:
                return False
            if isinstance(self.stage, ApplyStage) or node.args:
                raise self.code.error(node, f"{ast.unparse(node)} is drawn in an exchange, and takes no argument.")
            if isinstance(self.stage, ExchangeStage) and self.stage.walked != self.stage.edge:
                raise self.code.error(
                    node,
                    f"{ast.unparse(node)} is drawn along edges that are walked from their ends; draw in an exchange "
                    f"over {self.stage.source.name}{' with gridml.Links' * self.stage.is_turned}.",
                )
            return True
        return False

    def logs(self, access: Access) -> bool:
        """Return whether changes of a field are collected, to be in force when the mini-batch ends."""
        if self.is_at_owner or access.type is None or not access.type.replicated or not access.travels:
            return False
        return isinstance(self._rule(access), Add) and not isinstance(access.declared, accumulator)

    def _rule(self, access: Access) -> Any:
        """Return the merge rule of a replicated field; None for a user's own."""
        assert access.type is not None
        if access.type.has_own_rule:
            return None
        empty = np.empty(0, access.declared.dtype)
        return rule_for(f"{access.type.name}/{access.name}", empty, access.type.rule)

    def check_write(self, access: Access, node: ast.AST, *, adds: bool, raises: bool) -> None:
        """Raise StageError unless the stage may write a field. `adds`: by += or -=; `raises`: as x = max(x, ...)."""
        part, declared, of = access.argument.part, access.declared, access.type
        wrong = None
        if isinstance(declared, accumulator):
            form = f"{access} += x" if declared.by == "add" else f"{access} = {declared.by}({access}, x)"
            if self.is_at_owner and part is Part.SCANNED:
                wrong = f"is an accumulator, which {self.stage.name} reads, and then is 0; add to it in an exchange."
            elif isinstance(self.stage, ApplyStage) and not self.is_at_owner:
                wrong = "is an accumulator, and mirrors of several workers would count twice; add to it in an exchange."
            elif access.before:
                wrong = f"is an accumulator of {self._other_side(access)}"
            elif not (adds if declared.by == "add" else raises):
                wrong = f"is an accumulator, and is written as another; write {form}."
        elif isinstance(declared, scratch):
            pass
        elif isinstance(declared, derived):
            if not isinstance(self.stage, ApplyStage) or part is not Part.SCANNED or self.is_at_owner:
                wrong = "is derived; it is written in @gridml.apply(..., at='mirror') of its type alone."
        elif of is None:
            if isinstance(self.stage, ExchangeStage) and self.stage.is_turned:
                wrong = (
                    f"was written, and edges between local vertices are walked from their ends; take them as "
                    f"gridml.Links[{self.stage.over.__name__}]."
                )
            elif not declared.mutable:
                wrong = "was written; of an edge only fields change that are declared gridml.array(..., mutable=True)."
        elif not of.replicated:
            if access.before:
                wrong = f"was written, a field of {self._other_side(access)}"
            elif isinstance(self.stage, ExchangeStage) and self.stage.is_turned:
                wrong = (
                    f"was written at the end of an edge; declare a gridml.accumulator, and change {access.name} in "
                    f"@gridml.apply({of.name})."
                )
            elif not declared.mutable:
                wrong = (
                    f"was written; declare {access.name} = gridml.array({str(declared.dtype)!r}, "
                    f"{declared.shape}, mutable=True)."
                )
        elif self.is_at_owner:
            if part is not Part.SCANNED:
                wrong = "was written by an apply of another type; declare a gridml.accumulator, or use a global_sync."
        elif isinstance(self.stage, ApplyStage):
            wrong = (
                f"was written by an apply at mirrors, which every worker repeats; it may write fields declared "
                f"gridml.derived. What changes {of.name} once is an apply at the owner, or a global_sync."
            )
        elif isinstance(self._rule(access), Owned):
            where = "gridml.global_sync" if part is Part.CONTEXT else f"gridml.apply({of.name})"
            wrong = f"is owned by the master; change it in a {where}."
        elif self.logs(access) and not adds:
            wrong = f"is merged by add; write {access} += x."
        if wrong is not None:
            raise self.code.error(node, f"{access} {wrong}")

    def _other_side(self, access: Access) -> str:
        """Say what a stage may write instead, if it writes a vertex that may be at another worker."""
        assert isinstance(self.stage, ExchangeStage) and access.type is not None
        if self.stage.is_turned:
            return (
                f"the vertex at which an edge starts, and {self.stage.name} is computed at its end; add to an "
                f"accumulator of the end, or take the edges as gridml.Links[{access.type.name}] to change the vertex."
            )
        return (
            f"another {access.type.name}, which may be at another worker; take the edges one by one to add to an "
            f"accumulator of their ends."
        )

    def check_read(self, access: Access, node: ast.AST) -> None:
        """Raise StageError unless the stage may read a field."""
        is_read = self.is_at_owner and access.argument.part is Part.SCANNED
        if isinstance(access.declared, accumulator) and not is_read:
            when, reader = "pass has ended", "gridml.global_sync"
            if access.type is not None and access.argument.part is not Part.CONTEXT:
                when, reader = "tick has ended", f"gridml.apply({access.type.name})"
            raise self.code.error(node, f"{access} was read before the {when}; a {reader} reads accumulators.")
        turns = isinstance(self.stage, ExchangeStage) and self.stage.is_turned
        if turns and access.type is None and access.declared.mutable:
            raise self.code.error(
                node,
                f"{access} changes, and {self.stage.name} walks edges from their ends, where it is as graph() gave it; "
                f"take the edges as gridml.Links[{self.stage.over.__name__}].",
            )

    def float_dtype(self, accesses: Iterable[Access]) -> np.dtype[Any]:
        """Return the dtype of numbers with a point, as the module's docstring says."""
        used = [a.declared.dtype for a in accesses if not isinstance(a.declared, accumulator)]
        narrow = [dtype for dtype in used if dtype.kind == "f"]
        return np.dtype(np.float32 if narrow and all(d == np.float32 for d in narrow) else np.float64)


def is_max_of(target: ast.expr, value: ast.expr, name: str = "max") -> ast.expr | None:
    """Return x if `value` is `max(target, x)`, or the function of this `name` of both, else None."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name):
        return None
    same = len(value.args) == 2 and ast.unparse(value.args[0]) == ast.unparse(target)
    return value.args[1] if same else None


def field_target(node: ast.expr) -> ast.expr:
    """Return the part of a written expression that names a field: `user.p` of `user.p[f]`."""
    return node.value if isinstance(node, ast.Subscript) else node


def called(code: Code, node: ast.Call) -> FunctionType | str:
    """Return what a call calls: the user's function, or the name in generated code, such as "math.exp". Raises
    StageError for anything that is not compiled."""
    func = node.func
    if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
        raise code.error(node, f"{ast.unparse(func)} is called with named arguments; give them by position.")
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        home = _known(code, func.value)
        if home is math and hasattr(math, func.attr):
            return f"math.{func.attr}"
        if home is np and func.attr in NUMBERS:
            return f"np.{func.attr}"
        if isinstance(home, ModuleType) and isinstance(own := getattr(home, func.attr, None), FunctionType):
            return own
    elif isinstance(func, ast.Name):
        value = _known(code, func)
        if value is vars(builtins).get(func.id) and func.id in BUILTINS:
            return func.id
        of_math = next((name for name, each in vars(math).items() if each is value), None)
        if of_math is not None:
            return f"math.{of_math}"
        if isinstance(value, type) and issubclass(value, np.number) and value.__name__ in NUMBERS:
            return f"np.{value.__name__}"
        if isinstance(value, FunctionType):
            return value
        if isinstance(value, StageFunction):
            raise code.error(node, f"{func.id} is a stage, and stages call no stages; call a plain function.")
    raise code.error(
        node,
        f"{ast.unparse(func)} is not compiled; a stage may call functions of math, {', '.join(sorted(BUILTINS))}, the "
        f"numbers of numpy such as np.float32, and your own functions of numbers.",
    )


def _known(code: Code, node: ast.Name) -> Any:
    if node.id in code.stored or node.id in code.parameters:
        raise code.error(node, f"{node.id} is a variable, and cannot be called or read from.")
    try:
        return code.lookup(node.id)
    except KeyError:
        raise code.error(node, f"{node.id} is not defined.") from None


def number_named(code: Code, node: ast.expr) -> int | float | bool | np.number[Any] | None:
    """Return the number that a name of the module, or an attribute such as `math.pi`, stands for; None if `node` is a
    local variable. Raises StageError for a name that is no number."""
    if isinstance(node, ast.Name):
        if node.id in code.stored or node.id in code.parameters:
            return None
        value, named = _known(code, node), node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        home, named = _known(code, node.value), ast.unparse(node)
        if not isinstance(home, ModuleType) or not hasattr(home, node.attr):
            raise code.error(node, f"{named} is no field, and no number of a module.")
        value = getattr(home, node.attr)
    else:
        raise code.error(node, f"{ast.unparse(node)} is no field of an argument.")
    if isinstance(value, bool | int | float | np.number):
        return value
    kind = "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    instead = "Declare a field of a context, and give it in graph()." if isinstance(value, np.ndarray) else ""
    raise code.error(
        node, f"{named} is {kind}; a stage may use numbers of the module, and its arguments. {instead}".rstrip()
    )


def check_nodes(code: Code, body: Iterable[ast.stmt], *, returns: bool) -> None:
    """Raise StageError for syntax that is not compiled. `returns`: a value may be returned."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Constant)) and not isinstance(node.value, bool | int | float):
                if node.value is None and returns is False:
                    continue
                raise code.error(node, f"{node.value!r} is no number; stages have numbers only.")
            if type(node) in _INSTEAD or not isinstance(node, _ALLOWED):
                instead = _INSTEAD.get(type(node), "a stage has loops, conditions, numbers, fields and indices")
                shown = ast.unparse(node).partition("\n")[0] if isinstance(node, ast.expr | ast.stmt) else ""
                raise code.error(
                    node if hasattr(node, "lineno") else statement,
                    f"{f'{shown!r}' if shown else type(node).__name__} cannot be compiled: {instead}.",
                )
            if isinstance(node, ast.Return) and node.value is not None and not returns:
                raise code.error(node, f"{code.tree.name} returns a value; a stage returns nothing, it changes fields.")
    taken = sorted(name for name in {*code.stored, *code.parameters} if name.startswith("_") or "__" in name)
    if taken:
        raise code.error(
            code.tree,
            f"the name {taken[0]} begins with an underscore, or has two, as generated names do; rename it.",
        )


def own_functions(code: Code, fields: Fields | None = None) -> Mapping[str, FunctionType]:
    """Return the plain functions that a function calls, and those that they call, by name. Raises StageError for two
    functions of the same name."""
    found: dict[str, FunctionType] = {}
    waiting = [code]
    while waiting:
        caller = waiting.pop()
        for node in (each for statement in caller.body for each in ast.walk(statement)):
            if not isinstance(node, ast.Call) or (caller is code and fields is not None and fields.draws(node)):
                continue
            if not isinstance(function := called(caller, node), FunctionType):
                continue
            if function is uniform:
                raise caller.error(node, "numbers are drawn in an exchange itself; give them to the function.")
            if function.__name__ not in found:
                found[function.__name__] = function
                waiting.append(Code.of(function))
            elif found[function.__name__] is not function:
                raise caller.error(node, f"two functions are called {function.__name__}; rename one.")
    return found


def numbers_read(function: Callable[..., Any]) -> frozenset[Any]:
    """Return what may change between two readings of a function's source: the numbers of the module, and of other
    modules, that it and the functions which it calls name, and these functions."""
    assert isinstance(function, FunctionType)
    found: set[Any] = set()
    waiting = [function]
    while waiting:
        reader = waiting.pop()
        names, cells = reader.__code__.co_names, reader.__closure__ or ()
        values = {name: reader.__globals__[name] for name in names if name in reader.__globals__}
        values |= {name: cell.cell_contents for name, cell in zip(reader.__code__.co_freevars, cells, strict=True)}
        of_modules = [each for each in values.values() if isinstance(each, ModuleType)]
        values |= {f"{m.__name__}.{name}": getattr(m, name) for m in of_modules for name in names if hasattr(m, name)}
        for name, value in values.items():
            if isinstance(value, bool | int | float | np.number):
                found.add((reader, name, type(value), value))
            elif isinstance(value, FunctionType) and (reader, name, value) not in found:
                found.add((reader, name, value))
                waiting.append(value)
    return frozenset(found)

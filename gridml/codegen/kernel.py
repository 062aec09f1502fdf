"""The source of a kernel: a stage as a function of arrays, in a Python module that numba compiles.

The text depends on the stage, and on the dtypes of fields and numbers. Values of the module's numbers are arguments, so
that loops over them are not unrolled, and that changing one compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from gridml.codegen.held import held
from gridml.codegen.rewrite import PlainRewriter, StageRewriter, listed, narrowed
from gridml.codegen.stage_code import Access, Code, Fields, check_nodes, own_functions
from gridml.model.stage_fields import accumulator
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
    draws: bool = False  #: two more arguments follow the range: a seed, and the ids of the scanned vertices


def kernel_of(stage: ExchangeStage | ApplyStage, *, exact: bool = False, holds: bool = False) -> Kernel:
    """Return the kernel of a stage. With `holds` it leaves the replica as it is (`gridml.codegen.held`). Raises
    StageError, at the user's line, for what cannot be compiled."""
    return _Writer(stage, exact=exact, holds=holds).kernel()


def checked(stage: ExchangeStage | ApplyStage, *, holds: bool = False) -> Fields:
    """Check the code of a stage, and return its fields. Raises StageError."""
    code = Code.of(stage.function)
    check_nodes(code, code.body, returns=False)
    for node in (each for statement in code.body for each in ast.walk(statement)):
        if isinstance(node, ast.For | ast.While):
            _check_returns(code, node)
    fields = Fields(stage, code)
    return held(fields) if holds else fields


def _check_returns(code: Code, loop: ast.For | ast.While) -> None:
    """Raise StageError for a return inside a loop: in generated code a stage is itself the body of a loop."""
    inside = [node for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.Return)]
    if inside:
        raise code.error(
            inside[0], "return inside a loop is not compiled; leave the loop with break, and test a variable."
        )


class _Writer:
    def __init__(self, stage: ExchangeStage | ApplyStage, *, exact: bool, holds: bool) -> None:
        self._stage = stage
        self._fields = checked(stage, holds=holds)
        self._code = self._fields.code
        self._exact = exact
        self._text: list[str] = []
        self._lines: dict[int, tuple[str, int]] = {}

    def kernel(self) -> Kernel:
        edges = isinstance(self._stage, ExchangeStage)
        pass_one = StageRewriter(self._fields, np.dtype(np.float64))
        for statement in self._code.body:
            pass_one.visit(copy.deepcopy(statement))  # finds the fields; the numbers' dtype follows from these
        dtype = self._fields.float_dtype(pass_one.accesses.values())
        rewriter = StageRewriter(self._fields, dtype, pass_one.written)
        body = [each for statement in self._code.body for each in listed(rewriter.visit(copy.deepcopy(statement)))]
        columns = [self._column(name, access, rewriter) for name, access in sorted(rewriter.accesses.items())]
        when = self._when() if edges else None
        if when is not None and when.array not in rewriter.accesses:
            columns.append(Column(when, is_number=False, is_written=False, logs=False))
        numbers = {name: narrowed(value, dtype) for name, value in sorted(rewriter.numbers.items())}
        self._header(columns, draws=rewriter.draws)
        for name, function in own_functions(self._code, self._fields).items():
            self._function(name, function, dtype)
        self._kernel(columns, list(numbers), body, when, draws=rewriter.draws)
        text = "\n".join([*self._text, ""])
        return Kernel(text, tuple(columns), tuple(numbers.items()), self._lines, rewriter.draws)

    def _when(self) -> Access | None:
        if not isinstance(self._stage, ExchangeStage) or self._stage.when is None:
            return None
        scanned = next(each for each in self._stage.arguments if each.part is Part.SCANNED)
        assert scanned.type is not None
        declared = scanned.type.arrays[self._stage.when]
        return Access(scanned, False, scanned.name, self._stage.when, declared, scanned.type)

    def _column(self, name: str, access: Access, rewriter: StageRewriter) -> Column:
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
        rewriter = PlainRewriter(code, dtype)
        body = [each for statement in code.body for each in listed(rewriter.visit(copy.deepcopy(statement)))]
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
        sums = [column.access for column in columns if column.access.is_summed]
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

"""A program: the graph, f, and how the result is judged; and how one is found in the user's file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.batch import Batch
from gridml.errors import ProgramError, UsageError
from gridml.graph import Graph
from gridml.order import Shuffle
from gridml.vertex import Vertex, VertexType, describe

Metrics = dict[str, Any]
Schedule = Callable[[float], float]


def linear_decay(share: float) -> float:
    """The default learning-rate factor: 1 until 60% of the run is credited, then falling linearly to 0."""
    return min(1.0, (1.0 - share) / 0.4)


def constant(share: float) -> float:
    """A learning-rate factor of 1 throughout, for programs that set their own."""
    return 1.0


@dataclass(frozen=True)
class Parameter:
    """One argument of f after the first: the replicas or neighbours along `edge`, one vertex or a batch of them."""

    edge: str
    type: VertexType
    single: bool


class Update:
    """f with its batch size. `batch` None means that f takes one vertex at a time."""

    def __init__(self, function: Callable[..., None], batch: int | None, min_batch: int) -> None:
        self.function = function
        self.batch = batch
        self.min_batch = min_batch

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    @property
    def driver(self) -> type[Vertex]:
        """The local type that f is called for."""
        return self._signature()[0]

    @property
    def parameters(self) -> list[Parameter]:
        return self._signature()[1]

    def _signature(self) -> tuple[type[Vertex], list[Parameter]]:
        name = self.function.__name__
        try:
            hints = typing.get_type_hints(self.function)
        except NameError as error:
            raise ProgramError(f"the annotations of {name} name something that is not defined: {error}") from error
        arguments = list(inspect.signature(self.function).parameters)
        if not arguments or any(a not in hints for a in arguments):
            raise ProgramError(
                f"every argument of {name} needs a vertex type as annotation, as in (images: gridml.Batch[Image])."
            )
        driver, batched = _vertex_class(hints[arguments[0]], name, arguments[0])
        if batched != (self.batch is not None):
            raise ProgramError(
                f"{name} takes {'a Batch' if batched else 'one vertex'}, so it is declared "
                f"{'@gridml.update(batch=64)' if batched else '@gridml.update'}."
            )
        kind = describe(driver)
        if kind.replicated:
            raise ProgramError(
                f"the first argument of {name} is {kind.name}, which is replicated; f runs on local vertices."
            )
        return driver, [_bind(kind, argument, hints[argument], name) for argument in arguments[1:]]


def _vertex_class(hint: Any, function: str, argument: str) -> tuple[type[Vertex], bool]:
    batched = typing.get_origin(hint) is Batch
    found = typing.get_args(hint)[0] if batched else hint
    if not (isinstance(found, type) and issubclass(found, Vertex)):
        raise ProgramError(
            f"argument {argument} of {function} is annotated {hint}; expected a vertex type or gridml.Batch of one."
        )
    return found, batched


def _bind(driver: VertexType, argument: str, hint: Any, function: str) -> Parameter:
    cls, batched = _vertex_class(hint, function, argument)
    leading = [name for name in driver.edges if driver.target(name) is cls]
    edge = argument if argument in leading else leading[0] if len(leading) == 1 else None
    if edge is None:
        raise ProgramError(
            f"argument {argument} of {function} is a {cls.__name__}; {driver.name} has {len(leading)} edges to that "
            f"type "
            f"({leading}). Call the argument as one of them."
        )
    return Parameter(edge, describe(cls), not batched)


@typing.overload
def update(function: Callable[..., None], /) -> Update: ...
@typing.overload
def update(*, batch: int, min_batch: int = 1) -> Callable[[Callable[..., None]], Update]: ...
def update(
    function: Callable[..., None] | None = None, /, *, batch: int | None = None, min_batch: int = 1
) -> Update | Callable[[Callable[..., None]], Update]:
    """Declare f. `@gridml.update` takes one vertex at a time; `@gridml.update(batch=64, min_batch=8)` takes up to 64.

    With several workers the engine may use a smaller batch, but never one below `min_batch`. Raises ProgramError for
    sizes that make no sense.
    """
    if function is not None:
        return Update(function, None, 1)
    if batch is None or batch < 1 or not 1 <= min_batch <= batch:
        raise ProgramError(f"update got batch={batch}, min_batch={min_batch}; expected 1 <= min_batch <= batch.")
    return lambda f: Update(f, batch, min_batch)


@dataclass(frozen=True)
class Program:
    """What to train. `graph` and `evaluate` run on the submit host only, `update` on the workers.

    `evaluate` takes the vertices its annotations name and returns numbers (or lists of numbers) by name. `schedule`
    gives the learning-rate factor for the credited share of the run (0 to 1). `shuffle` defaults to "all" when every
    replicated vertex is a module (placement is degenerate), to "block" otherwise.
    """

    graph: Callable[[], Graph]
    update: Update
    evaluate: Callable[..., Metrics] | None = None
    epochs: int = 1
    schedule: Schedule = linear_decay
    shuffle: Shuffle | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.update, Update):
            raise ProgramError(f"Program got {self.update!r} as its update; decorate the function with @gridml.update.")
        if self.epochs < 1:
            raise ProgramError(f"Program got epochs={self.epochs}; expected at least 1.")

    def types(self) -> dict[str, VertexType]:
        """Every vertex type that can be reached from the driving one, by name."""
        found: dict[str, VertexType] = {}
        waiting = [self.update.driver]
        while waiting:
            kind = describe(waiting.pop())
            if kind.name not in found:
                found[kind.name] = kind
                waiting += [kind.target(name) for name in kind.edges]
        return found

    @property
    def uses_torch(self) -> bool:
        return any(kind.modules for kind in self.types().values())

    @property
    def bsp(self) -> bool:
        """Whether nothing is replicated, so that the program runs in supersteps on a uniform partition."""
        return not any(kind.replicated for kind in self.types().values())


def load(path: Path) -> Program:
    """The one Program in a user's file.

    Raises UsageError when the file is not there, ProgramError when it cannot be run or holds no Program, or two.
    """
    if not path.is_file():
        raise UsageError(
            f"no such file: {path}. Expected the Python file of a program, as in `gridml run examples/mnist.py`."
        )
    name = f"gridml_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file. Its name must end in .py.")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # the user's own modules beside the file; last, so that they shadow nothing
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        raise ProgramError(f"{path} cannot be loaded:\n{user_traceback(error, path)}") from error
    programs = {name: value for name, value in vars(loaded).items() if isinstance(value, Program)}
    distinct = {id(p): name for name, p in programs.items()}
    if len(distinct) != 1:
        told = f"{len(distinct)} ({', '.join(programs)})" if distinct else "none"
        raise ProgramError(
            f"{path} must hold exactly one gridml.Program; found {told}. Write program = gridml.Program(graph, train)."
        )
    program = next(iter(programs.values()))
    program.update.parameters  # noqa: B018 - raises now what would otherwise be raised on a worker
    program.types()
    return program


def user_traceback(error: BaseException, path: Path) -> str:
    """The traceback of an error from the first frame in the user's file on: gridml's own frames are no help to them."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if Path(f.filename).resolve() == path.resolve()]
    shown = frames[own[0] :] if own else []
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)] if shown else []
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()

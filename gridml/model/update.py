"""The update function f: its batch size, and the binding of its arguments to edges of the graph."""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gridml.errors import ProgramError
from gridml.model.batch import Batch
from gridml.model.schedule import Progress, StepCount
from gridml.model.vertex import Vertex, VertexType, check_plain, describe

MAX_BATCH = 10**9  # vertices of an optimiser step
SCALED, FIXED = "scaled", "fixed"  # learning rates of a smaller batch: by the root of its share, or the program's


@dataclass(frozen=True)
class Parameter:
    """One argument of f after the first: the vertices that an edge field leads to."""

    edge: str  #: the edge field, of the type that f is called for
    type: VertexType  #: the type that the edges lead to
    is_single: bool  #: f takes one vertex; otherwise a batch of them


class Shape(ABC):
    """The properties of a program's work that the rest of gridml reads: its vertices, and how many at a time."""

    function: Callable[..., Any]  #: f, or the first stage
    batch: int | None  #: vertices of a call; None: f takes one vertex at a time
    min_batch: int
    drop_last: bool
    accumulate: int
    keeps_rate: bool  #: smaller batches of several workers have the program's learning rates
    edges: int | None = None  #: mini-batches have about as many edges, whatever `batch` is
    follows_ends: bool = False  #: mini-batches end where a chunk says; False: they have `batch` vertices
    drawn: type[Vertex] | None = None  #: the replicated type whose vertices make a mini-batch; None: the driving type
    shares_batch: bool = False  #: a batch is no step: workers may cut it, whatever its vertices train
    has_phases: bool = False  #: all parts' mini-batches are merged several times within one

    @property
    @abstractmethod
    def driver(self) -> type[Vertex]:
        """The local type that the program runs on. Raises ProgramError if there is none."""

    @property
    def trained_by_edge(self) -> frozenset[str]:
        """The replicated types whose rows are trained by the edges that lead to them, one edge at a time: what moves a
        row depends on that row, on contexts and on the local vertex of the edge, and on no other row."""
        return frozenset()

    @property
    def window(self) -> int:
        """The vertices of one optimiser step of a worker that trains alone."""
        return (self.batch or 1) * self.accumulate

    def steps(self, vertices: int) -> StepCount:
        """Return the division of epochs of `vertices` vertices into optimiser steps."""
        trained = vertices - vertices % (self.batch or 1) if self.drop_last else vertices
        return StepCount(vertices, max(1, trained), self.window)


@dataclass(eq=False)
class Update(Shape):
    """f with its options, which `gridml.update` explains."""

    function: Callable[..., None]
    batch: int | None
    min_batch: int
    drop_last: bool = False
    accumulate: int = 1
    keeps_rate: bool = False
    #: the position of f's `Progress` argument, None without one; set by `_signature`
    _progress_at: int | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", "update"))

    @property
    def takes_batch(self) -> bool:
        """True if f is called for a batch of vertices. Raises ProgramError if its first annotation cannot be read."""
        hints = argument_hints(self.function, self.name) if self.batch is None else {}
        return self.batch is not None or typing.get_origin(next(iter(hints.values()), None)) is Batch

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    def call(self, at: Progress, *vertices: Any) -> None:
        """Call f with its vertices, and with the progress if f takes it."""
        place = self._progress_at
        self.function(*(vertices if place is None else (*vertices[:place], at, *vertices[place:])))

    @property
    def driver(self) -> type[Vertex]:
        """The local type that f is called for."""
        return self._signature[0]

    @property
    def parameters(self) -> list[Parameter]:
        return self._signature[1]

    @cached_property
    def _signature(self) -> tuple[type[Vertex], list[Parameter]]:
        name = self.name
        hints = argument_hints(self.function, name)
        check_plain(self.function, name)
        self._progress_at = progress_place(hints, name)
        arguments = [argument for argument, hint in hints.items() if hint is not Progress]
        if not arguments or self._progress_at == 0:
            taken = "a gridml.Progress first" if hints else "no argument"
            raise ProgramError(f"{name} takes {taken}; its first is the vertex, or Batch of vertices, it runs on.")
        driver, batched = vertex_class(hints[arguments[0]], name, arguments[0])
        if batched != (self.batch is not None):
            raise ProgramError(
                f"{name} takes {'a Batch' if batched else 'one vertex'}, so it is declared "
                f"{'@gridml.update(batch=64)' if batched else '@gridml.update'}"
                f"{'' if batched else f'; for a batch, annotate {arguments[0]}: gridml.Batch[{driver.__name__}]'}."
            )
        vertex_type = describe(driver)
        if vertex_type.replicated:
            raise ProgramError(
                f"the first argument of {name} is {vertex_type.name}, which is replicated; f runs on local vertices."
            )
        return driver, [_bind(vertex_type, argument, hints[argument], name) for argument in arguments[1:]]


def progress_place(hints: dict[str, Any], name: str) -> int | None:
    """Return the position of a function's `Progress` argument, or None. Raises ProgramError for several."""
    places = [place for place, hint in enumerate(hints.values()) if hint is Progress]
    if len(places) > 1:
        raise ProgramError(f"{name} takes {len(places)} arguments of gridml.Progress; expected one at most.")
    return places[0] if places else None


def argument_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the annotation of every argument, in order. Raises ProgramError if one is missing or invalid."""
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:  # evaluating an annotation runs user code
        raise ProgramError(f"the annotations of {name} cannot be read: {error}. Correct them.") from error
    arguments = list(inspect.signature(function).parameters)
    bare = [argument for argument in arguments if argument not in hints]
    if bare:
        raise ProgramError(
            f"argument {bare[0]} of {name} has no annotation; every argument needs a vertex type, or gridml.Batch of "
            f"one, as in (images: gridml.Batch[Image], network: Network)."
        )
    return {argument: hints[argument] for argument in arguments}


def vertex_class(hint: Any, function: str, argument: str) -> tuple[type[Vertex], bool]:
    """Return (the vertex type of an annotation, True for a batch of them). Raises ProgramError, naming the function and
    its argument, for any other annotation."""
    batched = typing.get_origin(hint) is Batch
    cls = typing.get_args(hint)[0] if batched else hint
    if not (isinstance(cls, type) and issubclass(cls, Vertex)):
        raise ProgramError(
            f"argument {argument} of {function} is annotated {hint}; expected a vertex type or gridml.Batch of one, or "
            f"gridml.Progress, which has the epoch and the step."
        )
    return cls, batched


def _bind(driver: VertexType, argument: str, hint: Any, function: str) -> Parameter:
    cls, batched = vertex_class(hint, function, argument)
    leading = [name for name in driver.edges if driver.target(name) is cls]
    edge = argument if argument in leading else leading[0] if len(leading) == 1 else None
    if edge is None:
        what = f"several edges to that type; call the argument as one of them, {', '.join(leading)}."
        if not leading:
            what = f"no edge to that type; declare one, {argument} = gridml.edge({cls.__name__})."
        raise ProgramError(f"argument {argument} of {function} is a {cls.__name__}, but {driver.name} has {what}")
    vertex_type = describe(cls)
    if batched and vertex_type.modules:
        raise ProgramError(
            f"argument {argument} of {function} is a Batch of {vertex_type.name}, which holds modules; modules come "
            f"one at a time: annotate it {vertex_type.name}."
        )
    return Parameter(edge, vertex_type, not batched)


@typing.overload
def update(function: Callable[..., None], /) -> Update: ...
@typing.overload
def update(
    *, batch: int, min_batch: int = 1, drop_last: bool = False, accumulate: int = 1, rate: str = SCALED
) -> Callable[[Callable[..., None]], Update]: ...
def update(
    function: Callable[..., None] | None = None,
    /,
    *,
    batch: int | None = None,
    min_batch: int = 1,
    drop_last: bool = False,
    accumulate: int = 1,
    rate: str = SCALED,
) -> Update | Callable[[Callable[..., None]], Update]:
    """Declare f. `@gridml.update` takes one vertex at a time; `@gridml.update(batch=64, min_batch=8)` takes up to 64.

    Several workers share a batch: each uses a smaller one, down to a quarter of `batch`, but at least `min_batch`
    vertices. The learning rates of the program's optimisers fall with the square root of the batch, or stay with
    `rate="fixed"`. A program without an optimiser, or with BatchNorm, keeps its batch. If small batches leave a device
    idle, such as a GPU, set `min_batch=64`.

    No batch has fewer than `min_batch` vertices, not even at the end of a chunk or an epoch: the last batches share the
    remaining vertices. With a `min_batch` above half of `batch`, some are larger than `batch`, by less than
    `min_batch`. With BatchNorm no batch has a single vertex. Exceptions are epochs with fewer vertices, and vertices
    connected in components.

    `drop_last`: as in torch's DataLoader, an incomplete last batch of an epoch is not passed to f. Its vertices are
    credited without training; with shuffling they differ from epoch to epoch.

    `accumulate`: the number of batches whose mean gradient an optimiser step of `network.step` uses. Chunks then have
    whole steps, and pushes are sent between steps. A remainder, left by the end of an epoch, an eviction or a shortened
    chunk, gets a step of its own.

    Raises ProgramError for invalid options.
    """
    if function is not None:
        return Update(function, None, 1)
    if type(batch) is not int or type(min_batch) is not int or not 1 <= min_batch <= batch <= MAX_BATCH:
        raise ProgramError(
            f"update got batch={batch!r}, min_batch={min_batch!r}; expected 1 <= min_batch <= batch "
            f"<= {MAX_BATCH:,}, whole numbers."
        )
    if type(accumulate) is not int or not 1 <= accumulate <= MAX_BATCH // batch:
        raise ProgramError(
            f"update got accumulate={accumulate!r}; expected a whole number of batches from 1, and at most "
            f"{MAX_BATCH:,} vertices in all."
        )
    if rate not in (SCALED, FIXED):
        raise ProgramError(f"update got rate={rate!r}; expected {SCALED!r} or {FIXED!r}.")
    return lambda f: Update(f, batch, min_batch, drop_last, accumulate, keeps_rate=rate == FIXED)

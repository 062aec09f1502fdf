"""Stages: functions over the edges and vertices of a mini-batch, compiled to machine code.

A program of stages (MEGA: mini-batch, exchange, global sync, apply; Xiao et al., TUX2, NSDI 2017) is a list of one
`MiniBatch` and of what follows each pass over the data:

    gridml.Program(graph, [gridml.MiniBatch([learn], size=2000), cool], epochs=20)

Workers run the stages of a mini-batch one after the other, as they would call f with a batch. Where a stage at the
owner, or a global_sync, stands between them, all workers' mini-batches end a *phase* there. A stage takes vertices,
edges and contexts, which its annotations name; a *context* is a replicated type of one vertex, such as the learning
rate and the loss. `gridml.codegen` compiles stages and says what they may contain.
"""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from gridml.errors import ProgramError
from gridml.model.graph import turned
from gridml.model.update import MAX_BATCH, Update, argument_hints
from gridml.model.vertex import Vertex, VertexType, check_plain, describe

V = TypeVar("V", bound=Vertex)
Where = Literal["owner", "mirror"]
MAX_PARTS = 4096


class Link:
    """One edge, an argument of `exchange`: its fields are those of the edge, such as `rating.weight`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Links(Generic[V]):
    """The edges of one vertex, an argument of `exchange`. A loop over it gives each edge in turn: its fields, and the
    vertex that it leads to, `link.end`."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("gridml.Links is made by gridml, for stages")

    def __len__(self) -> int:
        raise TypeError("gridml.Links is made by gridml, for stages")


class Part(Enum):
    """The kind of an argument of a stage."""

    SCANNED = "the vertex that the stage looks at"
    END = "the vertex that an edge leads to"
    LINK = "an edge"
    LINKS = "all edges of the vertex"
    CONTEXT = "the one vertex of a type"


@dataclass(frozen=True)
class Argument:
    """One argument of a stage."""

    name: str
    part: Part
    type: VertexType | None  #: of the vertex, or of the vertices that the edges lead to; None for one edge


@dataclass(eq=False)
class StageFunction:
    """A function of stages. Its code runs compiled, or as plain Python (`gridml.codegen`)."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", "stage"))

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The annotation of every argument, in order. Raises ProgramError."""
        check_plain(self.function, self.name)
        if not inspect.isfunction(self.function):
            raise ProgramError(f"a stage got {self.function!r}; expected a function, written with def in a file.")
        return argument_hints(self.function, self.name)

    def _arguments(self, scanned: VertexType, ends: Sequence[str]) -> tuple[Argument, ...]:
        """Bind the arguments, in order. `ends` are the types that edges of the scanned vertex lead to."""
        bound: list[Argument] = []
        for name in self.hints:
            # Of two vertices of one type the first is the one that the stage looks at.
            first = not any(each.part is Part.SCANNED for each in bound)
            bound.append(self._argument(name, scanned, ends, first=first))
        return tuple(bound)

    def _argument(self, name: str, scanned: VertexType, ends: Sequence[str], *, first: bool) -> Argument:
        hint = self.hints[name]
        if hint is Link:
            return Argument(name, Part.LINK, None)
        cls = get_args(hint)[0] if get_origin(hint) is Links else hint
        if not (isinstance(cls, type) and issubclass(cls, Vertex)):
            raise ProgramError(
                f"argument {name} of {self.name} is annotated {hint}; expected a vertex type, gridml.Link or "
                f"gridml.Links of a vertex type."
            )
        of = describe(cls)
        if of.modules:
            raise ProgramError(
                f"argument {name} of {self.name} is {of.name}, which holds modules; stages run on arrays. Train "
                f"modules in a function under @gridml.update."
            )
        if cls is not hint:
            return Argument(name, Part.LINKS, of)
        if cls is scanned.cls and (first or of.name not in ends):
            return Argument(name, Part.SCANNED, of)
        if of.name in ends:
            return Argument(name, Part.END, of)
        if not of.replicated:
            raise ProgramError(
                f"argument {name} of {self.name} is {of.name}, a local type that no edge of {scanned.name} leads to. A "
                f"stage takes the vertex it looks at, the ends of its edges, and contexts (replicated, one vertex)."
            )
        return Argument(name, Part.CONTEXT, of)

    def _only(self, arguments: Sequence[Argument], part: Part) -> Argument | None:
        found = [argument for argument in arguments if argument.part is part]
        if len(found) > 1:
            raise ProgramError(
                f"{self.name} takes {len(found)} arguments that are {part.value} ({', '.join(a.name for a in found)}); "
                f"expected one at most."
            )
        return found[0] if found else None


@dataclass(eq=False)
class ExchangeStage(StageFunction):
    """A stage that looks at every edge of the mini-batch's vertices, as `exchange` explains."""

    over: type[Vertex]
    when: str | None = None

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments in order. Raises ProgramError for arguments that do not fit the graph's types."""
        scanned = describe(self.over)
        ends = [describe(scanned.target(name)).name for name in scanned.edges]
        if scanned.replicated:  # the edges are those that lead to it
            ends = [of.name for of in self._sources(scanned)]
        bound = self._arguments(scanned, ends)
        vertex, end, link, links = (self._only(bound, part) for part in (Part.SCANNED, Part.END, Part.LINK, Part.LINKS))
        if vertex is None:
            raise ProgramError(
                f"{self.name} looks at {scanned.name}, and takes none; give it one argument of the type."
            )
        if links is not None and (end is not None or link is not None):
            raise ProgramError(
                f"{self.name} takes both {links.name}, all edges, and one edge; expected either (item: Item, rating: "
                f"gridml.Link), called for each edge, or (ratings: gridml.Links[Item]), called for each vertex."
            )
        if links is None and end is None:
            raise ProgramError(
                f"{self.name} takes no vertex that an edge of {scanned.name} leads to; its edges are "
                f"{list(scanned.edges)}. Without edges it is a gridml.apply."
            )
        return bound

    def _sources(self, scanned: VertexType) -> list[VertexType]:
        """Return the types among the arguments that have edges to the scanned type."""
        classes = [get_args(hint)[0] if get_origin(hint) is Links else hint for hint in self.hints.values()]
        types = [describe(cls) for cls in classes if isinstance(cls, type) and issubclass(cls, Vertex)]
        return [of for of in types if any(of.target(name) is scanned.cls for name in of.edges)]

    @cached_property
    def source(self) -> VertexType:
        """The type at which the edges start: the scanned type, unless that is replicated."""
        other = next(each.type for each in self.arguments if each.part in (Part.END, Part.LINKS))
        assert other is not None
        return other if self.is_backward else describe(self.over)

    @cached_property
    def edge(self) -> str:
        """The edge field of `source`. Raises ProgramError if none, or more than one, is meant."""
        source = self.source
        other = next(each.type for each in self.arguments if each.part in (Part.END, Part.LINKS))
        assert other is not None
        target = describe(self.over) if self.is_backward else other
        fitting = [name for name in source.edges if source.target(name) is target.cls]
        named = [each.name for each in self.arguments if each.name in fitting]
        if not fitting or (len(fitting) > 1 and len(named) != 1):
            what = f"several edges to it; call an argument as one of them, {', '.join(fitting)}."
            what = what if fitting else f"no edge to it; declare one, as in {source.name}.links = gridml.edge(...)."
            raise ProgramError(f"{self.name} takes {target.name}, and {source.name} has {what}")
        return named[0] if len(fitting) > 1 else fitting[0]

    @property
    def is_backward(self) -> bool:
        """True if it looks at a replicated type, and walks the edges that lead there: a mini-batch is some vertices of
        that type, and in all parts the edges to them."""
        return describe(self.over).replicated

    @cached_property
    def is_linked(self) -> bool:
        """True if the edges lead to local vertices: what it reads across an edge is as the last pass left it."""
        return not self.is_backward and not describe(describe(self.over).target(self.edge)).replicated

    @cached_property
    def is_turned(self) -> bool:
        """True if it is computed at the ends of its edges: it adds to accumulators of these, which no other worker
        has."""
        return self.is_linked and any(each.part is Part.END for each in self.arguments)

    @property
    def walked(self) -> str:
        """The edge field that is walked: that of the scanned type, or the same edges by their ends."""
        return turned(self.edge) if self.is_turned or self.is_backward else self.edge


@dataclass(eq=False)
class ApplyStage(StageFunction):
    """A stage that looks at vertices of one type, as `apply` explains."""

    over: type[Vertex]
    at: Where

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments in order. Raises ProgramError for arguments that do not fit."""
        scanned = describe(self.over)
        if not scanned.replicated and self.at == "mirror":
            raise ProgramError(
                f"{self.name} is applied to {scanned.name} at mirrors, and a local type has none; expected "
                f"@gridml.apply({scanned.name})."
            )
        bound = self._arguments(scanned, ())
        if self._only(bound, Part.SCANNED) is None:
            raise ProgramError(f"{self.name} is applied to {scanned.name}, and takes none; give it one argument.")
        return bound

    @cached_property
    def is_by_master(self) -> bool:
        """True if the master, which owns replicated vertices, runs it."""
        return self.at == "owner" and describe(self.over).replicated


@dataclass(eq=False)
class GlobalSync(StageFunction):
    """A function that the master calls after each pass, as `global_sync` explains."""

    @cached_property
    def context(self) -> VertexType:
        """The type of its one argument. Raises ProgramError."""
        hints = list(self.hints.values())
        fits = len(hints) == 1 and isinstance(hints[0], type) and issubclass(hints[0], Vertex)
        if not fits or not describe(hints[0]).replicated or describe(hints[0]).modules:
            raise ProgramError(
                f"{self.name} takes {', '.join(map(str, hints)) or 'nothing'}; a global_sync takes one argument, the "
                f"context: a replicated type of arrays that has one vertex."
            )
        return describe(hints[0])

    @cached_property
    def may_end(self) -> bool:
        """True if it returns something other than None somewhere, and so can end a run."""
        if any(constant is True for constant in self.function.__code__.co_consts):
            return True
        code = list(dis.get_instructions(self.function))
        returned = [
            code[at - (each.opname == "RETURN_VALUE")] for at, each in enumerate(code) if "RETURN_" in each.opname
        ]
        return not all(each.opname in ("LOAD_CONST", "RETURN_CONST") for each in returned)


def exchange(*, over: type[Vertex], when: str | None = None) -> Callable[[Callable[..., None]], ExchangeStage]:
    """Declare a stage that looks at every edge of the vertices of a mini-batch, which are of type `over`.

        @gridml.exchange(over=User)
        def learn(user: User, item: Item, rating: gridml.Link, at: Shared) -> None: ...

    In this form it is called for each edge, in order: with the vertex, the vertex at the edge's end, the edge (if it is
    wanted) and contexts. With `ratings: gridml.Links[Item]` instead of the end and the edge it is called for each
    vertex, and loops over the edges. If several edge fields lead to the same type, an argument has the name of the one
    that is meant. `when` names a field of `over`: vertices in which it is 0 are left out.

    It may change mutable fields of the vertex, fields of the end that are averaged (in place), fields with `add` (by
    += and -=, in force when the mini-batch ends) and accumulators of contexts.

    `over` may be a replicated type. Then the edges are those that lead to it, from the local vertices at their other
    end, whose mutable fields the stage may change. A mini-batch is `size` vertices of the type, drawn again in each
    pass, and all edges to them.

    Edges may lead to local vertices of the same type. Then the stage reads across an edge what the last pass left, or
    the last phase, if the MiniBatch has several. Edge by edge it adds to accumulators of the edge's end, which `apply`
    of the type then reads; with `Links` it changes the vertex itself.
    """
    if not (isinstance(over, type) and issubclass(over, Vertex) and over is not Vertex):
        raise ProgramError(f"exchange got over={over!r}; expected the vertex type whose edges the stage looks at.")
    if when is not None and (when not in describe(over).arrays or describe(over).arrays[when].shape):
        raise ProgramError(
            f"exchange got when={when!r}; expected the name of a field of {over.__name__} that is one number, such as "
            f"{[name for name, each in describe(over).arrays.items() if not each.shape]}."
        )
    return lambda function: ExchangeStage(function, over, when)


def apply(over: type[Vertex], /, *, at: Where = "owner") -> Callable[[Callable[..., None]], ApplyStage]:
    """Declare a stage that looks at vertices of one type, without edges.

        @gridml.apply(Feature)
        def move(feature: Feature, at: Shared) -> None:
            feature.w -= at.rate * feature.slope

    For a local type, the worker that has a vertex calls it for each of the mini-batch. It reads the accumulators that
    exchanges filled, and changes mutable fields.

    For a replicated type, the master, its owner, calls it once for every vertex that edges of a tick lead to: one
    mini-batch of each part of the data, when all of them are merged. It reads the accumulators of its type, which are
    complete, and changes the other fields; what comes next begins with what it leaves, and accumulators at 0.

    With `at="mirror"`, each worker calls it for its own copy of every vertex that edges of the mini-batch lead to, and
    it changes `gridml.derived` fields: values that each worker computes from the others.
    """
    if not (isinstance(over, type) and issubclass(over, Vertex) and over is not Vertex):
        raise ProgramError(f"apply got {over!r}; expected a vertex type, as in @gridml.apply(Word, at='mirror').")
    if at not in get_args(Where):
        raise ProgramError(
            f"apply got at={at!r}; expected 'owner' or 'mirror'. What is done once a pass is a gridml.global_sync."
        )
    return lambda function: ApplyStage(function, over, at)


def uniform() -> float:
    """Return a random number from 0 to below 1, float64. Only an `exchange` may call it.

    The numbers depend on the seed of the MiniBatch, the pass, the stage and the vertex that the stage looks at, and on
    nothing else: a vertex that is trained again, because a worker died, draws the same.
    """
    raise ProgramError("gridml.uniform was called outside an exchange, which alone draws from it.")


def global_sync(function: Callable[[Any], bool | None], /) -> GlobalSync:
    """Declare what happens to a context after each pass over the data, when every worker's work is merged:

        @gridml.global_sync
        def cool(shared: Shared) -> None:
            shared.rate *= 0.93

    It is plain Python, and the master calls it. It reads accumulators, which are complete and begin the next pass as 0,
    and changes fields. The next pass starts with what it leaves. Among the stages of a MiniBatch it is called in each
    mini-batch, where all parts' pushes up to there are merged.

    If it returns True, the run ends with this pass.
    """
    return GlobalSync(function)


@dataclass(frozen=True)
class Phase:
    """The stages between two points at which the mini-batches of all parts are merged."""

    on_workers: tuple[ExchangeStage | ApplyStage, ...]  #: in order
    at_owner: tuple[ApplyStage | GlobalSync, ...]  #: in order, when all parts' pushes are merged


@dataclass(frozen=True)
class MiniBatch:
    """Stages that a worker runs one after the other, on a mini-batch of vertices at a time, or an f instead.

    `MiniBatch([train], size=64)`, where `train` is under `gridml.update`, is the program with `train` itself and a
    batch of 64; f is alone in its list, and has no option but `size`.

    Vertices are drawn in a new order in each pass. A mini-batch has up to `size` vertices, or about `edges` edges, of
    those that the exchanges look at, where some vertices have many more edges than others. Then a vertex counts as one
    edge at least. Mini-batches have nearly equal sums, and a vertex with more edges is the last of its mini-batch. They
    depend on the graph, the seed and the pass only; several workers do not share them, as they share those of `size`
    vertices without `slack`.

    With a finite `slack` a pass is cut into `parts`, at most as many as workers are worth having, and each part into
    mini-batches; without `size` and `edges` it is one. The t-th mini-batch of a part begins when all parts have
    completed t-slack-1: with slack 0, which is the default where a stage waits for all parts, these go in step, and the
    result is the same, bit for bit, for any number of workers and whatever dies. A worker pushes after each phase of a
    mini-batch, and those of a tick are merged together; so one should take seconds to train, not milliseconds. With
    `slack=math.inf` workers never wait for one another within a pass.

    A stage at the owner, or a `global_sync`, ends a *phase*: the exchanges behind it begin when those before it are
    complete in all parts, and see what it left, also across edges between local vertices. With such edges a MiniBatch
    of several phases has neither `size` nor `edges`.

    `exact=True` forbids the compiler to change the order of sums, which it does to vectorise them: compiled stages then
    compute what plain Python does, bit for bit. Raises ProgramError for invalid options.
    """

    stages: Sequence[ExchangeStage | ApplyStage | GlobalSync | Update]
    size: int | None = None
    slack: float | None = None
    parts: int = 16
    exact: bool = False
    seed: int = 0  #: of the numbers that `gridml.uniform` draws
    edges: int | None = None  #: of a mini-batch, in place of `size`

    def __post_init__(self) -> None:
        kinds = (ExchangeStage, ApplyStage, GlobalSync, Update)
        if not isinstance(self.stages, list | tuple) or not self.stages:
            raise ProgramError(f"MiniBatch got {self.stages!r}; expected a list of stages, as in [learn].")
        given: Sequence[Any] = self.stages
        for each in given:
            if not isinstance(each, kinds):
                named = each.name if isinstance(each, StageFunction) else getattr(each, "__name__", repr(each))
                raise ProgramError(
                    f"MiniBatch got {named} as a stage; expected functions under @gridml.exchange(over=...), "
                    f"@gridml.apply(...) or @gridml.global_sync, or one under @gridml.update."
                )
        if self.size is not None and self.edges is not None:
            raise ProgramError(
                f"MiniBatch got size={self.size!r} and edges={self.edges!r}; expected one of them: size=, the vertices "
                f"of a mini-batch, or edges=, about as many edges where some vertices have many more than others."
            )
        for name, counted, number in (("size", "vertices", self.size), ("edges", "edges", self.edges)):
            if number is not None and (type(number) is not int or not 1 <= number <= MAX_BATCH):
                raise ProgramError(
                    f"MiniBatch got {name}={number!r}; expected a number of {counted} from 1 to {MAX_BATCH:,}."
                )
        slack = 0 if self.slack is None else self.slack
        whole = type(slack) in (int, float) and slack >= 0 and (math.isinf(slack) or slack % 1 == 0)
        if not whole:
            raise ProgramError(
                f"MiniBatch got slack={self.slack!r}; expected a whole number of mini-batches from 0 on, or math.inf."
            )
        if math.isinf(self.lag) and self.size is None and self.edges is None:
            raise ProgramError(
                f"MiniBatch got slack={self.slack!r} and neither size nor edges; expected one of them, or no slack: "
                f"then a mini-batch is a whole part, and parts go in step."
            )
        if type(self.parts) is not int or not 1 <= self.parts <= MAX_PARTS:
            raise ProgramError(f"MiniBatch got parts={self.parts!r}; expected a number from 1 to {MAX_PARTS:,}.")
        if type(self.seed) is not int:
            raise ProgramError(f"MiniBatch got seed={self.seed!r}; expected a whole number.")
        if type(self.exact) is not bool:
            raise ProgramError(f"MiniBatch got exact={self.exact!r}; expected True or False.")
        for each in given:
            if isinstance(each, Update):
                self._check_alone(each)

    def _check_alone(self, update: Update) -> None:
        """Raise ProgramError for what an f cannot have. Its steps are those of its own optimisers or formulas, which
        run once for a batch and change replicas in place: they have no sums that a stage before or after could share,
        and a tick, which is merged in the order of parts, holds rows and no modules."""
        if len(self.stages) > 1:
            raise ProgramError(
                f"MiniBatch got {update.name}, which is under @gridml.update, among {len(self.stages)} stages; "
                f"expected it alone, as in MiniBatch([{update.name}], size=64), or compiled stages only: functions "
                f"under @gridml.exchange and @gridml.apply."
            )
        usual = {each.name: each.default for each in fields(self) if each.name not in ("stages", "size")}
        if given := [f"{name}={getattr(self, name)!r}" for name in usual if getattr(self, name) != usual[name]]:
            raise ProgramError(
                f"MiniBatch got {', '.join(given)} with {update.name}, which is under @gridml.update; expected size= "
                f"alone: the rest is for compiled stages."
            )
        if self.size is None:
            raise ProgramError(f"MiniBatch got {update.name} and no size; expected size=, the vertices of a batch.")
        if update.batch not in (None, self.size):
            raise ProgramError(
                f"MiniBatch got size={self.size}, and {update.name} is under @gridml.update(batch={update.batch}); "
                f"expected the same number."
            )

    @property
    def update(self) -> Update | None:
        """The f of a MiniBatch that has one instead of stages, with its batch. Raises ProgramError if f takes one
        vertex at a time, and the mini-batch has more."""
        first = self.stages[0]
        if not isinstance(first, Update) or first.takes_batch:
            return replace(first, batch=self.size) if isinstance(first, Update) else None
        if self.size != 1:
            raise ProgramError(
                f"MiniBatch got size={self.size}, and {first.name} takes one vertex at a time; expected size=1, or a "
                f"gridml.Batch of vertices as its first argument."
            )
        return first

    @property
    def compiled(self) -> list[ExchangeStage | ApplyStage]:
        """The stages that are compiled, in order; none if there is an f."""
        return [each for each in self.stages if isinstance(each, ExchangeStage | ApplyStage)]

    @property
    def syncs(self) -> list[GlobalSync]:
        """The functions that the master calls in each mini-batch, in order."""
        return [each for each in self.stages if isinstance(each, GlobalSync)]

    @property
    def lag(self) -> float:
        """The slack: as given, or 0 if something waits for all parts, or a mini-batch is a whole part."""
        if self.slack is not None:
            return self.slack
        exchanges = [each for each in self.stages if isinstance(each, ExchangeStage)]
        in_step = any(each.is_linked or each.is_backward for each in exchanges)
        return 0 if in_step or self.at_owner or (self.size is None and self.edges is None) else math.inf

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a mini-batch: each ends with what the owner does, and the last one may end without."""
        phases: list[Phase] = []
        for each in self.stages:
            if isinstance(each, Update):
                continue
            last = phases[-1] if phases else Phase((), ())
            if isinstance(each, GlobalSync) or (isinstance(each, ApplyStage) and each.is_by_master):
                phases[-1:] = [replace(last, at_owner=(*last.at_owner, each))]
            elif last.at_owner or not phases:
                phases.append(Phase((each,), ()))
            else:
                phases[-1] = replace(last, on_workers=(*last.on_workers, each))
        return tuple(phases)

    @property
    def at_owner(self) -> list[ApplyStage | GlobalSync]:
        """The work of the master in each mini-batch, in order."""
        return [each for phase in self.phases for each in phase.at_owner]

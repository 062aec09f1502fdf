"""Vertex types: the base class for users, and the descriptors that declare fields and edges.

A type with an `aggregate`, or with a `module`, is *replicated* (type B): the master has the authoritative copy, and
every chunk that touches it works on a replica. Every other type is *local* (type A): each of its vertices is in one
chunk. f is the program's update function, which workers call; g is the rule that merges replicas into the master's
copy.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from gridml.aggregates import Aggregate, ByName
from gridml.errors import ProgramError, UsageError
from gridml.model.device_memory import parse
from gridml.model.ragged import Declared, dtype_of, number_of, shape_of
from gridml.model.ragged import ragged as ragged_field
from gridml.model.stepping import StepOptions, Stepping
from gridml.protocol.foreign import printable

MAX_NAME_BYTES = 100  # maximum for a type's name, and for a field's name: file names contain both


class VertexId(NamedTuple):
    """One vertex: its type, and its index among the vertices of that type, in the order of `Graph.add`."""

    type: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used here


class array(Declared):
    """An array field: every vertex of the type holds an array of `shape` and `dtype`.

    `shared=True`: the column is a memory-mapped file that workers can read under the same path, or have in their
    working directory. Chunks then name its rows instead of carrying them.

    `mutable=True`: f may change the field of local vertices, and pushes return it. Fields of replicated vertices are
    always mutable. In f the field reads as a torch tensor if the program has a module, otherwise as a numpy array.
    """

    own_rule: Aggregate | None = None  #: the rule of this field, whatever the type's; None: that of the type
    travels: ClassVar[bool] = True  #: False: the field exists on workers only (`gridml.model.stage_fields`)

    def __init__(self, dtype: Any, shape: tuple[int, ...] = (), *, mutable: bool = False, shared: bool = False) -> None:
        self.dtype = number_of(dtype, "gridml.array")
        self.shape = shape_of(shape, "gridml.array")
        if mutable and shared:
            raise ProgramError(
                "gridml.array got mutable=True and shared=True; expected one of them, as f changes no file."
            )
        self.mutable = mutable
        self.shared = shared


class module(Declared):
    """A torch module field, made by `factory()`, with its worker-local optimiser made by `optimiser(parameters)`.

    Pushes contain the module's state. The optimiser's state stays in the worker process, except second moments, which
    new workers start from. The module trains on the worker's device (`gridml run --device`), or on `device`: "cpu",
    "cuda", "cuda:1". If the module is in bfloat16 or float16, the master's copy is in float32. `factory` and
    `optimiser` must be functions, because every process makes its own objects. Raises ProgramError for anything else,
    and for an invalid device.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        optimiser: Callable[[Any], Any] | None = None,
        *,
        device: str | None = None,
    ) -> None:
        if isinstance(factory, module):
            raise ProgramError(
                f"gridml.module got the field {factory.name or 'above it'!r} of the same class: inside a class, the "
                f"name of a declared field means the field. Give the factory another name than the field."
            )
        if not callable(factory) or (hasattr(factory, "state_dict") and not isinstance(factory, type)):
            raise ProgramError(
                f"gridml.module got {type(factory).__name__}; expected a function that makes the module, as in "
                f"gridml.module(lambda: Network(10))."
            )
        if optimiser is not None and not callable(optimiser):
            raise ProgramError(
                f"gridml.module got {type(optimiser).__name__} as its optimiser; expected a function that makes "
                f"it from the parameters, as in functools.partial(torch.optim.SGD, lr=0.1)."
            )
        if device is not None:
            try:
                parse(device, "the device of gridml.module")
            except UsageError as error:
                raise ProgramError(str(error)) from None
        self.factory = factory
        self.optimiser = optimiser
        self.device = device


class edge(Declared):
    """Edges from each vertex of this type to vertices of `target` (a class, or its name if it is defined later).

    `weight` is the dtype of a number on every edge (a rating, a count), or None. Further fields of every edge are
    declared by name, as in `topic=gridml.array("int32", mutable=True)`; only stages read them, and change mutable ones.
    Raises ProgramError for a field that is no plain gridml.array.
    """

    def __init__(self, target: type[Vertex] | str, *, weight: Any = None, **fields: array) -> None:
        if not isinstance(target, str) and not (isinstance(target, type) and issubclass(target, Vertex)):
            raise ProgramError(
                f"gridml.edge got {target!r}; expected the vertex type that the edges lead to: a subclass of "
                f"gridml.Vertex, which holds a torch module as a field, gridml.module(factory, optimiser)."
            )
        self.target = target
        self.weight = None if weight is None else dtype_of(weight)
        if self.weight is not None and self.weight.kind not in "biuf":
            raise ProgramError(f"gridml.edge got weight {self.weight}; expected the dtype of a number on every edge.")
        for name, each in fields.items():
            if type(each) is not array or each.shared or name == "end" or name.startswith("_"):
                raise ProgramError(
                    f"gridml.edge got {name}={each!r}; expected a field of every edge, as in "
                    f'topic=gridml.array("int32", mutable=True), under a name other than end.'
                )
            each.name = name
        self.fields = fields

    def __get__(self, vertex: Vertex | None, owner: type) -> Any:
        return self if vertex is None else vertex._store.neighbours(self.name, vertex._at)

    def __set__(self, vertex: Vertex, value: Any) -> None:
        raise ProgramError(
            f"{type(vertex).__name__}.{self.name} was written; edges are made in graph() and do not change."
        )


class VertexStore(Protocol):
    """The storage of a vertex's values while f, g or evaluate uses it. `at` is a position in the store."""

    def identify(self, at: int) -> VertexId: ...
    def read(self, name: str, at: int) -> Any: ...
    def write(self, name: str, at: int, value: Any) -> None: ...
    def neighbours(self, name: str, at: int) -> list[Vertex]: ...
    def weights(self, name: str, at: int) -> list[Any]: ...
    def optimisers(self, at: int) -> dict[str, Any]: ...  # the optimisers by module field
    @property
    def stepping(self) -> Stepping: ...


class Vertex:
    """Base class of all vertex types. Subclass it, but do not call it: gridml makes the objects that f, g and evaluate
    receive, which are views of a store.

    `aggregate` is the merge rule g: a rule such as `gridml.stale_mean()`, `gridml.by_name({...})`, or a method
    `aggregate(self, replica, merge)` that changes `self`.
    """

    aggregate: ClassVar[Any] = None
    _declared: ClassVar[VertexType]  # cache of `describe`
    _store: VertexStore
    _at: int  # the position in the store

    @classmethod
    def _view(cls, store: VertexStore, at: int) -> Vertex:
        vertex = object.__new__(cls)
        vertex.__dict__.update(_store=store, _at=at)  # bypasses __setattr__: views are made for every vertex
        return vertex

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ProgramError(
            f"{type(self).__name__}() was called. Vertices are added with graph.add({type(self).__name__}, ...)."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):
            vertex_type = describe(type(self))
            raise ProgramError(f"{vertex_type.name} has no field {name!r} to write; it has {vertex_type.fields}.")
        object.__setattr__(self, name, value)

    def get_id(self) -> VertexId:
        """Return the vertex's type and index."""
        return self._store.identify(self._at)

    def get_data(self) -> Any:
        """Return the value of the vertex's only field, or a dict of values by field name if it has several fields."""
        fields = describe(type(self)).fields
        if len(fields) == 1:
            return self._store.read(fields[0], self._at)
        return {name: self._store.read(name, self._at) for name in fields}

    def get_neighbours(self) -> list[Vertex]:
        """Return all vertices that this one's edges lead to, by edge field in the order of declaration."""
        return [n for name in describe(type(self)).edges for n in self._store.neighbours(name, self._at)]

    def get_weights(self) -> list[Any]:
        """Return the edge weight of each of `get_neighbours()`, in the same order; None for an edge without weight."""
        return [w for name in describe(type(self)).edges for w in self._store.weights(name, self._at)]

    def update_value(self, vertex_id: VertexId, data: Any) -> None:
        """Write `data`, in the form of `get_data`, to this vertex or to one of its neighbours."""
        for vertex in (self, *self.get_neighbours()):
            if vertex.get_id() == vertex_id:
                fields = describe(type(vertex)).fields
                values = {fields[0]: data} if len(fields) == 1 else dict(data)
                for name, value in values.items():
                    vertex._store.write(name, vertex._at, value)
                return
        raise ProgramError(
            f"update_value got {vertex_id}, which is neither {self.get_id()} itself nor one of its neighbours. "
            f"f may change only those."
        )

    @property
    def optimisers(self) -> dict[str, Any]:
        """The optimisers of this vertex's modules, by field.

        f may step them itself, in every call. While running statistics are recomputed, their steps do nothing.
        """
        return self._store.optimisers(self._at)

    @property
    def optimiser(self) -> Any:
        """The only optimiser of this vertex's modules. Raises ProgramError if there is none, or several."""
        own = self.optimisers
        if len(own) != 1:
            has = f"several, of the fields {', '.join(own)}: use .optimisers" if own else _NO_OPTIMISER
            raise ProgramError(f"{type(self).__name__}.optimiser was read, but the vertex has {has}.")
        return next(iter(own.values()))

    def step(
        self,
        loss: Any,
        *others: Vertex,
        clip_norm: float | None = None,
        accumulate: int | None = None,
        scaler: Any = None,
    ) -> None:
        """Take an optimiser step on this vertex's modules, and on those of `others`, for a scalar torch `loss`. Does
        nothing while running statistics are recomputed.

        `clip_norm` bounds the 2-norm of all gradients of these modules together, by scaling them (Pascanu et al., arXiv
        1211.5063). `accumulate`, by default that of `gridml.update`, is the number of calls whose mean gradient a step
        uses: each loss is divided by it. Before each push and at the end of every chunk, accumulated gradients are
        applied in a step. `scaler` is a `torch.amp.GradScaler`.

        Raises `NotFiniteError`, before any parameter changes, if the loss is NaN or infinite, or if the norm of
        gradients to be clipped is. On a GPU these numbers are checked later, before the next push.
        """
        optimisers: list[Any] = []
        for vertex in (self, *others):
            own = vertex._store.optimisers(vertex._at)
            if not own:
                raise ProgramError(f"step was called for {type(vertex).__name__}, which has {_NO_OPTIMISER}.")
            optimisers += own.values()
        self._store.stepping.take(loss, optimisers, StepOptions(clip_norm, accumulate, scaler))


_NO_OPTIMISER = "no module with an optimiser. Write gridml.module(factory, partial(torch.optim.SGD, lr=0.05))"
# Names that no field may have: f would get the attribute of Vertex or Batch instead of the field.
RESERVED = frozenset(name for name in vars(Vertex) if not name.startswith("_")) - {"aggregate"} | {"ids"}


@dataclass(frozen=True)
class VertexType:
    """The declaration of a vertex class. All fields are by name, in the order of declaration."""

    cls: type[Vertex]
    arrays: dict[str, array] = field(default_factory=dict)
    modules: dict[str, module] = field(default_factory=dict)
    edges: dict[str, edge] = field(default_factory=dict)
    ragged: dict[str, ragged_field] = field(default_factory=dict)
    workspace: dict[str, array] = field(default_factory=dict)  #: fields that never leave a worker

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def fields(self) -> list[str]:
        return [*self.arrays, *self.ragged, *self.modules]

    @property
    def accumulators(self) -> list[str]:
        """Names of the fields that have a rule of their own, and begin each pass as 0."""
        return [name for name, each in self.arrays.items() if each.own_rule is not None]

    @property
    def replicated(self) -> bool:
        return bool(self.modules) or self.cls.aggregate is not None

    @property
    def rule(self) -> Aggregate | ByName | None:
        """The declared merge rule; None for the default and for a user's own method."""
        declared = self.cls.aggregate
        if not isinstance(declared, Aggregate | ByName):
            return None
        own = tuple((f"*/{name}", each.own_rule) for name, each in self.arrays.items() if each.own_rule is not None)
        others = declared.patterns if isinstance(declared, ByName) else (("*", declared),)
        return ByName(own + others) if own else declared

    @property
    def has_own_rule(self) -> bool:
        """True if g is a method of the vertex class."""
        return self.cls.aggregate is not None and not isinstance(self.cls.aggregate, Aggregate | ByName)

    @property
    def mutable(self) -> list[str]:
        """Names of the mutable fields of a local type, which pushes return; empty for a replicated type."""
        return [] if self.replicated else [name for name, a in self.arrays.items() if a.mutable]

    def mutable_of_edge(self, edge_name: str) -> list[str]:
        """Names of the mutable fields of edges that start at vertices of this type; empty for a replicated type."""
        if self.replicated or not edge_name.isidentifier():  # edges by their ends, which nothing changes
            return []
        return [n for n, each in self.edges[edge_name].fields.items() if each.mutable]

    def target(self, edge_name: str) -> type[Vertex]:
        """Return the class that an edge leads to. Raises ProgramError for an unknown name."""
        target = self.edges[edge_name].target
        if isinstance(target, str):
            named = vars(sys.modules[self.cls.__module__]).get(target)
            if target == self.name:
                return self.cls
            if not (isinstance(named, type) and issubclass(named, Vertex)):
                raise ProgramError(
                    f"{self.name}.{edge_name} leads to {target!r}; no vertex type of that name is in the file."
                )
            return named
        return target


def describe(cls: type[Vertex]) -> VertexType:
    """Return the declaration of a vertex class, fields of base classes first. Raises ProgramError if the declaration is
    invalid."""
    declared = vars(cls).get("_declared")  # `getattr` would find the declaration of a base class
    if declared is None:
        declared = cls._declared = _declaration(cls)  # cached: it is read for every vertex that f touches
    return declared


def check_plain(function: Any, name: str, arguments: int | None = None) -> None:
    """Raise ProgramError unless `function` can be called with this many positional arguments (None: any number). A
    generator or coroutine is rejected, because a call would not run its body."""
    if not callable(function):
        raise ProgramError(f"{name} is {function!r}; expected a function.")
    if any(test(function) for test in _NOT_PLAIN):
        raise ProgramError(f"{name} is a generator or a coroutine, so a call would do nothing; write a plain function.")
    try:
        taken = inspect.signature(function)
    except (TypeError, ValueError):  # callables of C extensions may have no signature
        return
    kinds = {p.kind for p in taken.parameters.values()}
    if arguments is None and kinds - {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        raise ProgramError(f"{name} takes {taken}; expected arguments by position, without *, ** or keyword-only ones.")
    try:
        _ = taken.bind(*range(arguments)) if arguments is not None else None
    except TypeError as error:
        raise ProgramError(f"{name} takes {taken}, which is not {arguments} arguments: {error}.") from error


_NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def _declaration(cls: type[Vertex]) -> VertexType:
    declared = VertexType(cls)
    arrays, modules, edges, lists = declared.arrays, declared.modules, declared.edges, declared.ragged
    kinds: dict[type, dict[str, Any]] = {array: arrays, module: modules, edge: edges, ragged_field: lists}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            for descriptor, into in kinds.items():
                into.pop(name, None)  # a subclass may declare the name again, as another kind
                if isinstance(value, descriptor):
                    into[name] = value
    # The accumulators of a local vertex are complete where the vertex is.
    stays = [n for n, each in arrays.items() if not each.travels or (each.own_rule and not declared.replicated)]
    declared.workspace.update({name: arrays.pop(name) for name in stays})
    for name in (cls.__name__, *declared.fields, *declared.edges):
        if not name.isidentifier() or len(name.encode()) > MAX_NAME_BYTES:
            owner, got = printable(cls.__name__, MAX_NAME_BYTES), printable(repr(name), MAX_NAME_BYTES)
            wanted = f"an identifier of at most {MAX_NAME_BYTES} bytes, because file names contain it"
            raise ProgramError(f"{owner} has the name {got}; expected {wanted}.")
    taken = [
        name
        for name in (*declared.fields, *declared.workspace, *declared.edges)
        if name in RESERVED or name.startswith("_")
    ]
    if taken:
        raise ProgramError(
            f"{cls.__name__} has a field called {taken[0]}, a name that vertices and batches use themselves. Call it "
            f"something else; names with a leading underscore and {', '.join(sorted(RESERVED))} are taken."
        )
    if modules and arrays:
        raise ProgramError(
            f"{cls.__name__} has both modules ({', '.join(modules)}) and arrays ({', '.join(arrays)}). Put the arrays "
            f"on a vertex type of their own."
        )
    if declared.has_own_rule and (not callable(cls.aggregate) or isinstance(cls.aggregate, type)):
        raise ProgramError(
            f"{cls.__name__}.aggregate is {cls.aggregate!r}; expected a rule such as gridml.stale_mean(), "
            f"gridml.by_name({{...}}) or a method aggregate(self, replica, merge)."
        )
    of_replicated = [name for name, each in declared.workspace.items() if not each.own_rule]
    if not declared.rule and (own := [*declared.accumulators, *of_replicated]):
        raise ProgramError(
            f"{cls.__name__}.{own[0]} is a field of stages, and {cls.__name__} has {cls.aggregate or 'no aggregate'}; "
            f"such fields belong to a replicated type with a rule, such as aggregate = gridml.owned()."
        )
    least = [name for name, each in arrays.items() if getattr(each, "by", "") == "min"]
    if least:
        raise ProgramError(
            f"{cls.__name__}.{least[0]} is a minimum, and {cls.__name__} is replicated; a minimum belongs to a local "
            f"type. Take the maximum of the negative numbers."
        )
    if declared.has_own_rule:
        check_plain(cls.aggregate, f"{cls.__name__}.aggregate", 3)
    shared = [name for name, each in declared.arrays.items() if each.shared]
    if declared.replicated and shared:
        raise ProgramError(f"{cls.__name__}.{shared[0]} is shared=True, and the type is replicated: its rows change.")
    if declared.replicated and declared.ragged:
        raise ProgramError(
            f"{cls.__name__} is replicated and has fields of differing length ({', '.join(declared.ragged)}), which "
            f"cannot be merged. Declare them on a local type, or as gridml.array."
        )
    if declared.replicated and declared.edges:
        raise ProgramError(
            f"{cls.__name__} is replicated and has edges ({', '.join(declared.edges)}); edges start at local vertices. "
            f"Declare the edge on the other type."
        )
    return declared


def reachable(cls: type[Vertex]) -> dict[str, VertexType]:
    """Return the types reachable by edges from `cls`, itself first, by name. Raises ProgramError if two have the same
    name."""
    types: dict[str, VertexType] = {}
    waiting = [cls]
    while waiting:
        vertex_type = describe(waiting.pop())
        if vertex_type.name not in types:
            types[vertex_type.name] = vertex_type
            waiting += [vertex_type.target(name) for name in vertex_type.edges]
        elif types[vertex_type.name].cls is not vertex_type.cls:
            raise ProgramError(f"two vertex types are called {vertex_type.name}; give one of them another name.")
    return types

"""The tensors of messages: the content of pushes and replies by name, and codecs that encode syncs and replies.

A bundle holds tensors by name, without nesting. Their names:

    Type/index/field/parameter    a tensor of a module vertex
    @int8/NAME, @int4/NAME        uint8 (bytes,): the step of such a tensor from the push's base, compressed
    @bf16/NAME                    uint16: the upper halves of such a tensor, in a reply
    @moments/ENTRY/NAME           an entry of the optimiser's state for such a tensor: uint16 (bfloat16 bits) in the
                                  tensor's shape, or float32 ()
    @rows/Type                    ids (n,) of rows of a replicated type; all fields of the rows follow as Type/field
    @ids/Type                     ids (n,) of local vertices; the fields that f changed follow as Type/field
    Type/field                    (n, *shape), a field of the rows in `@rows/Type` or `@ids/Type`
    @older/Type                   ids (n,) of rows that the receiver of a reply has as they were before
    @changed/PART/Type/field      counts, elements and steps of a field of which only the changed elements travel
                                  (`gridml.protocol.changes`): of the rows in `@rows/Type` of a push, and of those in
                                  `@older/Type` of a reply

Ids are int32 if they fit, else int64. This module checks the structure; the master checks the values against the graph.

Real workers exchange bundles. A simulation of ten thousand workers passes millions of messages within one process:
encoding them would dominate its run time, so `InProcessCodec` passes the objects. The rest of the master is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gridml.protocol import bundle
from gridml.protocol.bundle import MAX_HEADER_BYTES
from gridml.protocol.changes import PARTS, ChangedElements
from gridml.protocol.compression import BFLOAT16, FORMATS, TensorStep, bfloat16, from_bfloat16
from gridml.protocol.foreign import MAX_NAME_CHARS, printable
from gridml.protocol.messages import Reply, Sync, sync_from, to_json
from gridml.protocol.payload import Arrived, Payload

Array = NDArray[Any]
Ids = NDArray[np.int64]
VertexKey = tuple[str, int]  # (type name, index), as in a VertexId
ModuleTensors = Mapping[str, Array]  # of one module vertex, by full tensor name

MAX_TENSOR_NAME_CHARS = 1_000
_OLDER = "@older/"
_ROWS, _IDS, _SHORT, _MOMENTS, _CHANGED = "@rows/", "@ids/", f"@{BFLOAT16}/", "@moments/", "@changed/"


@dataclass(frozen=True)
class RowValues:
    """Rows of one type."""

    ids: Ids  # int64 (n,), indices in the graph, each once
    fields: Mapping[str, Array]  # by name, each (n, *shape)

    def take(self, positions: Ids | slice) -> RowValues:
        """Return the rows at `positions`, which count from 0 in this object and are not ids."""
        return RowValues(self.ids[positions], {name: values[positions] for name, values in self.fields.items()})


Fields = Mapping[str, RowValues]  # fields of local vertices, by type name


@dataclass(frozen=True)
class ChangedRows:
    """Rows of one type, as changes of what the receiver has."""

    ids: Ids  # int64 (n,), indices in the graph, each once
    changes: Mapping[str, ChangedElements]  # of every field


@dataclass(frozen=True)
class ReplicaPart:
    """A part of the replica: some module vertices and some rows."""

    modules: Mapping[VertexKey, ModuleTensors] = field(default_factory=dict)  # by vertex: its changed tensors
    rows: Mapping[str, RowValues] = field(default_factory=dict)  # by type
    short: Collection[str] = ()  # names of float32 tensors that are sent in bfloat16
    moments: Mapping[str, Array] = field(default_factory=dict)  # optimiser state of weights, by "entry/NAME"
    changed: Mapping[str, ChangedRows] = field(default_factory=dict)  # by type: rows of a reply that are in no `rows`

    def __bool__(self) -> bool:
        """Return whether this part holds any tensor or row; moments do not count."""
        return bool(self.modules or self.rows or self.changed)

    def updated(self, newer: ReplicaPart) -> ReplicaPart:
        """Return this part with the values of `newer` in place of its own: by tensor for modules, by type for rows."""
        modules = {key: {**self.modules.get(key, {}), **tensors} for key, tensors in newer.modules.items()}
        moments = {**self.moments, **newer.moments}
        return ReplicaPart({**self.modules, **modules}, {**self.rows, **newer.rows}, moments=moments)


Steps = Mapping[VertexKey, Mapping[str, TensorStep]]  # of module vertices, by full tensor name
Changes = Mapping[str, Mapping[str, ChangedElements]]  # of rows, by type name and field


@dataclass(frozen=True)
class PushContent:
    """The tensors of a sync."""

    replica: ReplicaPart = field(default_factory=ReplicaPart)  # trained tensors and rows that are sent by value
    fields: Fields = field(default_factory=dict)  # changed fields of local vertices
    steps: Steps = field(default_factory=dict)  # trained tensors that are sent as compressed steps
    changes: Changes = field(default_factory=dict)  # fields of the rows in `replica` of which changed elements are sent


NOTHING = PushContent()  # the content of a sync without a push


def module_key(name: str) -> VertexKey | None:
    """Return the module vertex that a tensor name refers to; None for the name of an array field. Raises ValueError for
    any other name."""
    parts = name.split("/", 2)
    if len(parts) == 3 and parts[1].isdecimal():
        return parts[0], int(parts[1])
    if len(parts) == 2:
        return None
    raise ValueError(f"a tensor is called {name!r}; expected Type/field or Type/index/field/parameter")


def encode(content: PushContent) -> dict[str, Array]:
    """Return the named tensors of a push."""
    steps = {f"@{s.form.name}/{name}": s.codes for vertex in content.steps.values() for name, s in vertex.items()}
    changes = _encode_changes(content.changes)
    return {**encode_replica(content.replica), **_encode_rows(_IDS, content.fields), **steps, **changes}


def _encode_changes(changes: Changes) -> dict[str, Array]:
    return {
        f"{_CHANGED}{part}/{type_name}/{name}": values
        for type_name, fields in changes.items()
        for name, changed in fields.items()
        for part, values in changed.parts.items()
    }


def encode_replica(part: ReplicaPart) -> dict[str, Array]:
    """Return the named tensors of a part of the replica."""
    modules = {name: tensor for tensors in part.modules.values() for name, tensor in tensors.items()}
    if part.short:
        short = {name: tensor for name, tensor in modules.items() if name in part.short}
        modules = {name: tensor for name, tensor in modules.items() if name not in short}
        modules |= {f"{_SHORT}{name}": bfloat16(tensor) for name, tensor in short.items()}
    moments = {f"{_MOMENTS}{name}": values for name, values in part.moments.items()}
    older = {f"{_OLDER}{type_name}": bundle.narrowed(each.ids) for type_name, each in part.changed.items()}
    changes = _encode_changes({type_name: each.changes for type_name, each in part.changed.items()})
    return {**modules, **_encode_rows(_ROWS, part.rows), **moments, **older, **changes}


def _encode_rows(prefix: str, types: Mapping[str, RowValues]) -> dict[str, Array]:
    tensors: dict[str, Array] = {f"{prefix}{type_name}": bundle.narrowed(rows.ids) for type_name, rows in types.items()}
    for type_name, rows in types.items():
        tensors.update({f"{type_name}/{name}": values for name, values in rows.fields.items()})
    return tensors


def decode(tensors: Mapping[str, Array]) -> PushContent:
    """Return the push in named tensors. Raises ValueError for names or shapes that a push cannot have."""
    modules: dict[VertexKey, dict[str, Array]] = {}
    ids: dict[str, dict[str, Array]] = {_ROWS: {}, _IDS: {}}
    fields: dict[str, dict[str, Array]] = {}
    steps: dict[VertexKey, dict[str, TensorStep]] = {}
    moments: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if len(name) > MAX_TENSOR_NAME_CHARS or not name.isprintable():  # error messages quote names
            raise ValueError(f"a tensor is called {printable(repr(name), MAX_NAME_CHARS)}; expected a name that prints")
        prefix = _ROWS if name.startswith(_ROWS) else _IDS if name.startswith(_IDS) else None
        if prefix is not None:
            ids[prefix][name.removeprefix(prefix)] = tensor
        elif name.startswith(_MOMENTS):
            moments[_moment(name, tensor)] = tensor
        elif name.startswith(_CHANGED):
            continue  # below
        elif name.startswith("@"):
            vertex, whole, step = _step(name, tensor)
            if steps.setdefault(vertex, {}).setdefault(whole, step) is not step or whole in tensors:
                raise ValueError(f"{whole} comes twice; expected its values, or its step in one format")
        elif (key := module_key(name)) is not None:
            modules.setdefault(key, {})[name] = tensor
        else:
            type_name, field_name = name.split("/")
            fields.setdefault(type_name, {})[field_name] = tensor
    if twice := ids[_ROWS].keys() & ids[_IDS].keys():
        raise ValueError(f"{min(twice)} comes both as rows of the replica and as local vertices; expected one of them")
    if lost := fields.keys() - ids[_ROWS].keys() - ids[_IDS].keys():
        type_name = min(lost)
        raise ValueError(f"{type_name}/{min(fields[type_name])} came without the ids of its rows")
    rows, local = (
        {type_name: _row_values(type_name, at, fields.get(type_name, {})) for type_name, at in ids[prefix].items()}
        for prefix in (_ROWS, _IDS)
    )
    return PushContent(ReplicaPart(modules, rows, moments=moments), local, steps, _changes(tensors, rows))


def _changes(tensors: Mapping[str, Array], rows: Mapping[str, RowValues]) -> Changes:
    """Return the changed elements of fields among named tensors. Raises ValueError for parts that are missing, and for
    fields of no row, or of rows that come whole."""
    named: dict[str, dict[str, Array]] = {}  # by "Type/field": the parts
    for name, tensor in tensors.items():
        if name.startswith(_CHANGED):
            part, _, whole = name.removeprefix(_CHANGED).partition("/")
            named.setdefault(whole, {})[part] = tensor
    found: dict[str, dict[str, ChangedElements]] = {}
    for whole, parts in named.items():
        if module_key(whole) is not None:
            raise ValueError(f"the changed elements of {whole} came; expected a field of rows, Type/field")
        if parts.keys() != {*PARTS}:
            raise ValueError(
                f"{whole} came with {', '.join(sorted(parts))} of its changes; expected {', '.join(PARTS)}"
            )
        type_name, name = whole.split("/")
        if type_name not in rows:
            raise ValueError(f"the changes of {whole} came without the ids of its rows")
        if name in rows[type_name].fields:
            raise ValueError(f"{whole} comes twice; expected its rows, or their changes")
        found.setdefault(type_name, {})[name] = ChangedElements(**parts)
    return found


def _moment(name: str, values: Array) -> str:
    """Return the key "entry/NAME" of a tensor of moments. Raises ValueError for a wrong name or dtype."""
    whole = name.removeprefix(_MOMENTS)
    if module_key(whole.partition("/")[2]) is None:
        raise ValueError(f"a tensor is called {name!r}; expected {_MOMENTS}ENTRY/ and a module's tensor")
    if values.dtype != (np.uint16 if values.ndim else np.float32):
        raise ValueError(f"{name} is {values.dtype} {values.shape}; expected bfloat16 as uint16, or float32 ()")
    return whole


def _step(name: str, codes: Array) -> tuple[VertexKey, str, TensorStep]:
    """Return (vertex, full tensor name, step) of a compressed tensor."""
    form, _, whole = name.removeprefix("@").partition("/")
    key = module_key(whole) if form in FORMATS else None
    if key is None:
        raise ValueError(f"a tensor is called {name!r}; expected @rows, @ids or a module's tensor in a known format")
    return key, whole, TensorStep(FORMATS[form], codes)


def decode_replica(tensors: Mapping[str, Array]) -> ReplicaPart:
    """Return the part of the replica in the named tensors of a reply. Raises ValueError as `decode` does."""
    short = {name: from_bfloat16(t) for name, t in tensors.items() if name.startswith(_SHORT)}
    older = {name.removeprefix(_OLDER): ids for name, ids in tensors.items() if name.startswith(_OLDER)}
    have = {type_name: _row_values(type_name, ids, {}) for type_name, ids in older.items()}
    changes = _changes(tensors, have)
    others = (*short, *(name for name in tensors if name.startswith((_OLDER, _CHANGED))))
    values = {name: tensor for name, tensor in tensors.items() if name not in others}
    content = decode(values | {name.removeprefix(_SHORT): tensor for name, tensor in short.items()})
    if content.fields or content.steps:
        extra = "compressed steps" if content.steps else f"local fields of {min(content.fields)}"
        raise ValueError(f"a reply holds {extra}; expected the replica alone")
    changed = {type_name: ChangedRows(rows.ids, changes.get(type_name, {})) for type_name, rows in have.items()}
    return replace(content.replica, changed=changed)


def _row_values(type_name: str, ids: Array, fields: dict[str, Array]) -> RowValues:
    if ids.dtype not in (np.int32, np.int64) or ids.ndim != 1:
        raise ValueError(f"the ids of {type_name} are {ids.dtype} {ids.shape}; expected int32 or int64 (n,)")
    if not ((ids[1:] > ids[:-1]).all() or len(np.unique(ids)) == len(ids)):  # np.unique sorts, so only if needed
        raise ValueError(f"the ids of {type_name} name a row twice; expected each once")
    for name, values in fields.items():
        if values.ndim < 1 or len(values) != len(ids):
            raise ValueError(
                f"{type_name}/{name} has {values.dtype} {values.shape}; expected {len(ids)} rows, as many as ids"
            )
    return RowValues(ids.astype(np.int64, copy=False), fields)


def encode_patch(pushes: Sequence[Fields]) -> dict[str, Array]:
    """Return the local fields of several pushes as named tensors. Each name begins with the index of its push."""
    return {f"{i}/{name}": t for i, fields in enumerate(pushes) for name, t in _encode_rows(_IDS, fields).items()}


def decode_patch(tensors: Mapping[str, Array], pushes: int) -> list[Fields]:
    """Return the local fields of `pushes` pushes, in order. Raises ValueError as `decode` does."""
    named: list[dict[str, Array]] = [{} for _ in range(pushes)]
    for name, tensor in tensors.items():
        number, _, rest = name.partition("/")
        named[int(number)][rest] = tensor
    return [decode(of_one).fields for of_one in named]


class MalformedPush(ValueError):
    """The message of a sync is valid, its tensors are not. The push is refused, and the reply gives the reason."""

    def __init__(self, sync: Sync, reason: str) -> None:
        super().__init__(reason)
        self.sync = sync


class Codec(ABC):
    """Reads syncs and writes replies for the master."""

    @abstractmethod
    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        """Return the sync of a payload, checked against its bounds, and the tensors sent with it.

        Raises MalformedPush, a ValueError, if only the tensors are invalid, and ValueError for an invalid message.
        """

    @abstractmethod
    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        """Return a reply, and the part of the replica sent with it, as a payload."""


@final
class BundleCodec(Codec):
    """Encodes messages as bundles, as real workers do."""

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        message, tensors = bundle.opened(payload, max_header)
        sync = sync_from(message)
        try:
            return sync, decode(tensors)
        except ValueError as error:
            raise MalformedPush(sync, str(error)) from error

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        return bundle.pieces(to_json(reply), encode_replica(replica))


class InProcessPayload(bytes):
    """An empty payload that carries its message as an object."""

    message: object  # a Sync or a Reply; simulated attackers may put anything here


def in_process_payload(message: object) -> InProcessPayload:
    """Return a payload that carries `message`: a Sync, a Reply, or an object to be parsed as the JSON of a sync."""
    payload = InProcessPayload()
    payload.message = message
    return payload


@final
class InProcessCodec(Codec):
    """Passes messages without tensors, in `InProcessPayload`. A Sync is trusted; any other object is parsed as JSON."""

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        message = payload.message if isinstance(payload, InProcessPayload) else None
        return message if isinstance(message, Sync) else sync_from(message), NOTHING

    def write(self, reply: Reply, replica: ReplicaPart) -> bytes:
        return in_process_payload(reply)

"""Encoding of a sync and its reply, and the tensors that need not travel because they did not change.

A message is written as a bundle, or handed over where nothing really travels. A simulation of ten thousand workers
exchanges millions of messages between objects of one process. Writing and reading each would measure JSON;
everything else that the master does with them stays the same.

A tensor that a push does not bring is, bit for bit, what the push's base holds. So a frozen backbone stays where it
is, and the rule that merges the push sees p = b for it, as if it had come. A vertex that was used comes with one
tensor at least: that it was used and not changed is a fact, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from numpy.typing import NDArray

from gridml.aggregates.base import same_bits
from gridml.protocol import bundle
from gridml.protocol.bundle import LONGEST_HEADER
from gridml.protocol.messages import Reply, Sync, sync_from, to_json
from gridml.protocol.payload import Arrived, Payload
from gridml.protocol.push import NOTHING, ModuleTensors, PushContent, ReplicaPart, VertexKey, decode, encode_replica

Array = NDArray[Any]


class MalformedPush(ValueError):
    """A sync whose message makes sense and whose tensors do not: its push can be refused, and the worker told why."""

    def __init__(self, sync: Sync, reason: str) -> None:
        super().__init__(reason)
        self.sync = sync


class Codec(ABC):
    """The master's way to read syncs and to write replies."""

    @abstractmethod
    def read(self, payload: Arrived, longest_header: int = LONGEST_HEADER) -> tuple[Sync, PushContent]:
        """Return the sync of a payload, within its bounds, and what travels beside it.

        Raises ValueError for what is no sync, MalformedPush (one of them) where only the tensors make no sense.
        """

    @abstractmethod
    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        """Return a reply, and what of the replica travels beside it, as a payload."""


@final
class BundleCodec(Codec):
    """Bundles, as real workers read and write them."""

    def read(self, payload: Arrived, longest_header: int = LONGEST_HEADER) -> tuple[Sync, PushContent]:
        message, tensors = bundle.opened(payload, longest_header)
        sync = sync_from(message)
        try:
            return sync, decode(tensors)
        except ValueError as error:
            raise MalformedPush(sync, str(error)) from error

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        return bundle.pieces(to_json(reply), encode_replica(replica))


class InProcessPayload(bytes):
    """A payload of no bytes that holds its message as it is. One from outside may hold anything."""

    message: object


def spoken(message: object) -> InProcessPayload:
    """Return a payload that holds `message`: a Sync or a Reply, or what only claims to be the JSON of a sync."""
    payload = InProcessPayload()
    payload.message = message
    return payload


@final
class InProcessCodec(Codec):
    """Messages handed over without tensors, in `InProcessPayload` payloads. A Sync is taken as it is, as nobody
    wrote it down; anything else as if it came from a line."""

    def read(self, payload: Arrived, longest_header: int = LONGEST_HEADER) -> tuple[Sync, PushContent]:
        message = payload.message if isinstance(payload, InProcessPayload) else None
        return message if isinstance(message, Sync) else sync_from(message), NOTHING

    def write(self, reply: Reply, replica: ReplicaPart) -> bytes:
        return spoken(reply)


def changed(tensors: ModuleTensors, base: ModuleTensors) -> ModuleTensors:
    """Return the tensors of a used vertex that differ from those of `base`; the smallest where none does."""
    differ = {name: t for name, t in tensors.items() if name not in base or not same_bits(t, base[name])}
    return differ or dict(sorted(tensors.items(), key=lambda item: item[1].nbytes)[:1])


def put_back(
    modules: Mapping[VertexKey, ModuleTensors], base: Mapping[VertexKey, ModuleTensors]
) -> dict[VertexKey, ModuleTensors]:
    """Return the vertices of a push with all their tensors: what is missing is the very array of `base`."""
    return {key: {**base[key], **tensors} for key, tensors in modules.items()}

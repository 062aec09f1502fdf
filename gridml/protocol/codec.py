"""Encoding of a sync and its reply.

A message is written as a bundle, or handed over where nothing really travels. A simulation of ten thousand workers
exchanges millions of messages between objects of one process. Writing and reading each would measure JSON;
everything else that the master does with them stays the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from gridml.protocol import bundle
from gridml.protocol.bundle import MAX_HEADER_BYTES
from gridml.protocol.messages import Reply, Sync, sync_from, to_json
from gridml.protocol.payload import Arrived, Payload
from gridml.protocol.push import NOTHING, PushContent, ReplicaPart, decode, encode_replica


class MalformedPush(ValueError):
    """A sync whose message makes sense and whose tensors do not: its push can be refused, and the worker told why."""

    def __init__(self, sync: Sync, reason: str) -> None:
        super().__init__(reason)
        self.sync = sync


class Codec(ABC):
    """The master's way to read syncs and to write replies."""

    @abstractmethod
    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        """Return the sync of a payload, within its bounds, and what travels beside it.

        Raises ValueError for what is no sync, MalformedPush (one of them) where only the tensors make no sense.
        """

    @abstractmethod
    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        """Return a reply, and what of the replica travels beside it, as a payload."""


@final
class BundleCodec(Codec):
    """Bundles, as real workers read and write them."""

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
    """A payload of no bytes that holds its message as it is. One from outside may hold anything."""

    message: object


def in_process_payload(message: object) -> InProcessPayload:
    """Return a payload that holds `message`: a Sync or a Reply, or what only claims to be the JSON of a sync."""
    payload = InProcessPayload()
    payload.message = message
    return payload


@final
class InProcessCodec(Codec):
    """Messages handed over without tensors, in `InProcessPayload` payloads. A Sync is taken as it is, as nobody
    wrote it down; anything else as if it came from a line."""

    def read(self, payload: Arrived, max_header: int = MAX_HEADER_BYTES) -> tuple[Sync, PushContent]:
        message = payload.message if isinstance(payload, InProcessPayload) else None
        return message if isinstance(message, Sync) else sync_from(message), NOTHING

    def write(self, reply: Reply, replica: ReplicaPart) -> bytes:
        return in_process_payload(reply)

"""Encoding of a sync and its reply.

Real workers exchange bundles. A simulation of ten thousand workers passes millions of messages within one process:
encoding them would dominate its run time, so `InProcessCodec` passes the objects. The rest of the master is the same.
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

"""How a sync and its reply are put into a payload: written as a bundle, or, where nothing really travels, handed over.

A simulation of ten thousand workers exchanges millions of messages between objects of one process. Writing and reading
each would measure JSON; everything else that the master does with them stays the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from numpy.typing import NDArray

from gridml.protocol import bundle
from gridml.protocol.messages import Reply, Sync, sync_from, to_json

Tensors = Mapping[str, NDArray[Any]]


class Codec(ABC):
    """The master's way to read syncs and to write replies."""

    @abstractmethod
    def read(self, payload: bytes) -> tuple[Sync, dict[str, NDArray[Any]]]:
        """The sync of a payload and the tensors beside it. Raises ValueError for what makes no sense."""

    @abstractmethod
    def write(self, reply: Reply, tensors: Tensors) -> bytes:
        """A reply, and what travels beside it, as a payload."""


@final
class BundleCodec(Codec):
    """Bundles, as real workers read and write them."""

    def read(self, payload: bytes) -> tuple[Sync, dict[str, NDArray[Any]]]:
        message, tensors = bundle.decode(payload)
        return sync_from(message), tensors

    def write(self, reply: Reply, tensors: Tensors) -> bytes:
        return bundle.encode(to_json(reply), tensors)


class InProcessPayload(bytes):
    """A payload of no bytes that holds its message as it is."""

    message: Sync | Reply


def spoken(message: Sync | Reply) -> InProcessPayload:
    payload = InProcessPayload()
    payload.message = message
    return payload


@final
class InProcessCodec(Codec):
    """Messages handed over without tensors, in `InProcessPayload` payloads. Anything else is nonsense."""

    def read(self, payload: bytes) -> tuple[Sync, dict[str, NDArray[Any]]]:
        if not isinstance(payload, InProcessPayload) or not isinstance(payload.message, Sync):
            raise ValueError(f"not a spoken sync: {payload!r}")
        return payload.message, {}

    def write(self, reply: Reply, tensors: Tensors) -> bytes:
        return spoken(reply)

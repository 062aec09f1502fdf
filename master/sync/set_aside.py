"""Messages that could not be taken, kept for whoever wants to know what they were."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gridml.carriers.base import Message
from gridml.protocol import bundle
from gridml.protocol.text import printable

KEPT = 16  # messages; the next one takes the place of the oldest
LONGEST = 1 << 24  # bytes of a message that are kept


class SetAside:
    """The last few messages in `folder`, which is made for the first: `03.message`, and why in `03.txt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0

    def keep(self, message: Message, reason: str) -> None:
        """Keep a message. A disk that has no room for it is no reason to stop."""
        place = self._folder / f"{self._next:02d}"
        self._next = (self._next + 1) % KEPT
        words = f"message {message.number} of {message.worker}, {len(message.payload):,} bytes: {reason}\n"
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            bundle.write_atomic(place.with_suffix(".txt"), printable(words).encode(), durable=False)
            bundle.write_atomic(place.with_suffix(".message"), bytes(message.payload[:LONGEST]), durable=False)

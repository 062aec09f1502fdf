"""What merging costs a simulated master: seconds for each push, which it spends before it looks for messages again."""

from __future__ import annotations

from typing import final

from gridml.protocol.bundle import LONGEST_HEADER
from gridml.protocol.codec import Codec
from gridml.protocol.messages import Reply, Sync, Verdict
from gridml.protocol.payload import Arrived, Payload
from gridml.protocol.push import PushContent, ReplicaPart


@final
class MergingTime(Codec):
    """Reads and writes as `codec` does, and counts `merge_s` for each push that is answered as merged.

    Answers leave at once, so a push whose master is behind is answered too early, by no more than one group's time;
    what comes meanwhile waits, so no more are merged than the time allows.
    """

    def __init__(self, codec: Codec, merge_s: float) -> None:
        self.spent_s = 0.0
        self._codec = codec
        self._merge_s = merge_s

    def read(self, payload: Arrived, longest_header: int = LONGEST_HEADER) -> tuple[Sync, PushContent]:
        return self._codec.read(payload, longest_header)

    def write(self, reply: Reply, replica: ReplicaPart) -> Payload:
        if reply.verdict is Verdict.MERGED:
            self.spent_s += self._merge_s
        return self._codec.write(reply, replica)

"""The outbox keeps an unanswered push beyond the end of its process: a file in the worker's folder.

A back end that transfers files copies the outbox when the job is evicted with a grace period, or exits with status
`SAVED`. The next attempt of the job finds the outbox in its folder and delivers the push before it trains. At the end
of the job the outbox is copied to the run directory, for the next master.

This module also names attempts. Each start of a job is a worker of its own: job `w7` runs first as worker `w7`, then as
`w7.1`, `w7.2`.
"""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass
from pathlib import Path

from gridml.protocol import bundle
from gridml.protocol.bundle import MAX_HEADER_BYTES
from gridml.protocol.foreign import integer, receive_regular
from gridml.protocol.messages import Push, Sync, sync_from, to_json
from gridml.protocol.payload import Pieces
from gridml.protocol.push import PushContent, decode, encode

SAVED = 85  # exit status of a worker that asks for two things: transfer its outbox, and start it again
MAX_OUTBOX_BYTES = 1 << 30  # of all workers of a run together: a batch system's file transfer is not made for replicas
_NUMBER = integer(1)
FILE = "outbox.push"  # in the worker's folder; empty when no push is unanswered


@dataclass(frozen=True)
class UnansweredPush:
    """A sync with a push that has no reply yet."""

    number: int  # of the message, from 1
    sync: Sync
    content: PushContent  # the tensors of the push

    @property
    def push(self) -> Push:
        assert self.sync.push is not None
        return self.sync.push

    @property
    def payload(self) -> Pieces:
        """The message as it is sent. Shares memory with `content`."""
        return bundle.pieces(to_json(self.sync), encode(self.content))


def share(workers: int) -> int:
    """Return the bytes of outbox that each of `workers` workers may use."""
    return MAX_OUTBOX_BYTES // max(1, workers)


def write(path: Path, unanswered: UnansweredPush, longest: int = sys.maxsize) -> None:
    """Save a push. Raises OSError if it has more than `longest` bytes or cannot be written."""
    message = {"number": unanswered.number, "sync": to_json(unanswered.sync)}
    content = bundle.pieces(message, encode(unanswered.content))
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it has {len(content):,} bytes, expected at most {longest:,} per worker")
    bundle.write_atomic(path, content, durable=False)


def read(path: Path, longest: int = sys.maxsize, max_header: int = MAX_HEADER_BYTES) -> UnansweredPush | None:
    """Return the saved push; None if none is saved, or if the file is damaged, not regular or longer than `longest`
    bytes."""
    try:
        message, tensors = bundle.opened(receive_regular(path, longest), max_header)
        unanswered = UnansweredPush(_NUMBER(message["number"]), sync_from(message["sync"]), decode(tensors))
    except (OSError, ValueError, KeyError):
        return None
    return unanswered if unanswered.sync.push is not None else None


def clear(path: Path) -> None:
    """Empty the outbox. The file itself stays: the file transfer expects it. Raises OSError."""
    path.write_bytes(b"")


def worker_name(job: str, starts: int) -> str:
    """Return the name of the worker that a job runs after `starts` earlier starts."""
    return f"{job}.{starts}" if starts else job


def job_of(worker: str) -> str:
    """Return the job of a worker."""
    return worker.partition(".")[0]


def is_attempt(worker: str, job: str) -> bool:
    """Return whether a worker is an attempt of this job, by its exact name."""
    return worker == worker_name(job, attempt_of(worker)) and job.isalnum()


def attempt_of(worker: str) -> int:
    """Return the number of the worker's attempt, which is the number of earlier starts of its job."""
    number = worker.partition(".")[2]
    return int(number) if number.isdecimal() else 0

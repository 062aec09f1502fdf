"""An unanswered push in a file of the worker's folder, where it outlives the process, and the names of attempts.

A back end that carries files brings the push home when the job is evicted with grace or saves itself. It goes back
into the folder of the job's next attempt, which delivers it before it trains; at the job's end it goes into the run
directory, where the next master finds it.

Each attempt of a job is another worker. Job `w7` is `w7` first, then `w7.1`, `w7.2`.
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

SAVED = 85  # exit status of a worker that wants its outbox carried to safety, and to be started again
MAX_OUTBOX_BYTES = 1 << 30  # bytes of all pushes of a run together: what carries them is no place for many replicas
_NUMBER = integer(1)
FILE = "outbox.push"  # in the worker's folder; empty when there is nothing


@dataclass(frozen=True)
class UnansweredPush:
    """Message `number` of a worker, which holds a push, and what travels beside it."""

    number: int
    sync: Sync
    content: PushContent

    @property
    def push(self) -> Push:
        assert self.sync.push is not None
        return self.sync.push

    @property
    def payload(self) -> Pieces:
        """The message as it would have been sent, on the memory of its content."""
        return bundle.pieces(to_json(self.sync), encode(self.content))


def share(workers: int) -> int:
    """Bytes that the push of one of so many workers may have to be kept."""
    return MAX_OUTBOX_BYTES // max(1, workers)


def write(path: Path, unanswered: UnansweredPush, longest: int = sys.maxsize) -> None:
    """Keep a push of at most `longest` bytes. Raises OSError, also for one that is longer."""
    message = {"number": unanswered.number, "sync": to_json(unanswered.sync)}
    content = bundle.pieces(message, encode(unanswered.content))
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it has {len(content):,} bytes, and {longest:,} are kept of a worker")
    bundle.write_atomic(path, content, durable=False)


def read(path: Path, longest: int = sys.maxsize, max_header: int = MAX_HEADER_BYTES) -> UnansweredPush | None:
    """Return the push that was kept, None where there is none, or the file is damaged, or anything else than a file of
    at most `longest` bytes."""
    try:
        message, tensors = bundle.opened(receive_regular(path, longest), max_header)
        unanswered = UnansweredPush(_NUMBER(message["number"]), sync_from(message["sync"]), decode(tensors))
    except (OSError, ValueError, KeyError):
        return None
    return unanswered if unanswered.sync.push is not None else None


def clear(path: Path) -> None:
    """Nothing is unanswered any more. The file stays, empty: what carries it expects it. Raises OSError."""
    path.write_bytes(b"")


def worker_name(job: str, starts: int) -> str:
    """The worker that a job is after `starts` earlier starts."""
    return f"{job}.{starts}" if starts else job


def job_of(worker: str) -> str:
    """The job that a worker is an attempt of."""
    return worker.partition(".")[0]


def is_attempt(worker: str, job: str) -> bool:
    """Whether a name is that of an attempt of a job, and nothing else."""
    return worker == worker_name(job, attempt_of(worker)) and job.isalnum()


def attempt_of(worker: str) -> int:
    """Which attempt of its job a worker is: how often that was started before."""
    number = worker.partition(".")[2]
    return int(number) if number.isdecimal() else 0

"""The clients of `benchmarks.carriers`, and the processes that run them, for any carrier."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from gridml.carriers.base import WorkerMailbox, name_of
from gridml.carriers.directory import DirectoryMailbox
from gridml.carriers.file_link import FileMailbox
from gridml.carriers.sftp import Credential, SftpConnection, SftpLink
from gridml.protocol import bundle
from gridml.protocol.bundle import digest

MAX_PROCESSES = 4  # of clients that are not jobs; further clients share a process, with a thread each
SMALL = b"small"  # the content of a chunk that a client fetches first, so that connecting is not measured
ENDS_S = 60.0  # timeout for the exit of a client after its last report
SPAWN = multiprocessing.get_context("spawn")
Way = Mapping[str, Credential | None]  # by worker: the credential of its mailbox; None: reached on the disk


@dataclass(frozen=True)
class Work:
    """A client's task: send messages one after the other, then fetch the published chunk as often."""

    size: int  #: bytes of a message
    times: int  #: messages, and fetches
    sha256: str  #: of the chunk


class NotMeasured(Exception):
    """A case was not measured, and why."""


Clients = Callable[[Work], contextlib.AbstractContextManager[Sequence[Connection]]]
"""Starts the clients of all workers. A client that has sent "ready" is connected to its mailbox. Raises NotMeasured if
they do not start."""


@dataclass(frozen=True)
class Served:
    """A run directory and the clients that reach it."""

    root: Path
    clients: Clients
    pids: Sequence[int] = ()  #: of the server, with all descendants
    programs: frozenset[str] = frozenset()  #: if given, only descendants that run one of these count as the server


def client(boxes: Mapping[str, WorkerMailbox], work: Work, channel: Connection) -> None:
    """Run clients, a thread each. `channel` receives the commands to send and to fetch. It returns the CPU seconds and
    the failures of each, then the name of the last message of each worker.

    All clients send the same message. They do not see each other's, so a process holds it only once.
    """
    payload = os.urandom(work.size)
    messages = [payload[number:] + payload[:number] for number in range(1, work.times)] + [payload]

    def send(box: WorkerMailbox, number: int) -> None:
        box.send(1, messages[number])  # all differ, because a message's name contains its digest

    def fetch(box: WorkerMailbox, number: int) -> None:
        box.fetch("chunk", work.sha256)  # raises ValueError for damaged content

    def failures(act: Callable[[WorkerMailbox, int], None], box: WorkerMailbox) -> int:
        failed = 0
        for number in range(work.times):
            try:
                act(box, number)
            except (OSError, ValueError) as error:
                failed += 1
                print(f"{act.__name__}: {error!r}", file=sys.stderr)
        return failed

    with ThreadPoolExecutor(len(boxes)) as threads:
        list(threads.map(lambda box: box.fetch("small", bundle.digest(SMALL)), boxes.values()))
        channel.send("ready")
        for act in (send, fetch):
            channel.recv()
            before = time.process_time()
            failed = sum(threads.map(functools.partial(failures, act), boxes.values()))
            channel.send((time.process_time() - before, failed))
    channel.send(dict.fromkeys(boxes, name_of("sync", 1, digest(payload))))
    for box in boxes.values():
        box.close()


@contextlib.contextmanager
def processes(root: Path, way: Way, work: Work) -> Iterator[Sequence[Connection]]:
    """Run clients on this machine, in a few shared processes."""
    workers = list(way)
    ends, started = [], []
    for share in (workers[i::MAX_PROCESSES] for i in range(min(MAX_PROCESSES, len(workers)))):
        near, far = SPAWN.Pipe()
        ways = {worker: way[worker] for worker in share}
        started.append(SPAWN.Process(target=_process, args=(root, ways, work, far)))
        started[-1].start()
        far.close()  # otherwise `near` would never reach its end when the client dies
        ends.append(near)
    try:
        yield ends
        for process in started:
            process.join(ENDS_S)
    finally:
        for process in started:
            process.kill()
            process.join()


def _process(root: Path, way: Way, work: Work, channel: Connection) -> None:
    client({worker: _mailbox(root, worker, credential) for worker, credential in way.items()}, work, channel)


def _mailbox(root: Path, worker: str, credential: Credential | None) -> WorkerMailbox:
    if credential is None:
        return DirectoryMailbox(root, worker)
    line = SftpConnection(credential, timeout_s=120.0)
    return FileMailbox(worker, lambda: SftpLink(line))

"""What pushes take of a master, measured on the machine that asks, and what that leaves room for.

A push goes through what a master does with it: read from a mailbox on a disk, its SHA-256, its base, the merge, the new
version, durable, and an answer: with the whole replica, or, of a large one, with the name of the version's file, which
is published. What is left out is small beside a large replica: the ledger, the gate's memory, and the way through a
carrier that is not a folder.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gridml.aggregates import Merge, RuleSet, VertexState, stale_mean
from gridml.caching.master_copy import reconstruct
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.errors import UsageError
from gridml.protocol import bundle
from gridml.protocol.compression import FORMATS, NONE, TensorStep
from gridml.protocol.push import PushContent, ReplicaPart, decode, encode, encode_replica
from master.leases.sizing import MERGING
from master.store.versions import ReplicaState, Versions
from master.sync.replies import sends_file

TENSORS = 16
MEMORY, DISK = 8, 4  # replicas' worth that a measurement takes
REPEATS, MAX_MEASURING_S = 5, 5.0  # pushes that are measured, as long as they take no longer
STALE = Merge(version=2, base=1, vertices=1, credited_by_others=3, live=4)
KEY = ("Replica", 0)


@dataclass(frozen=True)
class MasterLoad:
    """`push_s` seconds of a master's time for a push of `bytes_up`, which is answered with `bytes_down`."""

    bytes_down: int
    bytes_up: int
    push_s: float

    def most_workers(self, interval_s: float) -> int:
        """How many may push once in so many seconds, with half of its time for merging."""
        return int(interval_s * MERGING / self.push_s)


def measure(nbytes: int, compress: str = NONE, say: Callable[[str], None] = lambda text: None) -> MasterLoad:
    """Measure pushes of a float32 replica of `nbytes` (at least 4), in a folder that is removed again. `say` hears
    of it: it takes seconds, and some times as much memory and disk. Raises UsageError where these cannot be had."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if MEMORY * nbytes > memory:
        raise UsageError(
            f"--replica is {nbytes:,} bytes; expected at most {memory // MEMORY:,}: to measure its pushes takes "
            f"{MEMORY} times as much memory. Plan on a machine such as the master's."
        )
    say(f"Trying out what pushes of {nbytes:,} bytes take of a master ...")
    try:
        with tempfile.TemporaryDirectory(prefix="gridml-plan-") as folder:
            return _measured(Path(folder), nbytes, compress)
    except (OSError, MemoryError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "no memory"
        raise UsageError(
            f"--replica: pushes of {nbytes:,} bytes cannot be measured here ({why}); expected room for {DISK} such "
            f"replicas in {tempfile.gettempdir()}. Make room, or name another folder in TMPDIR."
        ) from error


def _measured(folder: Path, nbytes: int, compress: str) -> MasterLoad:
    random = np.random.default_rng(0)
    sizes = [len(part) for part in np.array_split(np.empty(max(1, nbytes // 4), np.bool_), TENSORS) if len(part)]
    tensors = {f"Replica/0/model/{i}": random.standard_normal(size, np.float32) for i, size in enumerate(sizes)}
    state = ReplicaState(modules={KEY: VertexState(tensors)})
    versions = Versions(folder / "versions")
    sha256 = versions.write(1, state)
    mailboxes = DirectoryMailboxes(folder)
    mailboxes.open("w1")
    sender = DirectoryMailbox(folder, "w1")
    payload = bundle.pieces({}, encode(_content(tensors, compress)))
    rules = RuleSet(dict.fromkeys(tensors, stale_mean()))
    taken: list[float] = []
    for number in _numbers(taken):
        sender.send(number, payload)
        began_s = time.perf_counter()
        (message,) = mailboxes.collect()
        base = versions.mapped(1, sha256)
        content = decode(bundle.opened(message.payload)[1])
        part = reconstruct(content, {KEY: base.modules[KEY].tensors})
        merged = rules.merge(VertexState(tensors), part.modules[KEY], base.modules[KEY].tensors, STALE)
        versions.write(2, ReplicaState(modules={KEY: merged.state}))
        down = _answer(mailboxes, number, versions.path(2), merged.state)
        del message, content, part, merged  # as a master does, before the next one
        taken.append(time.perf_counter() - began_s)
    sender.close()
    mailboxes.stop()
    return MasterLoad(down, len(payload), median(taken[1:] or taken))


def _answer(mailboxes: DirectoryMailboxes, number: int, path: Path, merged: VertexState) -> int:
    """Answer a push as a master does, and return the bytes that its worker gets: of all tensors, or of their file."""
    file_bytes, brings = path.stat().st_size, sum(tensor.nbytes for tensor in merged.tensors.values())
    if sends_file(brings, file_bytes, rows=False, short=False)[0] and mailboxes.share(f"version-{number:08d}", path):
        mailboxes.answer("w1", number, bundle.pieces({}, {}))
        mailboxes.retract(f"version-{number - 1:08d}")
        return file_bytes
    answer = bundle.pieces({}, encode_replica(ReplicaPart({KEY: merged.tensors})))
    mailboxes.answer("w1", number, answer)
    return len(answer)


def _content(tensors: dict[str, NDArray[np.float32]], compress: str) -> PushContent:
    """Return a push of all tensors, each a little further."""
    pushed = {name: tensor * np.float32(1.001) for name, tensor in tensors.items()}
    if compress == NONE:
        return PushContent(ReplicaPart({KEY: pushed}))
    form = FORMATS[compress]
    steps = {}
    for name, tensor in pushed.items():
        codes = form.pack(tensor - tensors[name])
        assert codes is not None  # they are finite
        steps[name] = TensorStep(form, codes)
    return PushContent(ReplicaPart(), steps={KEY: steps})


def _numbers(taken: list[float]) -> Iterator[int]:
    """Yield the numbers of messages to send: the first warms up, and counts only where it took long."""
    number = 0
    while number <= REPEATS and sum(taken) < MAX_MEASURING_S:
        number += 1
        yield number

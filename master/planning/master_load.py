"""Measurement of a master's time per push on this machine, which limits the number of workers.

Each measured push takes the steps of a real one: the master reads it from a mailbox on disk, checks SHA-256 sums, loads
the base version, merges, writes the new version durably, and answers. The answer holds a small replica itself, or the
name of the version file in which a large one is published. Not measured, because their cost is small beside a large
replica: the ledger, the state of the gate (which admits pushes), and carriers other than a directory.
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

TENSORS = 16  # tensors of the replica
MEMORY, DISK = 8, 4  # memory and disk space that a measurement needs, in multiples of the replica
REPEATS, MAX_MEASURING_S = 5, 5.0  # pushes to measure after a warm-up, and the time after which no other one starts
STALE = Merge(version=2, base=1, vertices=1, credited_by_others=3, live=4)
KEY = ("Replica", 0)


@dataclass(frozen=True)
class MasterLoad:
    """The cost of a push for a master."""

    bytes_down: int  #: bytes that the worker receives: the answer, or the version file that it names
    bytes_up: int  #: size of the push
    push_s: float  #: seconds that the master spends on the push

    def max_workers(self, interval_s: float) -> int:
        """Return how many workers may push once per `interval_s`, if the master spends half of its time merging."""
        return int(interval_s * MERGING / self.push_s)


def measure(nbytes: int, compress: str = NONE, notify: Callable[[str], None] = lambda text: None) -> MasterLoad:
    """Measure pushes of a float32 replica of `nbytes` (at least 4) in a temporary folder.

    This takes seconds, and a multiple of `nbytes` in memory and on disk; `notify` is called with a message first.
    Raises UsageError if memory or disk space is too small.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if MEMORY * nbytes > memory:
        raise UsageError(
            f"--replica is {nbytes:,} bytes; expected at most {memory // MEMORY:,}: measuring its pushes needs "
            f"{MEMORY} times as much memory. Run gridml plan on a machine like the master's."
        )
    notify(f"Measuring pushes of {nbytes:,} bytes ...")
    try:
        with tempfile.TemporaryDirectory(prefix="gridml-plan-") as folder:
            return _measured(Path(folder), nbytes, compress)
    except (OSError, MemoryError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "no memory"
        raise UsageError(
            f"--replica: pushes of {nbytes:,} bytes cannot be measured here ({why}); expected space for {DISK} such "
            f"replicas in {tempfile.gettempdir()}. Free some space, or set TMPDIR to another folder."
        ) from error


def _measured(folder: Path, nbytes: int, compress: str) -> MasterLoad:
    random = np.random.default_rng(0)
    # Elements of each tensor: the replica in `TENSORS` equal parts; a replica of a few bytes has fewer tensors.
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
        del message, content, part, merged  # a master frees these before the next push, too
        taken.append(time.perf_counter() - began_s)
    sender.close()
    mailboxes.stop()
    return MasterLoad(down, len(payload), median(taken[1:] or taken))


def _answer(mailboxes: DirectoryMailboxes, number: int, path: Path, merged: VertexState) -> int:
    """Answer a push as a master does. Return the bytes that the worker receives, in the answer or as a version file."""
    file_bytes, brings = path.stat().st_size, sum(tensor.nbytes for tensor in merged.tensors.values())
    sends, _ = sends_file(brings, file_bytes, rows=False, short=False, near=False)
    if sends and mailboxes.share(f"version-{number:08d}", path):
        mailboxes.answer("w1", number, bundle.pieces({}, {}))
        mailboxes.retract(f"version-{number - 1:08d}")
        return file_bytes
    answer = bundle.pieces({}, encode_replica(ReplicaPart({KEY: merged.tensors})))
    mailboxes.answer("w1", number, answer)
    return len(answer)


def _content(tensors: dict[str, NDArray[np.float32]], compress: str) -> PushContent:
    """Return a push of all tensors, each changed by 0.1%."""
    pushed = {name: tensor * np.float32(1.001) for name, tensor in tensors.items()}
    if compress == NONE:
        return PushContent(ReplicaPart({KEY: pushed}))
    form = FORMATS[compress]
    steps = {}
    for name, tensor in pushed.items():
        codes = form.pack(tensor - tensors[name])
        assert codes is not None  # `pack` returns None only for steps that are not finite
        steps[name] = TensorStep(form, codes)
    return PushContent(ReplicaPart(), steps={KEY: steps})


def _numbers(taken: list[float]) -> Iterator[int]:
    """Yield message numbers until enough pushes were measured; the first one is a warm-up."""
    number = 0
    while number <= REPEATS and sum(taken) < MAX_MEASURING_S:
        number += 1
        yield number

"""The mailboxes of a run (with their carrier's server and keys), limits on messages, and a daemon executor."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, ParamSpec, TypeVar, final

import numpy as np

from gridml.carriers.base import MasterMailboxes
from gridml.carriers.registry import CARRIERS
from gridml.engine.optimisers import COUNTERS, MAX_MOMENTS
from gridml.errors import RunError
from gridml.model.graph import Graph
from gridml.protocol.changes import PARTS
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.versions import ReplicaState

MAX_TEXT_BYTES = 1 << 20  # of a message without its tensors; fits a traceback at up to six bytes per character
MAX_ENTRY_BYTES = 256  # of a tensor's entry in the header, without its name: dtype, shape and offsets


def run_mailboxes(settings: Settings, directory: RunDirectory) -> MasterMailboxes:
    """Return the mailboxes of the run's carrier, which are served until their `stop` is called.

    Raises RunError if the carrier's server cannot be imported or started.
    """
    carrier = CARRIERS.find(settings.carrier)
    try:
        make = pkgutil.resolve_name(carrier.mailboxes)
    except ImportError as error:
        modules = " and ".join(carrier.modules) or carrier.mailboxes
        raise RunError(
            f"--carrier {carrier.name} takes {modules}, which cannot be imported ({error}). Install it: "
            f"{carrier.install}"
        ) from error
    address = (settings.address,) if carrier.has_address else ()
    mailboxes: MasterMailboxes = make(directory.root, *address)
    return mailboxes


class MessageLimits(NamedTuple):
    """The maximum sizes of a sync that an honest worker sends."""

    payload: int  # bytes, including the header
    header: int  # bytes


def message_limits(graph: Graph, state: ReplicaState) -> MessageLimits:
    """Return the limits for the largest possible push.

    Its payload has every tensor of the replica, the moments of module tensors, the id of every row, and the mutable
    fields of local types. Its header has at most `MAX_TEXT_BYTES` of text and, for each of these tensors, the name and
    `MAX_ENTRY_BYTES`.
    """
    sizes = {name: tensor.nbytes for name, tensor in state.tensors()}
    for name, tensor in [pair for vertex in state.modules.values() for pair in vertex.tensors.items()]:
        sizes |= {f"@moments/{entry}/{name}": 2 * tensor.size + 4 for entry in (*MAX_MOMENTS, *COUNTERS)}
    for type_name, columns in state.arrays.items():
        sizes |= {f"@changed/{part}/{type_name}/{name}": 0 for name in columns for part in PARTS}  # instead of rows
    for table in graph.tables.values():
        sizes[f"@rows/{table.type.name}"] = table.count * np.dtype(np.int64).itemsize
    for field, column in graph.mutable_columns().items():
        sizes[field] = column.nbytes
        if ":" in field:  # of edges, whose positions come along
            sizes[f"@ids/{field}"] = len(column) * np.dtype(np.int64).itemsize
    header = MAX_TEXT_BYTES + sum(len(name.encode()) + MAX_ENTRY_BYTES for name in sizes)
    return MessageLimits(header + sum(sizes.values()), header)


def check_carrier(settings: Settings, *, nearby: bool = True) -> None:
    """Raise RunError if this machine lacks modules of the run's carrier, UsageError if workers cannot reach this
    machine at the advertised address. `nearby` is True if all workers run on this machine."""
    carrier = CARRIERS.find(settings.carrier)
    if missing := carrier.missing_modules():
        raise RunError(
            f"--carrier {carrier.name} takes {' and '.join(missing)}, which is not installed. Install it: "
            f"{carrier.install}"
        )
    carrier.check_advertised(settings.address, nearby=nearby)


P = ParamSpec("P")
T = TypeVar("T")


@final
class DaemonExecutor(Executor):
    """Runs jobs in order on one daemon thread, so that a blocked job does not keep the process from exiting."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended = False  # set by `shutdown(cancel_futures=True)`: queued jobs are skipped
        self._thread = Thread(target=self._work, name="loggers", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # raised again by `Future.result`
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = cancel_futures or self._ended
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _work(self) -> Any:
        while (job := self._jobs.get()) is not None:
            if not self._ended:
                job()

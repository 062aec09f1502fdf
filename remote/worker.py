"""The console script `gridml-worker`: one worker process, from its arguments to its exit status.

A batch system can start a job several times. Each start is an attempt, and each attempt has its own mailbox. A worker
identifies its attempt by the newest mailbox that is open.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gridml.caching.chunk_cache import ChunkCache
from gridml.carriers.base import WorkerMailbox
from gridml.carriers.registry import CARRIERS, Carrier
from gridml.engine.devices import SLOT, Device, DeviceFailedError, find_device, raising_device_errors
from gridml.engine.engine import Engine
from gridml.engine.lazy_dynamo import import_dynamo_lazily
from gridml.engine.parent import die_with_parent
from gridml.engine.rng_state import seed_generators
from gridml.engine.stage_jobs import threads_of
from gridml.errors import GridmlError, ProgramError, RunError
from gridml.model import device_memory, loading
from gridml.model.phases import Stages
from gridml.model.program import Program
from gridml.protocol import outbox
from gridml.protocol.outbox import attempt_of, job_of
from remote import fitness
from remote.courier import ThreadCourier
from remote.session import Session, SessionOptions
from remote.stepped import HeartbeatMailbox

POLL_S = 0.5  # between two polls while no mailbox is open
PATIENCE_S = 60.0  # a worker without a mailbox leaves after this time


def find_mailbox(
    job: str,
    mailboxes: Callable[[], list[str]],
    *,
    but: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return the name of a job's current attempt: `w7`, or `w7.n` after n earlier attempts. Return None if no
    mailbox is open within `PATIENCE_S`.

    `but` is a mailbox to skip, because it turned out to belong to an earlier attempt.
    """
    # The master opens the mailbox of the next attempt when it notices the end of the last attempt. So the newest open
    # mailbox belongs to this process. The start count of the batch system is no substitute, because it can
    # miss starts.
    give_up_s = clock() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            attempts = [name for name in mailboxes() if job_of(name) == job and name != but]
            if attempts:
                return max(attempts, key=attempt_of)
        if clock() >= give_up_s:
            return None
        rest(POLL_S)


CACHE = "GRIDML_WORKER_CACHE"  # environment variable with a cache folder on this machine that outlives the workers
CACHE_FOLDER = "chunk-cache"  # default cache folder, in the job's folder
CACHE_BYTES = 256 << 20  # default limit of the cache


def main(argv: list[str] | None = None) -> int:
    """Run a worker; return 0 when it was dismissed or evicted, else the exit status of the error."""
    parser = argparse.ArgumentParser(
        prog="gridml-worker",
        description="One worker of a run. Back ends start it; there is no need to call it by hand.",
        epilog="example: gridml-worker --name w1 --program mnist.py --directory runs/mnist-1",
    )
    parser.add_argument("--name", required=True, help="the worker's name in the run")
    parser.add_argument("--program", required=True, type=Path, help="the copy of the user's file that is run")
    parser.add_argument("--original", type=Path, help="the file that --program is a copy of, for messages")
    parser.add_argument("--directory", type=Path, help="the run directory, where it is shared with the master")
    parser.add_argument(
        "--carrier",
        default="directory",
        help="carrier of messages and chunks: directory, chirp, sftp, or one of a plug-in",
    )
    parser.add_argument("--chunks", type=int, default=None, help="chunks to train before leaving")
    parser.add_argument("--patience", type=float, default=math.inf, help="seconds without a reply before saving work")
    parser.add_argument("--keep", type=int, default=sys.maxsize, help="largest size of a saved push in bytes")
    parser.add_argument(
        "--cache",
        type=Path,
        help=f"folder of cached chunks, in which {{name}} is the worker's name; by default that of {CACHE}",
    )
    parser.add_argument(
        "--cache-bytes", type=int, default=CACHE_BYTES, help="largest size of all cached chunks in bytes"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers f draws")
    parser.add_argument("--device", default="auto", help="device: auto, cpu, cuda or cuda:N")
    parser.add_argument("--parent", type=int, default=None, help="process id whose death ends the worker")
    options = parser.parse_args(argv)
    evicted = _on_sigterm()
    if options.parent is not None:
        die_with_parent(options.parent)
    try:
        carrier = CARRIERS.find(options.carrier)
        loaded = _load_where_fit(options.program) if carrier.remote else loading.load(options.program, options.original)
        device = Device()
        if loaded.uses_torch:
            device = _prepare_torch(options.device)
        seed_generators(f"{options.seed}/{options.name}", torch=loaded.uses_torch)
        with raising_device_errors(device):
            status = _work(options, carrier, loaded, device, evicted)
    except DeviceFailedError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = error.exit_status  # exit by os._exit below, because freeing the memory of a broken device can fail
    except GridmlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_status
    except SystemExit:  # the user's code called sys.exit; this must not look like a regular end
        traceback.print_exc()
        return 1
    if argv is None:  # this process is a worker only
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # because a regular shutdown of Python and torch can take a second of a short grace period
    return status


def _work(
    options: argparse.Namespace, carrier: Carrier, loaded: Program, device: Device, evicted: Callable[[], bool]
) -> int:
    """Run sessions until no work is left, save an unanswered push in the job's folder, and return the exit status.

    Raises DeviceFailedError if the device fails; the training since the last push is then lost.
    """
    kept = outbox.read(Path(outbox.FILE)) if carrier.remote else None
    status, kind = 0, fitness.kind(device.name)
    threads, reason = threads_of(os.environ.get("OMP_NUM_THREADS"))
    if threads > 1 and isinstance(loaded.shape, Stages):
        print(f"runs stages on {threads} threads: {reason}", file=sys.stderr)
    for name, mailbox in _mailboxes(options, carrier):
        engine = Engine(loaded, device, threads=threads)
        number = kept.number if kept is not None and kept.sync.worker == name else 1
        courier = ThreadCourier(mailbox, number, engine.received)
        source = options.original or options.program
        cache = _cache(options, carrier)
        chosen = SessionOptions(name, kind, options.chunks, options.patience, source, kept, cache, fetch_ahead=True)
        mailbox = HeartbeatMailbox(mailbox)
        session = Session(chosen, engine, mailbox, courier, evicted)
        try:
            session.run()
            if carrier.remote:
                _leave_behind(courier.unanswered, options.keep)  # before the mailbox is closed, which can take long
        finally:
            mailbox.close()
        if session.saving and courier.unanswered is not None:
            status = outbox.SAVED
        if session.state.answered or session.saving or evicted():
            break
    return status


def _cache(options: argparse.Namespace, carrier: Carrier) -> ChunkCache | None:
    """Return the chunk cache. Return None if its folder cannot be created or the cache is disabled. It is disabled by
    default for a worker that shares the run's disk."""
    folder = options.cache or os.environ.get(CACHE) or (CACHE_FOLDER if carrier.remote else None)
    if folder is None or options.cache_bytes < 1:
        return None
    try:
        return ChunkCache(Path(str(folder).replace("{name}", options.name)), options.cache_bytes)
    except OSError as error:
        print(f"no chunks are cached: {error}", file=sys.stderr)
        return None


def _leave_behind(message: outbox.UnansweredPush | None, longest: int) -> None:
    """Save the unanswered push, if any, in the outbox; else empty the outbox. A push of more than `longest` bytes is
    not saved, so its vertices are trained again."""
    file = Path(outbox.FILE)
    try:
        if message is not None:
            outbox.write(file, message, longest)
            return
    except OSError as error:
        print(f"the unanswered push is not saved: {error}", file=sys.stderr)
    with contextlib.suppress(OSError):
        outbox.clear(file)  # drops the push of an earlier attempt, which has been delivered


def _load_where_fit(path: Path) -> Program:
    """Return the program in the user's file. Raises fitness.Unfit if this machine cannot run it."""
    facts = fitness.read(
        Path.cwd()
    )  # read before torch is imported, because the requirements include the memory of torch
    fitness.demand(facts, fitness.Needs())
    try:
        loaded = loading.load(path, path)  # the user's own modules were sent with the file
    except ProgramError as error:
        module = fitness.missing_module(error)
        if module is None:
            raise
        fitness.demand(replace(facts, missing=(module,)), fitness.Needs())
        raise
    if isinstance(loaded.shape, Stages):
        fitness.demand_numba()
    if note := fitness.demand(facts, fitness.needs(loaded.uses_torch)):
        print(note, file=sys.stderr)
    return loaded


def _mailboxes(options: argparse.Namespace, carrier: Carrier) -> Iterator[tuple[str, WorkerMailbox]]:
    """Yield (this worker's name in the run, its mailbox). The caller asks for the next pair if no reply came to
    this mailbox.

    Raises RunError if the mailboxes are unreachable, fitness.Unfit if modules of the carrier are missing.
    """
    fitness.demand(fitness.HostFacts(missing=carrier.missing_modules()), fitness.Needs())
    connection = carrier.connect(options.name, options.directory)
    if not carrier.remote:
        yield options.name, connection.open(options.name)
        return
    errors: list[OSError] = []

    def poll() -> list[str]:
        errors.clear()
        try:
            return connection.list()
        except OSError as error:
            errors.append(error)
            raise

    name = None
    while name := find_mailbox(options.name, poll, but=name):
        yield name, connection.open(name)
    if errors:
        raise RunError(f"the master's mailboxes cannot be reached: {errors[0]}. {carrier.hint}")


def _on_sigterm() -> Callable[[], bool]:
    """Handle SIGTERM. Return a function for the session to poll: it returns whether the signal has come."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master handles Ctrl-C at the terminal
    return lambda: bool(came)


def _prepare_torch(asked: str) -> Device:
    """Set torch to one thread unless OMP_NUM_THREADS is set. Return the device to train on.

    Raises NoDeviceError if this machine lacks the requested device.
    """
    import torch

    import_dynamo_lazily()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    slot = os.environ.get(SLOT, "")
    device, reason = find_device(device_memory.parse(asked), int(slot) if slot.isdecimal() else None)
    if device.accelerates:
        print(f"trains on {device.name}: {reason}", file=sys.stderr)
        module = getattr(torch, torch.device(device.name).type)
        with raising_device_errors(device):  # fails if other processes have taken the memory that a context needs
            if hasattr(module, "set_device"):
                module.set_device(torch.device(device.name))
    return device


if __name__ == "__main__":
    sys.exit(main())

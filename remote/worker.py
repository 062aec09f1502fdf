"""The console script `gridml-worker`: one worker process, from its arguments to its exit status.

A batch system may start a job again. A worker determines which attempt of its job it is by the open mailbox.
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
import zlib
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
from gridml.errors import GridmlError, ProgramError, RunError
from gridml.model import device_memory, loading
from gridml.model.program import Program
from gridml.protocol import outbox
from gridml.protocol.outbox import attempt_of, job_of
from remote import fitness
from remote.courier import ThreadCourier
from remote.session import Session, SessionOptions
from remote.stepped import HeartbeatMailbox

POLL_S = 0.5  # while the master has not opened a mailbox yet
PATIENCE_S = 60.0  # after which a worker without a mailbox leaves


def find_mailbox(
    job: str,
    mailboxes: Callable[[], list[str]],
    *,
    but: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return the name of the current attempt of job `job`: `w7`, after n earlier ones `w7.n`; None without a mailbox.

    `but` is a mailbox that turned out to belong to an earlier attempt.
    """
    # The master opens the mailbox of the next attempt when it notices the end of the last one, so the newest open one
    # is this process's. The start count of the batch system is no substitute: it may miss starts.
    give_up_s = clock() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            attempts = [name for name in mailboxes() if job_of(name) == job and name != but]
            if attempts:
                return max(attempts, key=attempt_of)
        if clock() >= give_up_s:
            return None
        rest(POLL_S)


CACHE = "GRIDML_WORKER_CACHE"  # environment variable: cache folder of a machine that outlives its workers
CACHE_FOLDER = "chunk-cache"  # in the job's folder
CACHE_BYTES = 256 << 20  # default limit of the cache


def main(argv: list[str] | None = None) -> int:
    """Run a worker; return 0 when it was dismissed or evicted, else the exit status of the error."""
    parser = argparse.ArgumentParser(
        prog="gridml-worker",
        description="One worker of a run. Back ends start it; there is no need to call it by hand.",
        epilog="example: gridml-worker --name w1 --program mnist.py --directory runs/mnist-1",
    )
    parser.add_argument("--name", required=True, help="the worker's name in the run")
    parser.add_argument("--program", required=True, type=Path, help="the user's file")
    parser.add_argument("--original", type=Path, help="the user's own file, of which the program is a copy")
    parser.add_argument("--directory", type=Path, help="the run directory, where it is shared with the master")
    parser.add_argument(
        "--carrier",
        default="directory",
        help="what carries messages and chunks: directory, chirp, sftp, or one of a plug-in",
    )
    parser.add_argument("--chunks", type=int, default=None, help="chunks to train before leaving")
    parser.add_argument("--patience", type=float, default=math.inf, help="seconds without a reply before saving work")
    parser.add_argument("--keep", type=int, default=sys.maxsize, help="bytes of a saved push, at most")
    parser.add_argument(
        "--cache",
        type=Path,
        help=f"folder of cached chunks, in which {{name}} is the worker's name; by default that of {CACHE}",
    )
    parser.add_argument("--cache-bytes", type=int, default=CACHE_BYTES, help="bytes of cached chunks, at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers f draws")
    parser.add_argument("--device", default="auto", help="what to train on: auto, cpu, cuda or cuda:N")
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
            device = _prepare_torch(f"{options.seed}/{options.name}", options.device)
        status = _work(options, carrier, loaded, device, evicted)
    except DeviceFailedError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = error.exit_status  # exit at once: freeing the memory of a broken device may fail
    except GridmlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_status
    except SystemExit:  # the user's code called sys.exit: that must not look like a regular end
        traceback.print_exc()
        return 1
    if argv is None:  # a process of its own
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # grace is short, and a regular shutdown of Python and torch can take a second of it
    return status


def _work(
    options: argparse.Namespace, carrier: Carrier, loaded: Program, device: Device, evicted: Callable[[], bool]
) -> int:
    """Run sessions until no work is left, save an unanswered push in the job's folder, and return the exit status.

    Raises DeviceFailedError where the device fails, which loses the training since the last push.
    """
    kept = outbox.read(Path(outbox.FILE)) if carrier.remote else None
    status, kind = 0, fitness.kind(device.name)
    for name, mailbox in _mailboxes(options, carrier):
        courier = ThreadCourier(mailbox, kept.number if kept is not None and kept.sync.worker == name else 1)
        source = options.original or options.program
        chosen = SessionOptions(name, kind, options.chunks, options.patience, source, kept, _cache(options, carrier))
        mailbox = HeartbeatMailbox(mailbox)
        session = Session(chosen, Engine(loaded, device), mailbox, courier, evicted)
        try:
            with raising_device_errors(device):
                session.run()
            if carrier.remote:
                _leave_behind(courier.unanswered, options.keep)  # before closing the mailbox, which may take long
        finally:
            mailbox.close()
        if session.saving and courier.unanswered is not None:
            status = outbox.SAVED
        if session.state.answered or session.saving or evicted():
            break
    return status


def _cache(options: argparse.Namespace, carrier: Carrier) -> ChunkCache | None:
    """Return the chunk cache; None where the worker shares the run's disk, or the cache is disabled."""
    folder = options.cache or os.environ.get(CACHE) or (CACHE_FOLDER if carrier.remote else None)
    if folder is None or options.cache_bytes < 1:
        return None
    try:
        return ChunkCache(Path(str(folder).replace("{name}", options.name)), options.cache_bytes)
    except OSError as error:
        print(f"no chunks are cached: {error}", file=sys.stderr)
        return None


def _leave_behind(message: outbox.UnansweredPush | None, longest: int) -> None:
    """Save a push of at most `longest` bytes. The work of a push that is not saved is trained again."""
    file = Path(outbox.FILE)
    try:
        if message is not None:
            outbox.write(file, message, longest)
            return
    except OSError as error:
        print(f"the unanswered push is not saved: {error}", file=sys.stderr)
    with contextlib.suppress(OSError):
        outbox.clear(file)  # the push of an earlier attempt has been delivered


def _load_where_fit(path: Path) -> Program:
    """Return the program in the user's file. Raises fitness.Unfit where this machine cannot run it."""
    facts = fitness.read(Path.cwd())  # before torch is imported, whose memory counts as free here
    fitness.demand(facts, fitness.Needs())
    try:
        loaded = loading.load(path, path)  # its own modules were sent with it
    except ProgramError as error:
        module = fitness.missing_module(error)
        if module is None:
            raise
        fitness.demand(replace(facts, missing=(module,)), fitness.Needs())
        raise
    if note := fitness.demand(facts, fitness.needs(loaded.uses_torch)):
        print(note, file=sys.stderr)
    return loaded


def _mailboxes(options: argparse.Namespace, carrier: Carrier) -> Iterator[tuple[str, WorkerMailbox]]:
    """Yield this worker's name in the run and its mailbox; the next candidate if no reply came there.

    Raises RunError where the mailboxes are unreachable, fitness.Unfit where modules of the carrier are missing.
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
    """Handle SIGTERM; return a function that tells whether it has come, for the session to poll."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master handles Ctrl-C at the terminal
    return lambda: bool(came)


def _prepare_torch(seed: str, asked: str) -> Device:
    """Set torch to one thread by default, and seed it by worker. Return the device to train on.

    Raises NoDeviceError where this machine lacks the requested one.
    """
    import torch

    import_dynamo_lazily()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    slot = os.environ.get(SLOT, "")
    device, reason = find_device(device_memory.parse(asked), int(slot) if slot.isdecimal() else None)
    if device.accelerates:
        print(f"trains on {device.name}: {reason}", file=sys.stderr)
        module = getattr(torch, torch.device(device.name).type)
        if hasattr(module, "set_device"):
            module.set_device(torch.device(device.name))
    torch.manual_seed(zlib.crc32(seed.encode()))
    return device


if __name__ == "__main__":
    sys.exit(main())

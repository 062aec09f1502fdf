"""The console script `gridml-worker`: one worker process, from its arguments to its exit status.

A job may be started again by its batch system. A worker finds out which attempt of its job it is by the mailbox
that is open.
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

POLL_S = 0.5  # seconds between two looks for a mailbox that the master has not opened yet
PATIENCE_S = 60.0  # how long to poll; whoever sees none leaves


def find_mailbox(
    job: str,
    mailboxes: Callable[[], list[str]],
    *,
    but: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return the name in the run of job `job` in its present attempt: `w7`, after n earlier ones `w7.n`; or None.

    The master opens the mailbox of the next attempt when it hears that the last one is over, so of those that are open
    the newest is ours, and `but` is one that turned out to be an earlier attempt's. What a batch system itself says of
    a job's starts is no help: it may not have heard of them.
    """
    give_up_s = clock() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            attempts = [name for name in mailboxes() if job_of(name) == job and name != but]
            if attempts:
                return max(attempts, key=attempt_of)
        if clock() >= give_up_s:
            return None
        rest(POLL_S)


CACHE = "GRIDML_WORKER_CACHE"  # in the environment of a machine that keeps a folder between its workers' lives
CACHE_FOLDER = "chunk-cache"  # in a job's own folder
CACHE_BYTES = 256 << 20  # of a job's disk, where nothing else is said


def main(argv: list[str] | None = None) -> int:
    """Run a worker; exit status 0 when it left because it was told to or evicted, the error's own otherwise."""
    parser = argparse.ArgumentParser(
        prog="gridml-worker",
        description="One worker of a run. Back ends start it; there is no need to call it by hand.",
        epilog="example: gridml-worker --name w1 --program mnist.py --directory runs/mnist-1",
    )
    parser.add_argument("--name", required=True, help="the worker's name in the run")
    parser.add_argument("--program", required=True, type=Path, help="the user's file")
    parser.add_argument("--original", type=Path, help="where the program is a copy of it: the user's own")
    parser.add_argument("--directory", type=Path, help="the run directory, where it is shared with the master")
    parser.add_argument(
        "--carrier",
        default="directory",
        help="what carries messages and chunks: directory, chirp, sftp, or what a package brings",
    )
    parser.add_argument("--chunks", type=int, default=None, help="leave after so many chunks")
    parser.add_argument("--patience", type=float, default=math.inf, help="seconds without an answer to save work after")
    parser.add_argument("--keep", type=int, default=sys.maxsize, help="bytes of a push that is kept, at most")
    parser.add_argument(
        "--cache",
        type=Path,
        help=f"folder in which chunks are kept, {{name}} the worker's in it; otherwise {CACHE} names one",
    )
    parser.add_argument("--cache-bytes", type=int, default=CACHE_BYTES, help="bytes of chunks that are kept, at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers f draws")
    parser.add_argument("--device", default="auto", help="what to train on: auto, cpu, cuda or cuda:N")
    parser.add_argument("--parent", type=int, default=None, help="process id to die with")
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
        status = error.exit_status  # at once: what holds memory of a broken device may fail to give it back
    except GridmlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_status
    except SystemExit:  # the user's code asks for it where f is not running; nobody may take that for a farewell
        traceback.print_exc()
        return 1
    if argv is None:  # a process of its own
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # grace is short, and taking Python and torch down tidily can cost a second of it
    return status


def _work(
    options: argparse.Namespace, carrier: Carrier, loaded: Program, device: Device, evicted: Callable[[], bool]
) -> int:
    """Be a worker until there is nothing more to do; what could not be sent is left in the job's folder.

    Raises DeviceFailedError where the device fails: nothing more is to be had from it, and what was trained on it since
    the last push is lost.
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
                _leave_behind(courier.unanswered, options.keep)  # first: taking the connection down may take long
        finally:
            mailbox.close()
        if session.saving and courier.unanswered is not None:
            status = outbox.SAVED
        if session.state.answered or session.saving or evicted():
            break
    return status


def _cache(options: argparse.Namespace, carrier: Carrier) -> ChunkCache | None:
    """What keeps this worker's chunks; None where the run's own folder has them, or there is no room for any."""
    folder = options.cache or os.environ.get(CACHE) or (CACHE_FOLDER if carrier.remote else None)
    if folder is None or options.cache_bytes < 1:
        return None
    try:
        return ChunkCache(Path(str(folder).replace("{name}", options.name)), options.cache_bytes)
    except OSError as error:
        print(f"no chunks are kept: {error}", file=sys.stderr)
        return None


def _leave_behind(message: outbox.UnansweredPush | None, longest: int) -> None:
    """Keep a push of at most `longest` bytes. What is not kept is trained again by somebody."""
    file = Path(outbox.FILE)
    try:
        if message is not None:
            outbox.write(file, message, longest)
            return
    except OSError as error:
        print(f"what could not be sent is not kept either: {error}", file=sys.stderr)
    with contextlib.suppress(OSError):
        outbox.clear(file)  # what an earlier attempt kept has been delivered


def _load_where_fit(path: Path) -> Program:
    """The program in the user's file. Raises fitness.Unfit where this machine cannot run it."""
    facts = fitness.read(Path.cwd())  # before torch is loaded: what it takes is still to be had
    fitness.demand(facts, fitness.Needs())
    try:
        loaded = loading.load(path, path)  # all beside it was sent with it
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
    """This worker's name in the run, and its mailbox; the next ones when nobody answered it there.

    Raises RunError where the mailboxes are out of reach, fitness.Unfit where this machine lacks what the carrier takes.
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
    """Whether SIGTERM has come, which the session asks between two batches."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is the master's to handle
    return lambda: bool(came)


def _prepare_torch(seed: str, asked: str) -> Device:
    """One thread unless told otherwise; random numbers of its own for every worker. Return the device to train on.

    Raises NoDeviceError where this machine has not the one that was asked for.
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

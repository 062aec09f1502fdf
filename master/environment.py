"""What a run gets from outside: where workers come from, the time, the disk, and who is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from gridml.carriers.base import MasterMailboxes
from gridml.protocol.codec import BundleCodec, Codec
from master.backends.base import Backend
from master.mailboxes import run_mailboxes
from master.store.journal import Report
from master.store.rundir import RunDirectory
from master.store.settings import Settings

Hook = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """The world around a master. Tests and simulations put their own here.

    `hook` is told the name of each commit point; who drives the run may end the process there. `tick` is called once a
    turn, and may raise to end the run between two turns.
    """

    backend: Callable[[Settings, RunDirectory], Backend]
    clock: Callable[[], float] = time.time
    rest: Callable[[float], None] = time.sleep
    report: Report = lambda topic, text: None
    hook: Hook = lambda point: None
    tick: Callable[[], None] = lambda: None
    mailboxes: Callable[[Settings, RunDirectory], MasterMailboxes] = run_mailboxes
    unattended: bool = False  # started by a schedd, and not by a person
    durable: bool = True  # without, a simulation need not wait for the disk
    codec: Codec = field(default_factory=BundleCodec)
    cpu: Callable[[], float] = time.thread_time  # seconds that the master's thread has computed
    executor: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "evaluate")  # beside the master's loop

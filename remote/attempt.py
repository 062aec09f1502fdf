"""Which attempt of its job a worker is, where jobs are started again by themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from gridml.protocol.attempts import attempt_of, job_of

LOOK_S = 0.5  # seconds between two looks for a mailbox that the master has not opened yet
PATIENCE_S = 60.0  # how long to look; whoever sees none leaves


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
        rest(LOOK_S)

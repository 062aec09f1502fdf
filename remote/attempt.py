"""What a worker that is an HTCondor job knows of itself: which of its job's lives it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from gridml.protocol.attempts import attempt_of, job_of

LOOK_S = 0.5  # how often to look for a mailbox that the master has not opened yet
PATIENCE_S = 60.0  # how long to look; whoever finds none leaves


def find_mailbox(
    job: str,
    mailboxes: Callable[[], list[str]],
    *,
    but: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> str | None:
    """The name in the run of job `job` in its present life: `w7`, after n earlier ones `w7.n`; None if there is none.

    The master opens the mailbox of the next life when it reads in the log that the last one is over, so of those that
    are open the newest is ours, and `but` is one that turned out to be an earlier life's. What the job's ad says of
    its starts is no help: the schedd may not have heard of them when the shadow died.
    """
    give_up_s = clock() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            lives = [name for name in mailboxes() if job_of(name) == job and name != but]
            if lives:
                return max(lives, key=attempt_of)
        if clock() >= give_up_s:
            return None
        rest(LOOK_S)

"""Which names of what f logs a run takes: no worker can fill the ledger with names, nor keep those of others out."""

from __future__ import annotations

from collections.abc import Mapping

from gridml.protocol.messages import MOST_LOGGED

MOST_NAMES = 64  # of a run
MOST_ALONE = MOST_LOGGED  # that nobody else has logged, of one job: as many as a push takes along
Loggers = frozenset[str]  # the jobs that may be the only one to have logged a name; none once there were two


def admit(name: str, job: str, names: Mapping[str, Loggers]) -> tuple[bool, str]:
    """Return whether a name is taken that a credited push of `job` logs under, and why; `names` are the run's."""
    if name in names:
        return True, "it is known"
    if len(names) >= MOST_NAMES:
        return False, f"f logs under more than {MOST_NAMES} names"
    alone = sum(job in jobs for jobs in names.values())
    if alone >= MOST_ALONE:
        return False, f"{job} logs under more than {MOST_ALONE} names that no other worker does"
    return True, f"it is one of {alone + 1} that only {job} logs under"

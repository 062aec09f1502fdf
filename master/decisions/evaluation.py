"""How long the user's evaluate may take, how much memory, and whether it is tried again when its process dies."""

from __future__ import annotations

LEAST_S, LONGEST_S = 3600.0, 7 * 86400.0  # that an evaluation may take, however short or long the epochs are
EPOCHS = 10  # as long as so many of them
SHARE = 0.5  # of the machine's memory
TRIES = 2  # of one evaluation: what killed the first may have been meant for nobody


def limit_s(epoch_s: float) -> float:
    """Seconds that the evaluation of an epoch may take that lasted so long."""
    return min(max(LEAST_S, EPOCHS * epoch_s), LONGEST_S)


def most_memory(machine: int) -> int:
    """Bytes of data that the process may have on a machine with so many bytes of memory, on which others live, too."""
    return round(SHARE * machine)


def after_death(deaths: int) -> tuple[bool, str]:
    """Whether an evaluation is tried again whose process has ended so many times before it had an answer."""
    if deaths < TRIES:
        return True, "it is tried once more"
    return False, f"{deaths} times in a row"

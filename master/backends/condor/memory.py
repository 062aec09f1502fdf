"""How much memory jobs ask for: `2GB`, or `1GB..4GB`, of which the most is asked for only when less was too little."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gridml.errors import UsageError
from gridml.protocol.text import printable

MORE = 2.0  # times what was too little is asked for next
ABOVE = 1.25  # times what a job was seen to use
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}  # as HTCondor reads them: no unit is MiB
_EXPECTED = "expected a size, as 2GB or 1500MB, or a range of two, as 1GB..4GB"


@dataclass(frozen=True)
class MemoryRange:
    """What a job asks for at first and at most, in MiB, whole numbers from 1."""

    first: int
    most: int


def memory_range(text: str) -> MemoryRange:
    """Return what `--request-memory` says. Raises UsageError for what is no size, or no range of sizes."""
    first, dots, most = text.partition("..")
    low = _mib(first, text)
    high = _mib(most, text) if dots else low
    if high < low:
        raise UsageError(f"--request-memory is {printable(text, 80)}: the second size is the smaller one; {_EXPECTED}.")
    return MemoryRange(low, high)


def _mib(size: str, text: str) -> int:
    match = _SIZE.fullmatch(size)
    mib = 0 if match is None else math.ceil(float(match[1]) * _MIB[match[2].upper()])
    if not 1 <= mib <= 2**40:
        raise UsageError(f"--request-memory is {printable(text, 80)}; {_EXPECTED}.")
    return mib


def next_request(too_little: int, used: int | None, most: int) -> tuple[int | None, str]:
    """Return the MiB to ask for after a job was held that asked for `too_little` and `used` so much as far as anybody
    has seen, None where that was the `most` already; and why."""
    if too_little >= most:
        return None, f"{too_little:,} MB were too little, and --request-memory allows no more"
    wanted = max(MORE * too_little, ABOVE * (used or 0))
    asked = min(most, math.ceil(wanted))
    seen = "" if used is None else f" ({used:,} MB were used)"
    return asked, f"{too_little:,} MB were too little{seen}: jobs ask for {asked:,} MB now, {most:,} at most"

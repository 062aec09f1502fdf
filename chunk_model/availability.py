"""Traces that only count: so many instances were there, at such a moment. Who came and who left is not recorded.

Two formats. SkyPilot's (Wu et al., NSDI 2024) is JSON, `{"metadata": {"gap_seconds": g}, "data": [0, 1, 4, ...]}`, a
count every g seconds. Bamboo's record of a GCP zone (Thorpe et al., NSDI 2023) is lines `date, time, count`.

A count that falls by k ends k lives at that one instant. Which k is not recorded, and each of those present is taken to
be as likely as any other (drawn with a fixed seed, so a file always gives the same lives). The choice changes neither
the number of deaths nor the time lived, only how they are shared out: ending the oldest first would make lives alike
and show wear where there is none, ending the youngest first would show machines that fail young. A draw claims neither.

Counts are taken now and then, and what changed since the last did so at some moment between the two, which is drawn,
too: one moment for all that changed, as machines are taken in groups. Were the moments of counting taken for those of
change, lives would be whole multiples of the gap, and a chunk that just fits into one would look better than it is. A
stay that falls between two counts is missed, and a node that left and came back between them did not leave. In traces
of availability nobody held the machine: the life is that of an instance started as soon as there was one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from chunk_model.trace import Life, Record, TraceError, shown

MOST = 1_000_000  # instances at once; more than that is no count of machines
_LINE = re.compile(r"\s*(\d{4}-\d\d-\d\d)\s*,\s*(\d\d:\d\d:\d\d)\s*,\s*(\d+)\s*")
_EXPECTED = '{"metadata": {"gap_seconds": 60}, "data": [1, 1, 0]}'


def count_lives(time_s: Sequence[float], count: Sequence[int], seed: int = 0) -> list[Life]:
    """Return lives from how many instances were there at each moment, in order of their start.

    `time_s` (n,) in seconds, rising; `count` (n,) whole numbers >= 0. A rise starts lives; a fall ends as many, drawn
    evenly from those present. Those that start or end between two counts do so at one instant, drawn evenly from the
    time between. All draws are from `seed`.
    """
    rng = np.random.default_rng(seed)
    stays: list[Life] = []
    there: list[int] = []
    last = time_s[0] if time_s else 0.0
    for seen, wanted in zip(time_s, count, strict=True):
        now = float(seen - (seen - last) * rng.random())
        last = seen
        for _ in range(len(there) - wanted):
            taken = int(rng.integers(len(there)))
            there[taken], there[-1] = there[-1], there[taken]
            gone = there.pop()
            stays[gone] = replace(stays[gone], end_s=now)
        for _ in range(wanted - len(there)):
            there.append(len(stays))
            stays.append(Life(f"i{len(stays) + 1}", now, None))
    return stays


def parse_ticks(text: str, source: str) -> Record:
    """Return the lives of a trace in SkyPilot's JSON. Raises TraceError, naming `source` and the place in it."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{source}, line {error.lineno}: not JSON ({error.msg}); is the file cut off?") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise TraceError(f"{source}: cannot be read as JSON ({error}); expected such as {_EXPECTED}") from None
    match content:
        case {"metadata": {"gap_seconds": int() | float() as gap}, "data": [_, *_] as data}:
            pass
        case _:
            raise TraceError(f"{source}: gap_seconds or data is missing, or empty; expected such as {_EXPECTED}")
    if isinstance(gap, bool) or not (math.isfinite(gap) and gap > 0):
        raise TraceError(f"{source}: gap_seconds is {gap!r}; expected the seconds between two counts, above 0")
    for tick, count in enumerate(data):
        if type(count) is not int or not 0 <= count <= MOST:
            raise TraceError(f"{source}, data[{tick}]: got {count!r}, expected a number of instances, 0 to {MOST:,}")
    moments = [gap * tick for tick in range(len(data))]
    return Record(tuple(count_lives(moments, data)), float(moments[-1]), f"instances there every {gap:g} s", data[0])


def parse_counts(lines: Iterable[str], source: str) -> Record:
    """Return the lives of a trace of lines `date, time, count`; blank lines are passed over. TraceError names the line.

    A line that goes back in time takes back what the lines before it hold for that moment and of later ones: such
    traces hold guesses of how long a count would stay, which the next look at the market overtakes.
    """
    moments: list[float] = []
    counts: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None or int(match[3]) > MOST:
            raise TraceError(f"{source}, line {number}: got {shown(line)}, expected such as 2021-12-10, 13:07:45, 80")
        try:
            now = datetime.fromisoformat(f"{match[1]}T{match[2]}+00:00").timestamp()
        except ValueError as error:
            raise TraceError(f"{source}, line {number}: got {shown(line)}, which is no moment ({error})") from None
        while moments and moments[-1] >= now:
            moments.pop()
            counts.pop()
        moments.append(now)
        counts.append(int(match[3]))
    if not moments:
        raise TraceError(f"{source} has no counts: expected lines such as 2021-12-10, 13:07:45, 80")
    since = [now - moments[0] for now in moments]
    return Record(tuple(count_lives(since, counts)), since[-1], "instances there at each line", counts[0])

"""Traces of machines that come and go: events of named nodes, and counts of instances.

Every format becomes a list of `Life` in a `Record`. Formats with names: the Bamboo traces (Thorpe et al., NSDI
2023), one event a line, `milliseconds,add|remove,node`, in order of time, without a header. Many removals may share
one instant, because spot markets take machines in groups. Formats that only count: SkyPilot's (Wu et al., NSDI
2024) is JSON, `{"metadata": {"gap_seconds": g}, "data": [0, 1, 4, ...]}`, a count every g seconds; Bamboo's record
of a GCP zone (Thorpe et al., NSDI 2023) is lines `date, time, count`. `chunk_model.prices` reads spot prices, and
`chunk_model.record` finds out which format a file has. A file that a user names is read within bounds, so reading
always ends.

Counts do not record who came and who left. A count that falls by k ends k lives at one instant, drawn among those
present with equal chances and a fixed seed, so a file always gives the same lives. The choice changes neither the
number of deaths nor the time lived, only how that time is divided: ending the oldest first would make lives alike
and show wear where there is none; ending the youngest first would show machines that fail young. A draw claims
neither.

A change happened at some moment between two counts. That moment is drawn, too: one moment for everything that
changed, since machines are taken in groups. If changes were put at the moments of counting, lives would be whole
multiples of the gap, and a chunk that just fits into one would look better than it is. A stay between two counts is
missed, and a node that left and came back between them did not leave. No user held the machines of such a trace: a
life is that of an instance started as soon as there was one.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import json
import lzma
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 256 << 20
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
_PIPES = ("/dev/fd", "/proc/self/fd", "/dev/stdin")  # what a shell hands over is open already
_MARKS = {  # the longer ones first: that of UTF-32 begins as that of UTF-16 does
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class TraceError(ValueError):
    """A trace is empty, or a line of it cannot be read or contradicts the lines before."""


class UnreadableError(TraceError):
    """A file is packed and damaged, or is no text: says what to do."""


def text_of(path: Path) -> str:
    """Return the text of a file, unpacked if gzip, bzip2 or xz packed it, in UTF-8 or what its byte order mark says.

    Raises OSError when it cannot be read, is no regular file (of which nobody knows when it ends), or holds more than
    `MAX_BYTES`; UnreadableError when it is packed and damaged, or no text.
    """
    try:
        content = _read_bytes(path)
        return content.decode(next((each for mark, each in _MARKS.items() if content.startswith(mark)), "utf-8-sig"))
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UnreadableError(f"{path} is damaged ({error}): fetch or pack it again") from None
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{path} is not text ({error.reason} at byte {error.start}): give it as text") from None


def _read_bytes(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode) and not str(path).startswith(_PIPES):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        os.set_blocking(file.fileno(), True)
        content = _bounded(file.read(MAX_BYTES + 1), path)
    if content.startswith(GZIP):
        with gzip.open(io.BytesIO(content)) as unpacked:
            return _bounded(unpacked.read(MAX_BYTES + 1), path)
    if content.startswith(BZIP2):
        return _bounded(_streams(content, bz2.BZ2Decompressor), path)
    if content.startswith(XZ):
        return _bounded(_streams(content, lzma.LZMADecompressor), path)
    return content


def _streams(content: bytes, decoder: Callable[[], Any]) -> bytes:
    """What streams one after the other unpack to, up to a byte more than the bound; bz2.open and lzma.open pass over
    what is damaged after the first."""
    unpacked = bytearray()
    while content and len(unpacked) <= MAX_BYTES:
        stream = decoder()
        try:
            unpacked += stream.decompress(content, MAX_BYTES + 1 - len(unpacked))
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from error
        if not stream.eof and len(unpacked) <= MAX_BYTES:
            raise EOFError("it ends before its end was reached")
        content = stream.unused_data.lstrip(b"\0")
    return bytes(unpacked)


def _bounded(content: bytes, path: Path) -> bytes:
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it holds more than {MAX_BYTES >> 20} MiB", str(path))
    return content


_LINE = re.compile(r"\s*([0-9]{1,15})\s*,\s*(add|remove)\s*,\s*([^\s,]+)\s*")


MAX_SHOWN_CHARS = 120  # characters of a line


@dataclass(frozen=True)
class TraceEvent:
    """`node` joined, or left, `time_s` seconds after the start of the trace."""

    time_s: float
    node: str
    joined: bool


@dataclass(frozen=True)
class Life:
    """One stay of one node, in seconds since the start of the trace; `end_s` is None if it never left (censored)."""

    node: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class Record:
    """All lives of a trace that was kept from second 0 to `end_s`; those without an end were still there then.

    `older` lives were there when the record began: they may have begun before that, and count from 0. That makes them
    too short, which matters most where the record is not much longer than the lives in it.
    """

    lives: tuple[Life, ...]
    end_s: float
    contents: str  # in words, for people
    older: int = 0


def read_trace(path: Path) -> tuple[TraceEvent, ...]:
    """Return the events of a trace file. Raises OSError, and TraceError (with file and line)."""
    return parse_trace(text_of(path).splitlines(), str(path))


def parse_trace(lines: Iterable[str], source: str = "trace") -> tuple[TraceEvent, ...]:
    """Return the events of `lines`, in their order; blank lines are passed over. Raises TraceError.

    Checked: three fields, a whole number of milliseconds that never goes back, no node added twice or removed while
    absent. A line that was cut off is refused where these checks can tell; it is never repaired.
    """
    events: list[TraceEvent] = []
    present: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        match = _LINE.fullmatch(line)
        if match is None:
            expected = "milliseconds,add|remove,node such as 60000,add,node1"
            raise TraceError(f"{where}: got {shown(line)}, expected {expected}")
        event = TraceEvent(int(match[1]) / 1000, match[3], match[2] == "add")
        if events and event.time_s < events[-1].time_s:
            raise TraceError(f"{where}: time goes back from {events[-1].time_s} s to {event.time_s} s; sort it by time")
        if event.joined and event.node in present:
            raise TraceError(f"{where}: {event.node} is added although it is there already; is a removal missing?")
        if not event.joined and event.node not in present:
            raise TraceError(f"{where}: {event.node} is removed although it is not there; is a line cut off?")
        (present.add if event.joined else present.remove)(event.node)
        events.append(event)
    if not events:
        raise TraceError(f"{source} has no events: expected lines such as 60000,add,node1")
    return tuple(events)


def trace_lives(trace: Iterable[TraceEvent]) -> list[Life]:
    """Return the stays of all nodes of a checked trace, in order of their start; a node that comes back has several."""
    stays: list[Life] = []
    latest: dict[str, int] = {}
    for event in trace:
        if event.joined:
            latest[event.node] = len(stays)
            stays.append(Life(event.node, event.time_s, None))
        else:
            stay = latest[event.node]
            stays[stay] = replace(stays[stay], end_s=event.time_s)
    return stays


def shown(line: str) -> str:
    """Return a line as a message shows it: quoted, and no longer than a person reads."""
    return repr(line if len(line) <= MAX_SHOWN_CHARS else f"{line[:MAX_SHOWN_CHARS]}...")


MAX_COUNT = 1_000_000  # instances at once; more than that is no count of machines
_AVAILABILITY_LINE = re.compile(r"\s*(\d{4}-\d\d-\d\d)\s*,\s*(\d\d:\d\d:\d\d)\s*,\s*(\d+)\s*")
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
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            raise TraceError(f"{source}, data[{tick}]: got {count!r}, expected 0 to {MAX_COUNT:,} instances")
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
        match = _AVAILABILITY_LINE.fullmatch(line)
        if match is None or int(match[3]) > MAX_COUNT:
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

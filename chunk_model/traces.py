"""Traces of machines that come and go: events of named nodes, and counts of instances.

Every format becomes a list of `Life` in a `Record`. In one format, nodes have names: the Bamboo traces (Thorpe et al.,
NSDI 2023) have one event a line, `milliseconds,add|remove,node`, in order of time, without a header. Many removals can
have the same time, because spot markets reclaim machines in groups. Other formats have counts: SkyPilot's (Wu et al.,
NSDI 2024) is JSON, `{"metadata": {"gap_seconds": g}, "data": [0, 1, 4, ...]}`, a count every g seconds; Bamboo's record
of a GCP zone (Thorpe et al., NSDI 2023) has lines `date, time, count`. `chunk_model.prices` reads spot prices, and
detects the format of a file. The size of a file is bounded, so reading always ends.

Counts do not identify machines. If a count falls by k, k lives end at one time. They are drawn uniformly from the lives
present, with a fixed seed, so a file always gives the same lives. The draw affects neither the number of deaths nor the
total time of all lives, only how that time is divided among the lives. Ending the oldest lives first would suggest
wear, and ending the youngest first would suggest early failures. A uniform draw suggests neither.

The time of a change between two counts is drawn, too. All changes between these counts have the same time, because
machines are reclaimed in groups. If changes had the times of the counts, lives would be multiples of the gap, and a
chunk that just fits into such a life would look better than it is. A stay that begins and ends between two counts is
missed, and a node that leaves and returns between them counts as present. No user held the machines of such a trace. So
a life stands for an instance that is started as soon as one is available.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import re
import reprlib
import stat
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 256 << 20  # maximum size of a file and of its decompressed content
# The decompressed content has at most MAX_UNPACKED bytes or MAX_RATIO times the file's size, whichever is more.
MAX_UNPACKED = 16 << 20
MAX_RATIO = 100
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"  # first bytes of compressed files
# Paths of a shell's process substitution and of standard input. They are open already, so opening them cannot block.
_PIPES = ("/dev/fd", "/proc/self/fd", "/dev/stdin")
_MARKS = {  # byte order marks, longest first, because the mark of UTF-32 begins with the mark of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class TraceError(ValueError):
    """A trace is empty, or a line is invalid or contradicts earlier lines."""


class UnreadableError(TraceError):
    """A compressed file is damaged, or a file is not text."""


def text_of(path: Path) -> str:
    """Return the text of a file: decompressed (gzip, bzip2, xz) and decoded as UTF-8, or by its byte order mark.

    Raises OSError if the file cannot be read, is not a regular file (which might never end), or has more than
    `MAX_BYTES`; UnreadableError if it is damaged or not text.
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
        content = _bounded(file.read(MAX_BYTES + 1), path, MAX_BYTES)
    limit = min(MAX_BYTES, max(MAX_UNPACKED, MAX_RATIO * len(content)))
    if content.startswith(GZIP):
        with gzip.open(io.BytesIO(content)) as unpacked:
            return _bounded(unpacked.read(limit + 1), path, limit)
    if content.startswith(BZIP2):
        return _bounded(_streams(content, bz2.BZ2Decompressor, limit), path, limit)
    if content.startswith(XZ):
        return _bounded(_streams(content, lzma.LZMADecompressor, limit), path, limit)
    return content


def _streams(content: bytes, decoder: Callable[[], Any], limit: int) -> bytes:
    """Decompress concatenated streams, up to a byte more than the limit. bz2.open and lzma.open are not used, because
    they ignore damage after the first stream."""
    unpacked = bytearray()
    while content and len(unpacked) <= limit:
        stream = decoder()
        try:
            unpacked += stream.decompress(content, limit + 1 - len(unpacked))
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from error
        if not stream.eof and len(unpacked) <= limit:
            raise EOFError("the compressed data is cut off")
        content = stream.unused_data.lstrip(b"\0")
    return bytes(unpacked)


def _bounded(content: bytes, path: Path, limit: int) -> bytes:
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it holds more than {limit >> 20} MiB", str(path))
    return content


_LINE = re.compile(r"\s*([0-9]{1,15})\s*,\s*(add|remove)\s*,\s*([^\s,]{1,200})\s*")


MAX_SHOWN_CHARS = 120  # maximum length of a line that a message quotes


@dataclass(frozen=True)
class TraceEvent:
    """A node that joins or leaves."""

    time_s: float  #: seconds since the start of the trace
    node: str
    joined: bool  #: True: the node joined; False: it left


@dataclass(frozen=True)
class Life:
    """One stay of one node. Times are seconds since the start of the trace."""

    node: str
    start_s: float
    end_s: float | None  #: None if the node had not left by the end of the trace (censored)


@dataclass(frozen=True)
class Record:
    """All lives of a trace from second 0 to `end_s`."""

    lives: tuple[Life, ...]  #: a life without an end was still going on at `end_s`
    end_s: float
    contents: str  #: description for people
    #: Number of lives that were going on at second 0. Their recorded durations are too short if they began earlier,
    #: which matters most if the record is not much longer than the lives.
    older: int = 0


def read_trace(path: Path) -> tuple[TraceEvent, ...]:
    """Read the events of a trace file. Raises OSError, and TraceError (with file and line)."""
    return parse_trace(text_of(path).splitlines(), str(path))


def parse_trace(lines: Iterable[str], source: str = "trace") -> tuple[TraceEvent, ...]:
    """Parse the events of `lines`, in order; blank lines are ignored. Raises TraceError.

    Each line must have three fields. The time must be a whole number of milliseconds and never decrease. No node may be
    added while present or removed while absent. A truncated line is rejected if it breaks these rules, and never
    repaired.
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
    """Return the stays of all nodes of a valid trace, in order of their start; a node that returns has several."""
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
    """Return a line for messages: quoted and truncated."""
    return repr(line if len(line) <= MAX_SHOWN_CHARS else f"{line[:MAX_SHOWN_CHARS]}...")


MAX_GAP_S = 1e9  # maximum time between two counts
MAX_LIVES = 100_000  # maximum number of lives of a trace of counts
MAX_COUNT = 1_000_000  # maximum number of instances at a time; a larger number cannot be a count of machines
_AVAILABILITY_LINE = re.compile(r"\s*(\d{4}-\d\d-\d\d)\s*,\s*(\d\d:\d\d:\d\d)\s*,\s*(\d{1,15})\s*")
TICKS = '{"metadata": {"gap_seconds": 60}, "data": [1, 1, 0]}'  # example of SkyPilot's JSON, for messages


def count_lives(time_s: Sequence[float], count: Sequence[int], seed: int = 0) -> list[Life]:
    """Return lives for the numbers of instances at given times, in order of their start.

    `time_s` (n,) in seconds, ascending; `count` (n,) whole numbers >= 0. A rise starts lives; a fall ends lives, drawn
    uniformly from the lives present. All changes between two counts happen at one time, drawn uniformly between the
    times of these counts. All draws use `seed`.
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


def parse_ticks(content: Any, source: str) -> Record:
    """Return the trace in SkyPilot's JSON, decoded. Raises TraceError, with `source` and the position."""
    match content:
        case {"metadata": {"gap_seconds": int() | float() as gap}, "data": [_, *_] as data}:
            pass
        case _:
            raise TraceError(f"{source}: gap_seconds or data is missing, or empty; expected such as {TICKS}")
    if isinstance(gap, bool) or not 0 < gap <= MAX_GAP_S:
        expected = f"the seconds between two counts, above 0 and at most {MAX_GAP_S:g}"
        raise TraceError(f"{source}: gap_seconds is {reprlib.repr(gap)}; expected {expected}")
    for tick, count in enumerate(data):
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            raise TraceError(
                f"{source}, data[{tick}]: got {reprlib.repr(count)}, expected 0 to {MAX_COUNT:,} instances"
            )
    moments = [gap * tick for tick in range(len(data))]
    return _counted(moments, data, source, f"instances there every {gap:g} s")


def parse_counts(lines: Iterable[str], source: str) -> Record:
    """Parse a trace of lines `date, time, count`; blank lines are ignored. Raises TraceError with the line.

    A line that goes back in time replaces the preceding lines with the same or a later time, because such traces
    contain predictions, which the next actual count overrides.
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
    return _counted(since, counts, source, "instances there at each line")


def _counted(time_s: Sequence[float], count: Sequence[int], source: str, contents: str) -> Record:
    lives = count[0] + sum(max(0, after - before) for before, after in pairwise(count))
    if lives > MAX_LIVES:
        raise TraceError(f"{source} has {lives:,} lives; expected at most {MAX_LIVES:,}. Give a part of it.")
    return Record(tuple(count_lives(time_s, count)), float(time_s[-1]), contents, count[0])

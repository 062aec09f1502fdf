"""Traces of machines that come and go: who joined and who left, when.

What every format of trace becomes is here (`Life`, `Record`), and the format that names its nodes, that of the Bamboo
traces (Thorpe et al., NSDI 2023): one event a line, `milliseconds,add|remove,node`, in order of time, without a header.
Many removals may share one instant: spot markets take machines in groups. `availability` and `prices` hold the formats
without names; `record` finds out which one a file has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from chunk_model import files

_LINE = re.compile(r"\s*([0-9]{1,15})\s*,\s*(add|remove)\s*,\s*([^\s,]+)\s*")


LONGEST_SHOWN = 120  # characters of a line


class TraceError(ValueError):
    """A trace is empty, or a line of it cannot be read or contradicts the lines before."""


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


def read(path: Path) -> tuple[TraceEvent, ...]:
    """Return the events of a trace file. Raises OSError, and TraceError (with file and line)."""
    return parse(read_text(path).splitlines(), str(path))


def read_text(path: Path) -> str:
    """Return the text of a file, packed or not (`files`). Raises OSError; TraceError when damaged or not text."""
    try:
        return files.read_text(path)
    except files.UnreadableError as error:
        raise TraceError(str(error)) from None


def parse(lines: Iterable[str], source: str = "trace") -> tuple[TraceEvent, ...]:
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
        event = _event(line, where)
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


def lives(trace: Iterable[TraceEvent]) -> list[Life]:
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
    return repr(line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}...")


def _event(line: str, where: str) -> TraceEvent:
    match = _LINE.fullmatch(line)
    if match is None:
        raise TraceError(f"{where}: got {shown(line)}, expected milliseconds,add|remove,node such as 60000,add,node1")
    return TraceEvent(int(match[1]) / 1000, match[3], match[2] == "add")

"""Reading of traces in any known format, recognised by content."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunk_model import prices, traces
from chunk_model.traces import Record, TraceError, text_of


@dataclass(frozen=True)
class _Format:
    """A file format of traces."""

    shown: str  # an example, for messages
    begins: re.Pattern[str]  # matches the first line that is not blank
    read: Callable[[str, str], Record]  # (whole text, file name for messages)


def _events(text: str, source: str) -> Record:
    events = traces.parse_trace(text.splitlines(), source)
    lives = tuple(traces.trace_lives(events))
    older = sum(life.start_s == 0 for life in lives)
    return Record(lives, events[-1].time_s, "nodes added and removed", older)


FORMATS = (
    _Format("milliseconds,add|remove,node", re.compile(r"\s*[^,]*,\s*(add|remove)\b"), _events),
    _Format('{"metadata": {"gap_seconds": 60}, "data": [1, 1, 0]}', re.compile(r"\s*\{"), traces.parse_ticks),
    _Format(
        "2021-12-10, 13:07:45, 80",
        re.compile(r"\s*\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d:\d\d\s*,"),
        lambda text, source: traces.parse_counts(text.splitlines(), source),
    ),
    _Format(
        ",".join(prices.COLUMNS),
        re.compile(r"(?=.*\btimestamp\b)(?=.*\bprice_usd_per_h\b)"),
        lambda text, source: prices.price_lives(text.splitlines(), source),
    ),
)


def read_record(path: Path) -> Record:
    """Read the lives of machines from a trace file, compressed or not.

    Raises OSError if the file cannot be read, TraceError for an unknown format or an invalid line.
    """
    text = text_of(path)
    first = next((line for line in text.splitlines() if line.strip()), None)
    if first is None:
        raise TraceError(f"{path} is empty; expected a trace, such as lines 60000,add,node1")
    for trace_format in FORMATS:
        if trace_format.begins.match(first):
            return trace_format.read(text, str(path))
    shown = first if len(first) <= 60 else f"{first[:60]}..."
    if "duration_s" in first:
        raise TraceError(f"{path} holds lifetimes (it begins {shown!r}), not a trace; read it as those: --lifetimes")
    raise TraceError(
        f"{path} is a trace of no known format: it begins {shown!r}; expected one of "
        + ", or ".join(trace_format.shown for trace_format in FORMATS)
    )

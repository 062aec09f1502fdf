"""Reading of traces in any known format, recognised by content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunk_model import prices, traces
from chunk_model.traces import TICKS, Record, TraceError, text_of


@dataclass(frozen=True)
class _Format:
    """A file format of traces."""

    shown: str  # an example, for messages
    begins: re.Pattern[str]  # matches the first line that is not blank
    read: Callable[[str, str], Record]  # called with (whole text, file name for messages)


def _events(text: str, source: str) -> Record:
    events = traces.parse_trace(text.splitlines(), source)
    lives = tuple(traces.trace_lives(events))
    older = sum(life.start_s == 0 for life in lives)
    return Record(lives, events[-1].time_s, "nodes added and removed", older)


def parse_json(text: str, source: str) -> Record:
    """Parse a trace in JSON: SkyPilot's counts, or AWS's price history. Raises TraceError, with the position."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{source}, line {error.lineno}: not JSON ({error.msg}); is the file cut off?") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise TraceError(f"{source}: cannot be read as JSON ({error}); expected such as {TICKS}") from None
    match content.get("SpotPriceHistory") if isinstance(content, dict) else content:
        case [] | [{"SpotPrice": _}, *_] as entries:
            return prices.price_lives(prices.read_aws_json(entries, source), source)
    return traces.parse_ticks(content, source)


_AWS = "AWS's describe-spot-price-history"
FORMATS = (
    _Format("milliseconds,add|remove,node", re.compile(r"\s*[^,]*,\s*(add|remove)\b"), _events),
    _Format(f"{TICKS}, or {_AWS} writes", re.compile(r"\s*[{\[]"), parse_json),
    _Format(
        f"{_AWS} --output text writes",
        re.compile(r"SPOTPRICEHISTORY\t"),
        lambda text, source: prices.price_lives(prices.read_aws_text(text.splitlines(), source), source),
    ),
    _Format(
        "2021-12-10, 13:07:45, 80",
        re.compile(r"\s*\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d:\d\d\s*,"),
        lambda text, source: traces.parse_counts(text.splitlines(), source),
    ),
    _Format(
        ",".join(prices.COLUMNS),
        re.compile(r"(?=.*\btimestamp\b)(?=.*\bprice_usd_per_h\b)"),
        lambda text, source: prices.price_lives(prices.read_prices(text.splitlines(), source), source),
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

"""Spot price histories as traces of lives, and reading of traces in any known format, recognised by content.

A price file is CSV with a header and the columns timestamp, instance_type, zone, product, price_usd_per_h, or the
output of AWS's command describe-spot-price-history (JSON, or its `--output text`), which has the same data under other
names, newest first. A price holds until the next price of its market.

Lives from prices are simulated: an instance is requested every hour in every market, with a bid in multiples of that
market's median price. An instance starts if the price is at most its bid, and is reclaimed when the price exceeds the
bid. All lives of a market that go on at that time end together, so they count as one independent death.

Lives from interruptions: a provider publishes the share of machines that it reclaims within a month. Amazon's Spot
Instance Advisor has this share for each type, in bands such as "<5%" and "5-10%", for the trailing month. The share
says nothing about the ages of the machines, so the exponential distribution is used.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunk_model import traces
from chunk_model.families import Exponential
from chunk_model.lifetime import LifetimeError
from chunk_model.traces import TICKS, Life, Record, TraceError, shown, text_of

Floats = NDArray[np.float64]

COLUMNS = ("timestamp", "instance_type", "zone", "product", "price_usd_per_h")


Row = tuple[str, Sequence[Any]]  # (position of the row, for messages; values of COLUMNS)
Prices = dict[str, tuple[Floats, Floats]]  # as `read_prices` returns them


def read_prices(lines: Iterable[str], source: str) -> Prices:
    """Return for each market, such as "c3.xlarge/us-east-1a/Linux", (seconds since 1970, dollars an hour), each (n,) in
    order of time. Raises TraceError (with source and line)."""
    try:
        return _prices(_of_csv(lines, source), source)
    except csv.Error as error:
        raise TraceError(f"{source} cannot be read as CSV: {error}") from None


AWS = ("Timestamp", "InstanceType", "AvailabilityZone", "ProductDescription", "SpotPrice")  # AWS's names for COLUMNS


def read_aws_json(entries: Iterable[Any], source: str) -> Prices:
    """Return the prices in entries of DescribeSpotPriceHistory, whose times are text. Otherwise like `read_prices`."""
    named = (entry if isinstance(entry, dict) else {"": entry} for entry in entries)
    rows = ([each[name] for name in AWS] if {*AWS} <= each.keys() else [*each.values()] for each in named)
    return _prices(((f"SpotPriceHistory[{n}]", row) for n, row in enumerate(rows)), source)


def read_aws_text(lines: Iterable[str], source: str) -> Prices:
    """Return the prices in the output of `describe-spot-price-history --output text`. Otherwise like `read_prices`."""

    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, 1):
            match line.strip().split("\t"):
                case [_, zone, *_, instance, product, cost, when]:  # newer versions of AWS's command add the zone's id
                    yield f"line {number}", [when, instance, zone, product, cost]
                case row if row != [""]:
                    yield f"line {number}", row

    return _prices(rows(), source)


def price_steps(history: Iterable[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Return [seconds since 1970, dollars an hour] in order of time for each market, such as "c5.large/us-east-1a".

    `history` are the entries of DescribeSpotPriceHistory's SpotPriceHistory, of one product. A price that equals the
    one before it is left out; of several prices at one time the highest is used. Raises ValueError for an invalid
    entry.
    """
    points: dict[str, dict[float, float]] = defaultdict(dict)
    for entry in history:
        try:
            market = f"{entry['InstanceType']}/{entry['AvailabilityZone']}"
            at_s, price = entry["Timestamp"].timestamp(), float(entry["SpotPrice"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"got {shown(repr(dict(entry)))}, expected an entry of a price history") from error
        if not (math.isfinite(price) and price >= 0):
            raise ValueError(f"{market} has the price {price}, expected dollars an hour")
        points[market][at_s] = max(price, points[market].get(at_s, 0.0))
    steps: dict[str, list[list[float]]] = {}
    for market, prices in points.items():
        series = steps[market] = []
        for at_s, price in sorted(prices.items()):
            if not series or series[-1][1] != price:
                series.append([at_s, price])
    return steps


def median_over_time(time_s: Floats, price: Floats, end_s: float) -> float:
    """Return the time-weighted median price from `time_s[0]` to `end_s`; each price holds until the next.

    `time_s` float64 (n,) rising, `price` float64 (n,).
    """
    held_s = np.diff(np.append(time_s, end_s))
    order = np.argsort(price, kind="stable")
    so_far = np.cumsum(held_s[order])
    return float(price[order][np.searchsorted(so_far, so_far[-1] / 2)])


def _of_csv(lines: Iterable[str], source: str) -> Iterator[Row]:
    rows = csv.reader(lines)
    header = [name.strip() for name in next((row for row in rows if "".join(row).strip()), [])]
    if missing := [name for name in COLUMNS if name not in header]:
        raise TraceError(
            f"{source}, line {max(1, rows.line_num)}: no column {', '.join(missing)}; expected {','.join(COLUMNS)}"
        )
    places = [header.index(name) for name in COLUMNS]
    for row in rows:
        if "".join(row).strip():
            complete = len(row) > max(places)
            yield f"line {rows.line_num}", [row[place] for place in places] if complete else row


_WANTED = "2015-03-11 16:54:38+00:00,c3.xlarge,us-east-1a,Linux,0.0324"


def _prices(rows: Iterable[Row], source: str) -> Prices:
    """Return the prices in rows of any format, as `read_prices` does."""
    series_of: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for where, row in rows:
        try:
            when, instance, zone, product, cost = row
            moment, price = datetime.fromisoformat(when.strip()), float(cost)
            name = "/".join((instance, zone, product))
        except (ValueError, TypeError, AttributeError, OverflowError):
            moment, price, name = datetime.min, math.nan, ""
        if not (math.isfinite(price) and price >= 0):
            raise TraceError(f"{source}, {where}: got {shown(','.join(map(str, row)))}, expected such as {_WANTED}")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        series_of[name].append((moment.timestamp(), price))
    if not series_of:
        raise TraceError(f"{source} has no prices; expected such as {_WANTED}")
    markets = {}
    for name, points in series_of.items():
        points.sort()  # AWS gives the newest first
        series = np.array(points, np.float64)
        markets[name] = series[:, 0], series[:, 1]
    return markets


EVERY_S = 3600.0  # seconds between requests
# The default bid, in multiples of a market's median price. With the prices of 2015, the median life was 29 h for a bid
# of 1, 78 h for 1.5 and 117 h for 2. With 1.5, small fluctuations end no life, and most lives end within the record.
BID = 1.5
MAX_LIVES = 2_000_000


def price_lives(prices: Prices, source: str, *, market: str = "", bid: float = BID) -> Record:
    """Return simulated lives of instances under the prices of markets.

    `market` is a prefix of the names of markets to use, such as "c3.xlarge/us-east-1a/Linux". `bid` is in multiples of
    a market's median price. Raises TraceError (with source) if no market is left.
    """
    if not (math.isfinite(bid) and bid > 0):
        raise TraceError(f"the bid is {bid!r}; expected multiples of the median price, above 0, such as {BID}")
    chosen = {name: series for name, series in sorted(prices.items()) if name.startswith(market)}
    if not chosen:
        raise TraceError(f"{source} has no market {market!r}; it has {', '.join(sorted(prices))}")
    begin_s = min(float(time_s[0]) for time_s, _ in chosen.values())
    end_s = max(float(time_s[-1]) for time_s, _ in chosen.values())
    asked = sum(int((end_s - time_s[0]) / EVERY_S) + 1 for time_s, _ in chosen.values())
    if asked > MAX_LIVES:
        raise TraceError(
            f"{source} covers {(end_s - begin_s) / 86_400:,.0f} days, in which instances would be requested {asked:,} "
            f"times; expected at most {MAX_LIVES:,}. Check its times, or give a part of it."
        )
    stays: list[Life] = []
    for name, (time_s, price) in chosen.items():
        limit = bid * median_over_time(time_s, price, end_s)
        start_s = np.arange(time_s[0], end_s, EVERY_S)
        start_s = start_s[price[np.searchsorted(time_s, start_s, "right") - 1] <= limit]
        rises_s = np.append(time_s[price > limit], np.inf)
        ends_s = rises_s[np.searchsorted(rises_s, start_s)]
        for number, (start, end) in enumerate(zip(start_s.tolist(), ends_s.tolist(), strict=True), 1):
            stays.append(Life(f"{name}#{number}", start - begin_s, end - begin_s if end < math.inf else None))
    stays.sort(key=lambda life: life.start_s)
    return Record(tuple(stays), end_s - begin_s, f"instances asked for hourly at {bid:g} times the median price")


MONTH_S = 30 * 86_400.0
MIN_SHARE, MAX_SHARE = 0.001, 0.99  # bounds of the share of machines reclaimed in a month; others are not plausible
_SHARE = re.compile(r"\s*<?\s*(?:(\d+(?:\.\d+)?)\s*%?\s*-\s*)?(\d+(?:\.\d+)?)\s*%\s*")


def interrupted_monthly(share: float) -> Exponential:
    """Return the exponential distribution with which a `share` of the machines is reclaimed within 30 days: S(30 d) =
    1 - share, so the mean is -30 d / ln(1 - share). Raises LifetimeError for a share outside `MIN_SHARE` to
    `MAX_SHARE`."""
    if not MIN_SHARE <= share <= MAX_SHARE:
        raise LifetimeError(f"got the monthly share {share:g} of machines; expected {MIN_SHARE:g} to {MAX_SHARE:g}")
    return Exponential(-MONTH_S / math.log1p(-share))


def parse_share(text: str) -> float:
    """Parse a share such as "5%", "<5%" (read as 5%) or "5-10%" (read as its middle). Raises LifetimeError."""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise LifetimeError(f'cannot read the share "{text.strip()}" a month: give a percentage such as 5% or 5-10%')
    low, high = float(match[1] or match[2]) / 100, float(match[2]) / 100
    if low > high:
        raise LifetimeError(f'the share "{text.strip()}" begins above its end: give the smaller percentage first')
    return (low + high) / 2


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
            return price_lives(read_aws_json(entries, source), source)
    return traces.parse_ticks(content, source)


_AWS = "AWS's describe-spot-price-history"
FORMATS = (
    _Format("milliseconds,add|remove,node", re.compile(r"\s*[^,]*,\s*(add|remove)\b"), _events),
    _Format(f"{TICKS}, or {_AWS} writes", re.compile(r"\s*[{\[]"), parse_json),
    _Format(
        f"{_AWS} --output text writes",
        re.compile(r"SPOTPRICEHISTORY\t"),
        lambda text, source: price_lives(read_aws_text(text.splitlines(), source), source),
    ),
    _Format(
        "2021-12-10, 13:07:45, 80",
        re.compile(r"\s*\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d:\d\d\s*,"),
        lambda text, source: traces.parse_counts(text.splitlines(), source),
    ),
    _Format(
        ",".join(COLUMNS),
        re.compile(r"(?=.*\btimestamp\b)(?=.*\bprice_usd_per_h\b)"),
        lambda text, source: price_lives(read_prices(text.splitlines(), source), source),
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

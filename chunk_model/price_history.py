"""The history of spot prices: what a file of it, or DescribeSpotPriceHistory, says of each market.

A file is CSV with a header and the columns timestamp, instance_type, zone, product, price_usd_per_h; the call gives the
same under names of its own, the newest first. A price holds until the next one of its market.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunk_model.trace import TraceError, shown

Floats = NDArray[np.float64]

COLUMNS = ("timestamp", "instance_type", "zone", "product", "price_usd_per_h")


def read_prices(lines: Iterable[str], source: str) -> dict[str, tuple[Floats, Floats]]:
    """Return (seconds since 1970, dollars an hour), each (n,) in order of time, for each market of a file by its name,
    such as "c3.xlarge/us-east-1a/Linux". Raises TraceError (source and line)."""
    try:
        return _prices(lines, source)
    except csv.Error as error:
        raise TraceError(f"{source} cannot be read as CSV: {error}") from None


def price_steps(history: Iterable[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Return [seconds since 1970, dollars an hour] in order of time for each market, such as "c5.large/us-east-1a".

    `history` are the entries of DescribeSpotPriceHistory's SpotPriceHistory, of one product. A price that repeats the
    one before is left out; of several at one moment the highest counts.

    Raises ValueError for an entry that is none.
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
    """Return the price not exceeded for half of the time from `time_s[0]` to `end_s`; each holds until the next.

    `time_s` float64 (n,) rising, `price` float64 (n,).
    """
    held_s = np.diff(np.append(time_s, end_s))
    order = np.argsort(price, kind="stable")
    so_far = np.cumsum(held_s[order])
    return float(price[order][np.searchsorted(so_far, so_far[-1] / 2)])


def _prices(lines: Iterable[str], source: str) -> dict[str, tuple[Floats, Floats]]:
    """Return (seconds since 1970, price), each (n,) in order of time, for each market by its name."""
    rows = csv.reader(lines)
    header = [name.strip() for name in next((row for row in rows if "".join(row).strip()), [])]
    if missing := [name for name in COLUMNS if name not in header]:
        raise TraceError(
            f"{source}, line {max(1, rows.line_num)}: no column {', '.join(missing)}; expected {','.join(COLUMNS)}"
        )
    when, instance, zone, product, cost = (header.index(name) for name in COLUMNS)
    series_of: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if not "".join(row).strip():
            continue
        try:
            moment, price = datetime.fromisoformat(row[when].strip()), float(row[cost])
            name = "/".join((row[instance], row[zone], row[product]))
        except (ValueError, IndexError):
            moment, price, name = datetime.min, math.nan, ""
        if not (math.isfinite(price) and price >= 0):
            wanted = "2015-03-11 16:54:38+00:00,c3.xlarge,us-east-1a,Linux,0.0324"
            raise TraceError(f"{source}, line {rows.line_num}: got {shown(','.join(row))}, expected such as {wanted}")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        series_of[name].append((moment.timestamp(), price))
    if not series_of:
        raise TraceError(f"{source} has a header and no prices below it")
    markets = {}
    for name, points in series_of.items():
        points.sort()  # AWS gives the newest first
        series = np.array(points, np.float64)
        markets[name] = series[:, 0], series[:, 1]
    return markets

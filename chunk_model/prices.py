"""Lives from the history of spot prices: an instance is taken away when its market's price exceeds its bid.

Nobody ran these instances. One is imagined to be requested every hour in every market at a bid in multiples of the
market's own median price, and to start if the price then lets it. Lives that began in one calm end together at the next
rise: they share that instant, and are one independent event, not many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from chunk_model.price_history import median_over_time, read_prices
from chunk_model.trace import Life, Record, TraceError

EVERY_S = 3600.0
# The bid decides how long lives are: on the prices of 2015 half of them lasted 29 h at the median itself, 78 h at 1.5
# and 117 h at twice the median. At 1.5 the ripples of a calm market kill nobody, and most lives end within the record.
BID = 1.5
MOST_LIVES = 2_000_000


def price_lives(lines: Iterable[str], source: str, *, market: str = "", bid: float = BID) -> Record:
    """Return the lives that the prices in `lines` (header first) would have let an instance have.

    `market`: only markets whose name, such as "c3.xlarge/us-east-1a/Linux", begins so. `bid`: in medians over time of
    the market's price. Raises TraceError (source and line) for lines that make no sense, or when no market is left.
    """
    if not (math.isfinite(bid) and bid > 0):
        raise TraceError(f"the bid is {bid!r}; expected multiples of the median price, above 0, such as {BID}")
    prices = read_prices(lines, source)
    chosen = {name: series for name, series in sorted(prices.items()) if name.startswith(market)}
    if not chosen:
        raise TraceError(f"{source} has no market {market!r}; it has {', '.join(sorted(prices))}")
    begin_s = min(float(time_s[0]) for time_s, _ in chosen.values())
    end_s = max(float(time_s[-1]) for time_s, _ in chosen.values())
    asked = sum(int((end_s - time_s[0]) / EVERY_S) + 1 for time_s, _ in chosen.values())
    if asked > MOST_LIVES:
        raise TraceError(
            f"{source} is of {(end_s - begin_s) / 86_400:,.0f} days, in which instances would be asked for {asked:,} "
            f"times; expected at most {MOST_LIVES:,}. Is a moment wrong? Give a part of it."
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

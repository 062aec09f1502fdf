"""The supply of recorded spot markets from a moment on: the instances that could be had, when, and at which price.

A price trace says nothing about capacity: any number of instances can be had in the cheapest market, and they are kept
until its price exceeds a cap. A trace of counts says nothing about prices: one is given.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from chunk_model.prices import Floats, read_prices, read_record
from chunk_model.traces import Record, text_of
from master.backends.script import PlannedLife, Script
from master.sftp.spending import Prices

NOTICE_S = 120.0  # from an instance's notice to its end
HORIZON_S = 30 * 86_400.0  # of a replay: a job that has not finished by then counts as unfinished

Series = tuple[Floats, Floats]  # (seconds (n,), ascending; the dollars per hour from then on (n,))


@dataclass(frozen=True)
class Window:
    """The time in which an instance of a market could be had."""

    market: str
    opens_s: float  #: in the time of the replay
    closes_s: float  #: in the time of the replay


@dataclass(frozen=True)
class Supply:
    """The instances of a market."""

    places: tuple[tuple[Window, ...], ...]  #: the windows of each place, in order; a place holds one instance at a time
    prices: Prices  #: that are paid
    on_demand: float  #: dollars per hour

    @property
    def alike(self) -> bool:
        """Return True if all places open and close together: a price that rises takes all instances of its market."""
        return all(place is self.places[0] for place in self.places)

    def together(self, instances: int) -> list[Window]:
        """Return the windows in which `instances` instances can be had together in one market, for a job whose
        instances work in step; it moves to another market when that one no longer holds them."""
        if self.alike and instances <= len(self.places):
            return list(self.places[0])
        windows = [window for place in self.places for window in place]
        if instances == 1:
            return _one_after_the_other(windows)
        markets = dict.fromkeys(window.market for window in windows)
        return _one_after_the_other(
            [
                window
                for market in markets
                for window in _at_once([each for each in windows if each.market == market], instances)
            ]
        )


def _at_once(windows: Iterable[Window], instances: int) -> Iterator[Window]:
    """Yield the windows in which `instances` instances of one market can be had together."""
    changes = sorted(
        (at_s, change, window.market)
        for window in windows
        for at_s, change in ((window.opens_s, 1), (window.closes_s, -1))
    )
    present, since_s = 0, math.nan
    for at_s, change, market in changes:
        before, present = present, present + change
        if before < instances <= present:
            since_s = at_s
        elif present < instances <= before and at_s > since_s:
            yield Window(market, since_s, at_s)


def _one_after_the_other(windows: Iterable[Window]) -> list[Window]:
    """Return the windows of a job that needs one at a time: each time the one that has been open longest."""
    taken: list[Window] = []
    for window in sorted(windows, key=lambda window: window.opens_s):
        since_s = max(window.opens_s, taken[-1].closes_s if taken else 0.0)
        if window.closes_s > since_s:
            taken.append(Window(window.market, since_s, window.closes_s))
    return taken


@dataclass(frozen=True)
class Windows(Script):
    """The places of a supply, as machines of a simulated pool."""

    places: tuple[tuple[Window, ...], ...]
    #: workers get a notice `NOTICE_S` before their instance is taken; otherwise they are killed without one
    notice: bool

    @property
    def slots(self) -> int:
        return len(self.places)

    @cached_property
    def grace_s(self) -> float:
        return NOTICE_S if self.notice else 0.0

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife | None:
        window = self.window(slot, free_s)
        if window is None:
            return None
        notice_s = window.closes_s - self.grace_s if window.closes_s < math.inf else None
        return PlannedLife(max(window.opens_s, free_s), None, notice_s, graceful=self.notice, grace_s=self.grace_s)

    def window(self, slot: int, at_s: float) -> Window | None:
        """Return the window of a worker at a moment: the first one whose notice is still to come."""
        return next(
            (each for each in self.places[slot] if each.closes_s - self.grace_s > max(each.opens_s, at_s)), None
        )


# --- prices


def price_trace(kind: str) -> dict[str, Series]:
    """Return the price of every market of an instance type in the trace of 2015, by "TYPE/ZONE"."""
    path = Path(os.environ["GRIDML_DATA"]) / "spot" / "aws-spot-price-2015.csv.gz"
    markets = read_prices(text_of(path).splitlines(), str(path))
    return {name.removesuffix("/Linux"): series for name, series in markets.items() if name.startswith(f"{kind}/")}


def price_starts(markets: Mapping[str, Series], count: int) -> list[float]:
    """Return moments to begin at, evenly spread so that each has the whole horizon before it."""
    first, last = max(float(t[0]) for t, _ in markets.values()), min(float(t[-1]) for t, _ in markets.values())
    return [float(start_s) for start_s in np.linspace(first, last - HORIZON_S, count)]


def from_prices(markets: Mapping[str, Series], start_s: float, instances: int, cap: float, on_demand: float) -> Supply:
    """Return the supply from `start_s` on for a customer who pays up to `cap` dollars an hour."""
    series = {name: _from(times, start_s) for name, times in markets.items()}
    windows = tuple(_cheapest(series, cap))
    prices = {
        name: list(zip(time_s.tolist(), np.minimum(price, cap).tolist(), strict=True))
        for name, (time_s, price) in series.items()
    }
    return Supply((windows,) * instances, prices, on_demand)


def _from(series: Series, start_s: float) -> Series:
    time_s, price = series
    first = max(0, int(np.searchsorted(time_s, start_s, "right")) - 1)
    stop = int(np.searchsorted(time_s, start_s + HORIZON_S))
    return np.maximum(time_s[first:stop] - start_s, 0.0), price[first:stop]


def _cheapest(series: Mapping[str, Series], cap: float) -> list[Window]:
    windows: list[Window] = []
    now_s = 0.0
    while now_s < HORIZON_S:
        offers = {
            name: float(price[np.searchsorted(time_s, now_s, "right") - 1]) for name, (time_s, price) in series.items()
        }
        name = min(offers, key=lambda market: offers[market])
        if offers[name] > cap:
            falls_s = [
                float(later[0])
                for time_s, price in series.values()
                if len(later := time_s[(time_s > now_s) & (price <= cap)])
            ]
            now_s = min(falls_s, default=HORIZON_S)
            continue
        time_s, price = series[name]
        rises_s = time_s[(time_s > now_s) & (price > cap)]
        rise_s = float(rises_s[0]) if len(rises_s) else HORIZON_S
        windows.append(Window(name, now_s, rise_s + NOTICE_S))  # the rise is when the notice is given
        now_s = rise_s + NOTICE_S
    return windows


# --- counts


def count_trace(name: str) -> Record:
    """Return a trace of the SkyPilot repository by its path in it."""
    return read_record(Path(os.environ["GRIDML_DATA"]) / "spot" / "skypilot" / name)


def count_starts(records: Iterable[Record], count: int) -> list[float]:
    """Return start times, evenly spread over the common span of all traces, which wrap around at their ends."""
    end_s = min(record.end_s for record in records)
    return [end_s * k / count for k in range(count)]


def from_counts(records: Mapping[str, Record], start_s: float, price: float, on_demand: float) -> Supply:
    """Return the supply from `start_s` on in all markets, each with a trace that is repeated until the horizon. A place
    stays in its market."""
    places = [place for market, record in records.items() for place in _places(_repeated(market, record, start_s))]
    return Supply(tuple(places), {market: [(0.0, price)] for market in records}, on_demand)


def _places(windows: Iterable[Window]) -> list[tuple[Window, ...]]:
    """Assign windows to as few places as possible, of one window at a time: each to the first free place."""
    places: list[list[Window]] = []
    for window in sorted(windows, key=lambda window: window.opens_s):
        place = next((each for each in places if each[-1].closes_s <= window.opens_s), None)
        if place is None:
            places.append(place := [])
        place.append(window)
    return [tuple(place) for place in places]


def _repeated(market: str, record: Record, start_s: float) -> list[Window]:
    windows = []
    for turn in range(math.ceil((start_s + HORIZON_S) / record.end_s)):
        for life in record.lives:
            opens_s = life.start_s + turn * record.end_s - start_s
            closes_s = (record.end_s if life.end_s is None else life.end_s) + turn * record.end_s - start_s
            if closes_s > max(0.0, opens_s) and opens_s < HORIZON_S:
                windows.append(Window(market, max(0.0, opens_s), closes_s))
    return windows


def on_demand(instances: int, price: float, market: str) -> Supply:
    """Return instances that are never taken."""
    return Supply(((Window(market, 0.0, math.inf),),) * instances, {market: [(0.0, price)]}, price)

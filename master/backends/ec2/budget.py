"""Prices of a run's spot markets, polled and saved, and the enforcement of its budget."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from gridml.errors import UsageError
from master.backends.ec2.answers import CloudError
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.provisioning import Site
from master.sftp.roster import Roster
from master.sftp.spending import (
    BudgetState,
    Offer,
    Spend,
    affordable,
    check_budget,
    instance_usages,
    may_spend,
    offer,
    save_prices,
    saved_prices,
    spent,
)

PRICE_POLL_S = 600.0  # between two calls for prices
PRICE_RETRY_S = 30.0  # from a failed call for prices to the next one
CHECK_S = 60.0  # between two checks of the budget
PAST = timedelta(days=7)  # length of the price history read before a run


class Quotes(NamedTuple):
    """Prices in dollars per hour."""

    spot: dict[str, list[list[float]]]  # by market "TYPE/ZONE": steps of (time, price); empty for an on-demand run
    full: Mapping[str, float]  # on-demand prices by type; empty if AWS does not return them


def full_prices(cloud: Cloud, site: Site) -> Mapping[str, float]:
    """Return on-demand prices in dollars per hour by type; empty if AWS does not return them."""
    with contextlib.suppress(CloudError):
        return cloud.full_prices(site.types)
    return {}


def offers(cloud: Cloud, site: Site, options: Ec2Options) -> list[Offer]:
    """Return current and past prices of the site's markets. Markets above --max-price are left out, unless all are."""
    now, full = datetime.now(UTC), full_prices(cloud, site)
    prices = cloud.spot_prices(site.types, now - PAST)
    markets = [(pool, prices.get(f"{pool.type}/{pool.zone}")) for pool in site.pools]
    found = [
        offer(pool.type, pool.zone, steps, now.timestamp(), full.get(pool.type, 0.0))
        for pool, steps in markets
        if steps
    ]
    return [each for each in found if options.max_price is None or each.price <= options.max_price] or found


def check_affordable(cloud: Cloud, site: Site, options: Ec2Options) -> None:
    """Raise UsageError for a budget too small to start, or one that cannot be enforced because no price is known."""
    if options.budget is None:
        return
    if options.on_demand:
        full = full_prices(cloud, site)
        if not full:
            raise UsageError(
                "got --budget with --on-demand, and the on-demand prices of instances are not known, so that no budget "
                "can be held. Have pricing:GetProducts allowed (docs/ec2.md), or leave --budget out."
            )
        check_budget(options.budget, min(full.values()), min(full.values()))
        return
    found = offers(cloud, site, options)
    if not found:
        raise UsageError(
            f"got --budget, and no market of these instance types has a spot price in {site.region}, so that no budget "
            "can be held. Name other --instance-types, or leave --budget out."
        )
    cheapest = min(found, key=lambda each: each.price)
    check_budget(options.budget, cheapest.price, cheapest.at_most(options.max_price))


class BudgetMonitor:
    """The prices of a run's markets, saved in its directory, and the decisions on its budget. Times are seconds since
    1970."""

    def __init__(self, root: Path, options: Ec2Options, began_s: float) -> None:
        self._root, self._options = root, options
        self._began_s = began_s
        self._prices: dict[str, list[list[float]]] = saved_prices(root)
        self._full: Mapping[str, float] | None = None  # on-demand prices by type; None: not read yet
        self._next_s = self._checked_s = float("-inf")
        self._decision: tuple[Spend, str] = (Spend.GO_ON, "")
        self.affords = sys.maxsize if options.budget is None else 0
        """Instances that may be launched before the next check. Decremented by `launched`."""

    def due(self, now: float) -> bool:
        """Return whether to call for prices now; if so, the next call is due after `PRICE_POLL_S`."""
        if now < self._next_s:
            return False
        self._next_s = now + PRICE_POLL_S
        return True

    def retry_soon(self, now: float) -> None:
        """Make the next call for prices due after `PRICE_RETRY_S`, because the last one failed."""
        self._next_s = now + PRICE_RETRY_S

    def fetch(self, cloud: Cloud, site: Site) -> Quotes:
        """Fetch the prices since the first launch of the run; blocks. Raises CloudError."""
        full = full_prices(cloud, site) if self._full is None else self._full
        if self._options.on_demand:
            return Quotes({}, full)
        launched_s = [usage.launched_s for usage in instance_usages(Roster(self._root))]
        since = datetime.fromtimestamp(min([*launched_s, self._began_s]), UTC)
        ours = {f"{pool.type}/{pool.zone}" for pool in site.pools}
        spot = cloud.spot_prices(site.types, since)
        return Quotes({market: steps for market, steps in spot.items() if market in ours}, full)

    def update(self, quotes: Quotes) -> None:
        """Save new prices. Markets without new prices keep their old ones."""
        self._checked_s = float("-inf")  # check the budget again with the new prices
        if quotes.spot:
            self._prices |= quotes.spot
            save_prices(self._root, self._prices)
        if self._full is None:
            self._full = quotes.full
            # Add the on-demand price to the instances in the roster that were launched before it was known.
            roster = Roster(self._root)
            for instance in filter(None, map(roster.instance, roster.ids())):
                if not instance.on_demand and self.full_price(instance.type):
                    roster.keep(replace(instance, on_demand=self.full_price(instance.type)))

    def full_price(self, type: str) -> float:
        """Return the on-demand price in dollars per hour, 0 if unknown."""
        return (self._full or {}).get(type, 0.0)

    def launched(self, count: int) -> None:
        """Count instances launched since the last check of the budget."""
        self.affords = max(0, self.affords - count)

    def check(self, under_way: int, now: float) -> tuple[Spend, str]:
        """Return what the budget allows, and the reason; both are computed every `CHECK_S`. `under_way` is the number
        of instances that are requested but not launched yet."""
        budget = self._options.budget
        if budget is None:
            return Spend.GO_ON, "there is no budget"
        if now - self._checked_s >= CHECK_S:
            self._checked_s = now
            usages = instance_usages(Roster(self._root))
            rate = sum(self._max_price(usage.type, usage.market) for usage in usages if usage.ended_s is None)
            another = self._max_price_of_another()
            paid = spent(usages, self._prices, now)
            state = BudgetState(budget, paid, rate, under_way * another, another)
            self._decision, self.affords = may_spend(state), affordable(state)
        return self._decision

    def _max_price_of_another(self) -> float:
        """Return what one more instance may cost per hour, in any market; 0 if unknown."""
        if self._options.on_demand:
            return max((self._full or {}).values(), default=0.0)
        return max((self._max_price(market.partition("/")[0], market) for market in self._prices), default=0.0)

    def _max_price(self, type: str, market: str) -> float:
        """Return what an instance of a market may cost per hour: the minimum of its on-demand price and --max-price. If
        neither is known, this is the highest price seen in the market, or in all markets if this one has no price."""
        caps = [cap for cap in (self.full_price(type), self._options.max_price) if cap]
        if caps:
            return min(caps)
        seen = self._prices.get(market) or [step for steps in self._prices.values() for step in steps]
        return max((step[1] for step in seen), default=0.0)

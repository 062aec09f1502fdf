"""What a run on EC2 costs: prices are asked for now and then and kept, and a budget is held."""

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
from master.backends.ec2.site import Site
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

ASK_S = 600.0  # between two questions of what instances cost
AGAIN_S = 30.0  # the same, where there was no answer
JUDGE_S = 60.0  # between two judgements of the budget
PAST = timedelta(days=7)  # of the price history that is looked at before a run


class Quotes(NamedTuple):
    """What markets cost, and by type what an hour costs on demand: nothing where nobody may know."""

    spot: dict[str, list[list[float]]]
    full: Mapping[str, float]


def full_prices(cloud: Cloud, site: Site) -> Mapping[str, float]:
    """Return what an hour costs on demand, by type; nothing where the credentials do not allow to ask."""
    with contextlib.suppress(CloudError):
        return cloud.full_prices(site.types)
    return {}


def offers(cloud: Cloud, site: Site, options: Ec2Options) -> list[Offer]:
    """Return what the site's markets cost now and have cost; those above --max-price are left out, unless all are."""
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
    """Raise UsageError for a budget with which no run can begin, or that cannot be held since no price is known."""
    if options.budget is None:
        return
    if options.on_demand:
        full = full_prices(cloud, site)
        if not full:
            raise UsageError(
                "got --budget with --on-demand, and what instances cost on demand is not known, so that no budget can "
                "be held. Have pricing:GetProducts allowed (docs/ec2.md), or leave --budget out."
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
    """The prices of a run's markets in its directory, and what its budget lets it do. Times are seconds since 1970."""

    def __init__(self, root: Path, options: Ec2Options, began_s: float) -> None:
        self._root, self._options = root, options
        self._began_s = began_s
        self._prices: dict[str, list[list[float]]] = saved_prices(root)
        self._full: Mapping[str, float] | None = None  # None: not asked for yet
        self._next_s = self._judged_s = float("-inf")
        self._judgement: tuple[Spend, str] = (Spend.GO_ON, "")
        self.affords = sys.maxsize if options.budget is None else 0
        """How many more instances may be launched before the budget is looked at again."""

    def due(self, now: float) -> bool:
        """Whether prices are asked for now; then not again for a while."""
        if now < self._next_s:
            return False
        self._next_s = now + ASK_S
        return True

    def ask_again(self, now: float) -> None:
        """There was no answer: prices are due again soon."""
        self._next_s = now + AGAIN_S

    def ask(self, cloud: Cloud, site: Site) -> Quotes:
        """Ask for the prices since the first launch of the run, which takes a while. Raises CloudError."""
        full = full_prices(cloud, site) if self._full is None else self._full
        if self._options.on_demand:
            return Quotes({}, full)
        launched_s = [stay.launched_s for stay in instance_usages(Roster(self._root))]
        since = datetime.fromtimestamp(min([*launched_s, self._began_s]), UTC)
        ours = {f"{pool.type}/{pool.zone}" for pool in site.pools}
        spot = cloud.spot_prices(site.types, since)
        return Quotes({market: steps for market, steps in spot.items() if market in ours}, full)

    def learn(self, heard: Quotes) -> None:
        """Keep what markets cost; those of which nothing was heard stay as they were known."""
        self._judged_s = float("-inf")
        if heard.spot:
            self._prices |= heard.spot
            save_prices(self._root, self._prices)
        if self._full is None:
            self._full = heard.full
            roster = Roster(self._root)
            for instance in filter(None, map(roster.instance, roster.ids())):
                if not instance.on_demand and self.full_price(instance.type):
                    roster.keep(replace(instance, on_demand=self.full_price(instance.type)))

    def full_price(self, type: str) -> float:
        """Dollars an hour on demand, 0 where nobody knows."""
        return (self._full or {}).get(type, 0.0)

    def launched(self, count: int) -> None:
        """Take that so many instances are there which the budget was not looked at with."""
        self.affords = max(0, self.affords - count)

    def judge(self, under_way: int, now: float) -> tuple[Spend, str]:
        """Return what the budget lets the run do, and why; looked at once a minute. `under_way` instances are asked for
        and not there yet."""
        budget = self._options.budget
        if budget is None:
            return Spend.GO_ON, "there is no budget"
        if now - self._judged_s >= JUDGE_S:
            self._judged_s = now
            there = instance_usages(Roster(self._root))
            rate = sum(self._at_most(stay.type, stay.market) for stay in there if stay.ended_s is None)
            another = self._another()
            paid = spent(there, self._prices, now)
            purse = BudgetState(budget, paid, rate, under_way * another, another)
            self._judgement, self.affords = may_spend(purse), affordable(purse)
        return self._judgement

    def _another(self) -> float:
        """Dollars an hour that one more instance may cost, in whichever market; 0 where nobody knows."""
        if self._options.on_demand:
            return max((self._full or {}).values(), default=0.0)
        return max((self._at_most(market.partition("/")[0], market) for market in self._prices), default=0.0)

    def _at_most(self, type: str, market: str) -> float:
        """Dollars an hour that an instance of a market may cost: its full price, or --max-price where that is lower;
        where neither is known the highest price seen, there or anywhere."""
        caps = [cap for cap in (self.full_price(type), self._options.max_price) if cap]
        if caps:
            return min(caps)
        seen = self._prices.get(market) or [step for steps in self._prices.values() for step in steps]
        return max((step[1] for step in seen), default=0.0)

"""What a run on EC2 costs: prices are asked for now and then and kept, and a budget is held."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from master.backends.ec2.cloud import Cloud
from master.backends.ec2.errors import CloudError
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.site import Site
from master.decisions.spending import Offer, Prices, Purse, Spend, check_budget, may_spend, offer, spent
from master.sftp.fleet_costs import keep_prices, kept_prices, stays
from master.sftp.roster import Roster

ASK_S = 600.0  # between two questions of what instances cost
JUDGE_S = 60.0  # between two judgements of the budget
PAST = timedelta(days=7)  # of the price history that is looked at before a run


@dataclass(frozen=True)
class Costs:
    """Spot prices by market, and full prices by type, as far as AWS told."""

    spot: Prices
    full: dict[str, float]


def ask(cloud: Cloud, site: Site, options: Ec2Options, since: datetime, known: Iterable[str] = ()) -> Costs:
    """Ask what instances cost and have cost since then; of types whose full price is `known` that is not asked again.
    Full prices may be none: no run needs them. Raises CloudError."""
    full: dict[str, float] = {}
    with contextlib.suppress(CloudError):
        full = cloud.full_prices([type for type in site.types if type not in known])
    if options.on_demand:
        return Costs({}, full)
    ours = {f"{pool.type}/{pool.zone}" for pool in site.pools}
    prices = cloud.spot_prices(site.types, since)
    return Costs({market: steps for market, steps in prices.items() if market in ours}, full)


def offers(cloud: Cloud, site: Site, options: Ec2Options) -> list[Offer]:
    """Return what the site's markets cost now and have cost; those above --max-price are left out, unless all are."""
    now = datetime.now(UTC)
    costs = ask(cloud, site, options, now - PAST)
    if options.on_demand:
        prices = [(pool, costs.full[pool.type]) for pool in site.pools if pool.type in costs.full]
        return [Offer(pool.type, pool.zone, full, full, full, full) for pool, full in prices]
    markets = [(pool, costs.spot.get(f"{pool.type}/{pool.zone}")) for pool in site.pools]
    found = [
        offer(pool.type, pool.zone, steps, now.timestamp(), costs.full.get(pool.type, 0.0))
        for pool, steps in markets
        if steps
    ]
    return [each for each in found if options.max_price is None or each.price <= options.max_price] or found


def check_affordable(cloud: Cloud, site: Site, options: Ec2Options) -> None:
    """Raise UsageError for a budget with which no run can begin, as far as prices are known."""
    if options.budget is None:
        return
    found = offers(cloud, site, options)
    if found:
        cheapest = min(found, key=lambda each: each.price)
        check_budget(options.budget, cheapest.price, cheapest.at_most(options.max_price))


class Money:
    """The prices of a run's markets in its directory, and what its budget lets it do. Times are seconds since 1970."""

    def __init__(self, root: Path, options: Ec2Options, began_s: float) -> None:
        self._root, self._options = root, options
        self._began_s = began_s
        self._prices: dict[str, list[list[float]]] = kept_prices(root)
        self._full: dict[str, float] = {}
        self._judged_s = float("-inf")
        self._judgement: tuple[Spend, str] = (Spend.GO_ON, "")

    @property
    def since(self) -> datetime:
        """From when on prices are asked for: from the first launch of the run."""
        launched = [stay.launched_s for _, stay in stays(Roster(self._root))]
        return datetime.fromtimestamp(min([*launched, self._began_s]), UTC)

    def question(self, cloud: Cloud, site: Site) -> Callable[[], Costs]:
        """What asks AWS, on whatever thread, for what is not known yet."""
        return lambda: ask(cloud, site, self._options, self.since, known=tuple(self._full))

    def learn(self, costs: Costs) -> None:
        """Keep what instances cost; markets of which nothing was heard stay as they were known."""
        self._full |= costs.full
        if costs.spot:
            self._prices |= {market: [list(step) for step in steps] for market, steps in costs.spot.items()}
            keep_prices(self._root, self._prices)

    def full_price(self, type: str) -> float:
        """Dollars an hour on demand, 0 while nobody knows."""
        return self._full.get(type, 0.0)

    def judge(self, under_way: int, now: float) -> tuple[Spend, str]:
        """Return what the budget lets the run do, and why; looked at once a minute. `under_way` instances are asked for
        and not there yet."""
        budget = self._options.budget
        if budget is None:
            return Spend.GO_ON, "there is no budget"
        if now - self._judged_s >= JUDGE_S:
            self._judged_s = now
            there = [stay for _, stay in stays(Roster(self._root))]
            rate = sum(self._at_most(stay.market) for stay in there if stay.ended_s is None)
            another = max(map(self._at_most, {*self._prices, *(f"{type}/" for type in self._full)}), default=0.0)
            paid = spent(there, self._prices, now)
            self._judgement = may_spend(Purse(budget, paid, rate, under_way * another, another))
        return self._judgement

    def _at_most(self, market: str) -> float:
        """Dollars an hour that an instance of a market may cost: its full price, or --max-price where that is lower;
        where neither is known the highest price seen."""
        caps = [cap for cap in (self.full_price(market.partition("/")[0]), self._options.max_price) if cap]
        return min(caps) if caps else max((step[1] for step in self._prices.get(market, ())), default=0.0)

"""What a run on EC2 costs: prices are asked for now and then and kept, and a budget is held."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.site import Site
from master.decisions.spending import Offer, Prices, Purse, Spend, check_budget, may_spend, offer, spent
from master.sftp.fleet_costs import keep_prices, kept_prices, stays
from master.sftp.roster import Roster

ASK_S = 600.0  # between two questions of what instances cost
JUDGE_S = 60.0  # between two judgements of the budget
PAST = timedelta(days=7)  # of the price history that is looked at before a run


def offers(cloud: Cloud, site: Site, options: Ec2Options) -> list[Offer]:
    """Return what the site's markets cost now and have cost; those above --max-price are left out, unless all are."""
    now = datetime.now(UTC)
    prices = cloud.spot_prices(site.types, now - PAST)
    markets = [(pool, prices.get(f"{pool.type}/{pool.zone}")) for pool in site.pools]
    found = [offer(pool.type, pool.zone, steps, now.timestamp()) for pool, steps in markets if steps]
    return [each for each in found if options.max_price is None or each.price <= options.max_price] or found


def check_affordable(cloud: Cloud, site: Site, options: Ec2Options) -> None:
    """Raise UsageError for a budget with which no run can begin, as far as prices are known."""
    if options.budget is None or options.on_demand:
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
        self._judged_s = float("-inf")
        self._judgement: tuple[Spend, str] = (Spend.GO_ON, "")

    @property
    def since(self) -> datetime:
        """From when on prices are asked for: from the first launch of the run."""
        launched = [stay.launched_s for _, stay in stays(Roster(self._root))]
        return datetime.fromtimestamp(min([*launched, self._began_s]), UTC)

    def learn(self, prices: Prices) -> None:
        """Keep what markets cost; those of which nothing was heard stay as they were known."""
        self._prices |= {market: [list(step) for step in steps] for market, steps in prices.items()}
        keep_prices(self._root, self._prices)

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
            another = max((self._at_most(market) for market in self._prices), default=0.0)
            paid = spent(there, self._prices, now)
            self._judgement = may_spend(Purse(budget, paid, rate, under_way * another, another))
        return self._judgement

    def _at_most(self, market: str) -> float:
        """Dollars an hour that an instance of a market may cost: --max-price, or the highest price seen."""
        highest = max((step[1] for step in self._prices.get(market, ())), default=0.0)
        return max(highest, self._options.max_price or 0.0) if highest else self._options.max_price or 0.0


def markets_of(site: Site, prices: Mapping[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """Return those of the markets that instances of the site can come from."""
    ours = {f"{pool.type}/{pool.zone}" for pool in site.pools}
    return {market: steps for market, steps in prices.items() if market in ours}

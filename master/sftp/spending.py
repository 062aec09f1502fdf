"""The cost of instances, what it would have been on demand, and whether a run may go on within its budget.

A caller needs four calls, all pure, with times in seconds since 1970 and prices in dollars an hour:

    estimated(offers, instances, budget)                           before anything starts, for `--dry-run`
    check_budget(budget, hour, at_most)                            UsageError for one below one instance-hour
    spent(stays, prices, now_s)                                    dollars until now
    may_spend(BudgetState(budget, spent, rate, under_way, another))      -> (Spend.GO_ON | NO_MORE | LEAVE, reason)

`prices` maps "TYPE/ZONE" to steps [[time, price], ...] in order of time; a price holds until the next step.
`chunk_model.prices.price_steps` makes them of DescribeSpotPriceHistory. An instance is billed by the second, 60
seconds at least, at the price in effect; one that its provider takes back within its first hour is free, one that
its user ends is not: Amazon's rules.

The roster says how long each instance stayed. Prices are kept beside it, since a provider forgets its history:
`prices.json` in the folder `fleet` of the run directory is {"TYPE/ZONE": [[seconds since 1970, dollars an hour],
...]}, each list in order of time. A back end writes it, whole or not at all; reports and later masters read it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from gridml.errors import LedgerError, UsageError
from gridml.protocol.bundle import write_atomic
from master.sftp.roster import FOLDER, End, Instance, Roster

Steps = Sequence[Sequence[float]]  # (seconds since 1970, dollars an hour), in order of time
Prices = Mapping[str, Steps]  # by "TYPE/ZONE"

HOUR_S = 3600.0
MIN_BILLED_S = 60.0  # that an instance is billed for
# From the decision to leave until nothing is billed: a check every minute, the batch, the push, the shutdown.
LEAVE_S = 300.0
MIN_STAY_S = 900.0  # that one more instance must be able to stay, or its boot is wasted


@dataclass(frozen=True)
class InstanceUsage:
    """An instance of a worker from its launch to its end, None while it lives; `taken` where its provider took it back
    unasked. `on_demand` is the full price of its type, 0 where nobody knows it; it is paid unless the market is
    `spot`."""

    type: str
    zone: str
    launched_s: float
    ended_s: float | None = None
    taken: bool = False
    on_demand: float = 0.0
    spot: bool = True
    id: str = ""
    worker: str = ""

    @property
    def market(self) -> str:
        return f"{self.type}/{self.zone}"

    def seconds(self, now_s: float) -> float:
        """How long it has run until `now_s`."""
        return max(0.0, (now_s if self.ended_s is None else self.ended_s) - self.launched_s)


class Basis(Enum):
    """What a charge rests on."""

    HISTORY = "history"
    ON_DEMAND = "on demand"  # it is of no spot market, or that has no history: the full price, which is the highest
    NOTHING = "nothing"  # nor does anybody know the full price: it is not counted


@dataclass(frozen=True)
class Charge:
    """What a stay costs in dollars, and what its seconds would cost on demand. `free`: it was taken within its first
    hour."""

    dollars: float
    on_demand: float
    seconds: float
    free: bool
    basis: Basis


def dollars_between(steps: Steps, start_s: float, stop_s: float) -> float:
    """Return the integral of a price over time, in dollars. Before the first of the steps (at least one) its price is
    taken to hold."""
    first, last = (bisect_right(steps, at_s, key=lambda step: step[0]) for at_s in (start_s, stop_s))
    times_s = [start_s, *(step[0] for step in steps[first:last]), stop_s]
    prices = [price_at(steps, start_s), *(step[1] for step in steps[first:last])]
    held_s = (end_s - begin_s for begin_s, end_s in pairwise(times_s))
    return math.fsum(price * for_s for price, for_s in zip(prices, held_s, strict=True)) / HOUR_S


def price_at(steps: Steps, at_s: float) -> float:
    """Return the price in effect; that of the first of the steps (at least one) before it."""
    return float(steps[max(0, bisect_right(steps, at_s, key=lambda step: step[0]) - 1)][1])


def charge(stay: InstanceUsage, steps: Steps | None, now_s: float) -> Charge:
    """Return what a stay has cost until `now_s`. One that lives still is not free yet, however young it is."""
    seconds = stay.seconds(now_s)
    billed_s = max(MIN_BILLED_S, seconds)
    on_demand = stay.on_demand * billed_s / HOUR_S
    if steps and stay.spot:
        dollars, basis = dollars_between(steps, stay.launched_s, stay.launched_s + billed_s), Basis.HISTORY
    else:
        dollars, basis = on_demand, Basis.ON_DEMAND if stay.on_demand else Basis.NOTHING
    free = stay.taken and stay.spot and stay.ended_s is not None and seconds < HOUR_S
    return Charge(0.0 if free else dollars, on_demand, seconds, free, basis)


def spent(instance_usages: Iterable[InstanceUsage], prices: Prices, now_s: float) -> float:
    """Return what all instances together have cost until `now_s`, in dollars."""
    return math.fsum(charge(stay, prices.get(stay.market), now_s).dollars for stay in instance_usages)


# --- the budget


class Spend(Enum):
    """What a run's money lets it do."""

    GO_ON = "go on"
    NO_MORE = "ask for no more"
    LEAVE = "leave now"


@dataclass(frozen=True)
class BudgetState:
    """What is left of a budget rests on: `budget` and `spent` in dollars; dollars an hour, at most, of the instances
    that are billed (`rate`), of those that are asked for and not there yet (`under_way`), and of one more (`another`).

    At most: `Offer.at_most`. While prices stay below it a budget is never exceeded, whatever becomes of them in the
    last minutes; what a reason says of the time that is left is on the safe side.
    """

    budget: float
    spent: float
    rate: float
    under_way: float = 0.0
    another: float = 0.0


def may_spend(purse: BudgetState) -> tuple[Spend, str]:
    """Whether to go on, to ask for no more instances, or to leave now so that there is money left to push: the time
    that takes (`LEAVE_S`) is within the budget. To be asked once a minute."""
    left = purse.budget - purse.spent
    rate = purse.rate + purse.under_way
    told = f"${purse.spent:.2f} of ${purse.budget:.2f} spent"
    if left <= 0:
        return Spend.LEAVE, f"{told}: nothing is left"
    lasts_s = left / rate * HOUR_S if rate > 0 else math.inf
    if lasts_s <= LEAVE_S:
        return Spend.LEAVE, f"{told}; at ${rate:.2f}/h at most the rest is what pushing and leaving may cost"
    more = rate + purse.another
    if more > 0 and left / more * HOUR_S <= LEAVE_S + MIN_STAY_S:
        return Spend.NO_MORE, f"{told}; with one more the rest would last {left / more * 60:.0f} min at ${more:.2f}/h"
    return Spend.GO_ON, told if lasts_s == math.inf else f"{told}; the rest lasts {lasts_s / HOUR_S:.1f} h at least"


def affordable(purse: BudgetState) -> int:
    """Return how many more instances can each stay for as long as it takes to boot, to work a while, and to leave; 0
    where nobody knows what one costs."""
    if purse.another <= 0:
        return 0
    hours = (LEAVE_S + MIN_STAY_S) / HOUR_S
    left = purse.budget - purse.spent - (purse.rate + purse.under_way) * hours
    return max(0, int(left / (purse.another * hours)))


def check_budget(budget: float, hour: float, at_most: float) -> None:
    """Raise UsageError for a budget that no run can begin with: below one instance-hour at `hour`, the cheapest price
    now, or too small to ask for one instance when its price may rise to `at_most`."""
    if not math.isfinite(budget) or budget < hour:
        raise UsageError(
            f"--budget is ${budget:g}, less than one instance-hour, which is ${hour:.4g} at the cheapest price now; "
            f"expected at least that: give more, or offer a smaller instance type."
        )
    decision, _ = may_spend(BudgetState(budget, 0.0, 0.0, another=at_most))
    if decision is not Spend.GO_ON:
        least = at_most * (LEAVE_S + MIN_STAY_S) / HOUR_S
        raise UsageError(
            f"--budget is ${budget:g}; expected more than ${least:.4g}: an instance may cost up to ${at_most:.4g}/h, "
            f"and must be able to boot, work, push and leave. Give more, or a lower --max-price."
        )


# --- before anything starts


@dataclass(frozen=True)
class Offer:
    """A market that instances may come from: its price now, over its history on average and at most, and on demand (0:
    nobody knows it)."""

    type: str
    zone: str
    price: float
    average: float
    highest: float
    on_demand: float = 0.0

    def at_most(self, max_price: float | None = None) -> float:
        """Dollars an hour that an instance may cost: the full price, or `max_price` where that is lower. Where neither
        is known the highest of its history, which is no promise."""
        caps = [cap for cap in (self.on_demand, max_price) if cap]
        return min(caps) if caps else self.highest


def offer(type: str, zone: str, steps: Steps, now_s: float, on_demand: float = 0.0) -> Offer:
    """Return what a market offers at `now_s`, by its steps (at least one)."""
    past = [step for step in steps if step[0] <= now_s] or steps[:1]
    span_s = now_s - past[0][0]
    average = dollars_between(past, past[0][0], now_s) / span_s * HOUR_S if span_s > 0 else past[0][1]
    return Offer(type, zone, price_at(steps, now_s), average, max(step[1] for step in past), on_demand)


def estimated(offers: Sequence[Offer], instances: int, budget: float | None = None) -> list[str]:
    """Return, in lines for people, what a fleet will cost in the cheapest and in the dearest market at the prices of
    now, and how long a `budget` lasts. Raises UsageError where nothing is on offer."""
    if not offers:
        raise UsageError("no market has a spot price for these instance types; expected one at least: name others.")
    cheapest, dearest = (choose(offers, key=lambda each: each.price) for choose in (min, max))
    low, high = instances * cheapest.price, instances * dearest.price
    full = f"; on demand ${instances * cheapest.on_demand:.4g}/h" if cheapest.on_demand else ""
    told = [
        f"{instances} instances: ${low:.4g}/h in {cheapest.type} in {cheapest.zone}, "
        f"${high:.4g}/h in {dearest.type} in {dearest.zone}, at the prices of now{full}",
        f"in the past {cheapest.type} was ${cheapest.average:.4g}/h on average and ${cheapest.highest:.4g}/h at most "
        "there; prices may change while the run goes on",
    ]
    if budget is not None:
        lasts = f"of ${budget:g} lasts {budget / high:.3g} to {budget / low:.3g} h" if low > 0 else f"is ${budget:g}"
        told.append(f"the budget {lasts}")
    return told


_FILE = "prices.json"


def instance_usages(roster: Roster) -> list[InstanceUsage]:
    """Return how long each instance stayed that was ever launched, in the order of their ids."""
    instances = (roster.instance(id) for id in roster.ids())
    return [_stay(instance, roster.end(instance.id)) for instance in instances if instance is not None]


def _stay(instance: Instance, end: End | None) -> InstanceUsage:
    stay = InstanceUsage(**asdict(instance))
    return stay if end is None else replace(stay, ended_s=end.ended_s, taken=end.taken)


def save_prices(root: Path, prices: Prices) -> None:
    """Keep what markets cost, in place of what was kept before, durably. Raises OSError."""
    steps_of = {market: [list(step) for step in steps] for market, steps in prices.items()}
    write_atomic(root / FOLDER / _FILE, json.dumps(steps_of).encode())


def saved_prices(root: Path) -> dict[str, list[list[float]]]:
    """Return what markets cost; nothing where nothing was kept. Raises LedgerError for a file that holds none."""
    path = root / FOLDER / _FILE
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LedgerError(_damaged(path, str(error))) from error
    if not isinstance(values, dict) or not all(map(_are_steps, values.values())):
        raise LedgerError(_damaged(path, 'expected {"TYPE/ZONE": [[seconds since 1970, dollars an hour], ...]}'))
    return values


def _are_steps(steps: Any) -> bool:
    try:
        times, prices = zip(*steps, strict=True)
    except (TypeError, ValueError):
        return False
    if not all(type(each) in (int, float) and math.isfinite(each) for each in (*times, *prices)):
        return False
    return min(prices) >= 0 and [*times] == sorted(times)


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged ({why}): move it away; instances are then counted at their full prices."

"""Instance costs: charges, their on-demand equivalents, and the decision whether a run may continue within its budget.

The main functions are pure. Times are seconds since 1970, prices are dollars per hour:

    estimated(offers, instances, budget)       lines of text about the costs, for `--dry-run`
    check_budget(budget, hour, at_most)        raises UsageError for a budget that is too small for one instance
    spent(usages, prices, now_s)               dollars spent until now
    may_spend(BudgetState(...))                (Spend.GO_ON, NO_MORE or LEAVE; reason)

`prices` maps "TYPE/ZONE" to steps [[time, price], ...] in order of time; a price holds until the next step.
`chunk_model.prices.price_steps` derives the steps from DescribeSpotPriceHistory. By Amazon's rules an instance is
billed per second, for at least 60 seconds, at the price in effect; an instance is free if the provider reclaims it
within its first hour, but not if its user terminates it.

The roster records the life of each instance. Prices are saved beside the roster, because a provider deletes its price
history: the file `prices.json` in the folder `fleet` of the run directory holds `prices` as JSON. A back end writes the
file atomically; reports and later masters read it.
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

from gridml.dataclass_json import MAX_FLOAT, loads
from gridml.errors import LedgerError, UsageError
from gridml.protocol.bundle import write_atomic
from master.sftp.roster import FOLDER, End, Instance, Roster

Steps = Sequence[Sequence[float]]  # (seconds since 1970, dollars per hour), in order of time
Prices = Mapping[str, Steps]  # by "TYPE/ZONE"

HOUR_S = 3600.0
MIN_BILLED_S = 60.0  # minimum time for which an instance is billed
# Time from the decision to leave until nothing is billed. It covers the interval between two checks (a minute), the
# rest of the batch, the push, and the shutdown.
LEAVE_S = 300.0
MIN_STAY_S = 900.0  # one more instance is launched only if the budget lets it stay for this time; less wastes its boot


@dataclass(frozen=True)
class InstanceUsage:
    """The facts of an instance that determine its cost."""

    type: str
    zone: str
    launched_s: float
    ended_s: float | None = None  # None while the instance runs
    taken: bool = False  # True: reclaimed by the provider
    on_demand: float = 0.0  # full price of its type in dollars per hour; 0: unknown
    spot: bool = True  # True: bought on the spot market; False: bought at the full price
    id: str = ""
    worker: str = ""

    @property
    def market(self) -> str:
        return f"{self.type}/{self.zone}"

    def seconds(self, now_s: float) -> float:
        """Return the seconds that the instance has run until `now_s`."""
        return max(0.0, (now_s if self.ended_s is None else self.ended_s) - self.launched_s)


class Basis(Enum):
    """The price that a charge is based on."""

    HISTORY = "history"
    ON_DEMAND = "on demand"  # the full price, because the instance is on-demand or there is no price history
    NOTHING = "nothing"  # no price is known, not even the full price: the charge counts as 0


@dataclass(frozen=True)
class Charge:
    """The cost of an instance."""

    dollars: float
    on_demand: float  # dollars for the same time at the full price
    seconds: float
    free: bool  # True: costs nothing, because the provider reclaimed it within its first hour
    basis: Basis


def dollars_between(steps: Steps, start_s: float, stop_s: float) -> float:
    """Return the integral of a price over time, in dollars. The price of the first step also holds before that step; at
    least one step is required."""
    first, last = (bisect_right(steps, at_s, key=lambda step: step[0]) for at_s in (start_s, stop_s))
    times_s = [start_s, *(step[0] for step in steps[first:last]), stop_s]
    prices = [price_at(steps, start_s), *(step[1] for step in steps[first:last])]
    held_s = (end_s - begin_s for begin_s, end_s in pairwise(times_s))
    return math.fsum(price * for_s for price, for_s in zip(prices, held_s, strict=True)) / HOUR_S


def price_at(steps: Steps, at_s: float) -> float:
    """Return the price in effect at `at_s`. The price of the first step also holds before that step; at least one step
    is required."""
    return float(steps[max(0, bisect_right(steps, at_s, key=lambda step: step[0]) - 1)][1])


def charge(usage: InstanceUsage, steps: Steps | None, now_s: float) -> Charge:
    """Return the charge of an instance until `now_s`. A running instance is not free, even in its first hour."""
    seconds = usage.seconds(now_s)
    billed_s = max(MIN_BILLED_S, seconds)
    on_demand = usage.on_demand * billed_s / HOUR_S
    if steps and usage.spot:
        dollars, basis = dollars_between(steps, usage.launched_s, usage.launched_s + billed_s), Basis.HISTORY
    else:
        dollars, basis = on_demand, Basis.ON_DEMAND if usage.on_demand else Basis.NOTHING
    free = usage.taken and usage.spot and usage.ended_s is not None and seconds < HOUR_S
    return Charge(0.0 if free else dollars, on_demand, seconds, free, basis)


def spent(instance_usages: Iterable[InstanceUsage], prices: Prices, now_s: float) -> float:
    """Return the cost of all instances until `now_s`, in dollars."""
    return math.fsum(charge(usage, prices.get(usage.market), now_s).dollars for usage in instance_usages)


# --- the budget


class Spend(Enum):
    """The decision on a run's budget."""

    GO_ON = "go on"
    NO_MORE = "ask for no more"  # keep the instances, but launch no others
    LEAVE = "leave now"


@dataclass(frozen=True)
class BudgetState:
    """The facts of a budget decision.

    Hourly rates are upper bounds (`Offer.at_most`). While prices stay below these bounds, the budget is never exceeded,
    and the remaining times in the reasons of decisions are lower bounds.
    """

    budget: float  # dollars
    spent: float  # dollars
    rate: float  # dollars per hour of all billed instances together
    under_way: float = 0.0  # dollars per hour of all requested instances that have not started yet
    another: float = 0.0  # dollars per hour of one more instance; 0: unknown


def may_spend(state: BudgetState) -> tuple[Spend, str]:
    """Return (decision, reason). If this is called once a minute, LEAVE is returned early enough for the budget to pay
    for the final pushes and the shutdown (`LEAVE_S`)."""
    left = state.budget - state.spent
    rate = state.rate + state.under_way
    so_far = f"${state.spent:.2f} of ${state.budget:.2f} spent"
    if left <= 0:
        return Spend.LEAVE, f"{so_far}: nothing is left"
    lasts_s = left / rate * HOUR_S if rate > 0 else math.inf
    if lasts_s <= LEAVE_S:
        return Spend.LEAVE, f"{so_far}; the rest is needed to push and leave, at up to ${rate:.2f}/h"
    more = rate + state.another
    if more > 0 and left / more * HOUR_S <= LEAVE_S + MIN_STAY_S:
        return Spend.NO_MORE, f"{so_far}; with one more the rest would last {left / more * 60:.0f} min at ${more:.2f}/h"
    return Spend.GO_ON, so_far if lasts_s == math.inf else f"{so_far}; the rest lasts {lasts_s / HOUR_S:.1f} h at least"


def affordable(state: BudgetState) -> int:
    """Return the number of further instances that the budget allows; 0 if their price is unknown. For each of them, the
    budget must pay for the time to boot and work (`MIN_STAY_S`) and the time to leave (`LEAVE_S`)."""
    if state.another <= 0:
        return 0
    hours = (LEAVE_S + MIN_STAY_S) / HOUR_S
    left = state.budget - state.spent - (state.rate + state.under_way) * hours
    return max(0, int(left / (state.another * hours)))


def check_budget(budget: float, hour: float, at_most: float) -> None:
    """Raise UsageError for a budget that is too small for one instance. It must pay for one hour at the cheapest
    current price, `hour`, and for the minimum stay of an instance at the highest possible price, `at_most`."""
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
    """A market that instances may come from. Prices are in dollars per hour."""

    type: str
    zone: str
    price: float  # current price
    average: float  # average over the price history
    highest: float  # maximum of the price history
    on_demand: float = 0.0  # full price; 0: unknown

    def at_most(self, max_price: float | None = None) -> float:
        """Return the highest price of an instance in dollars per hour: the lower of the full price and `max_price`. If
        neither is known, it is the maximum of the history, which is no guarantee."""
        caps = [cap for cap in (self.on_demand, max_price) if cap]
        return min(caps) if caps else self.highest


def offer(type: str, zone: str, steps: Steps, now_s: float, on_demand: float = 0.0) -> Offer:
    """Return the offer of a market at `now_s` from its price steps (at least one is required)."""
    past = [step for step in steps if step[0] <= now_s] or steps[:1]
    span_s = now_s - past[0][0]
    average = dollars_between(past, past[0][0], now_s) / span_s * HOUR_S if span_s > 0 else past[0][1]
    return Offer(type, zone, price_at(steps, now_s), average, max(step[1] for step in past), on_demand)


def estimated(offers: Sequence[Offer], instances: int, budget: float | None = None) -> list[str]:
    """Return lines of text with the current cost of a fleet in the cheapest and in the most expensive market, and the
    time for which a `budget` lasts. Raises UsageError if there is no offer."""
    if not offers:
        raise UsageError("no market has a spot price for these instance types; expected one at least: name others.")
    cheapest, dearest = (choose(offers, key=lambda each: each.price) for choose in (min, max))
    low, high = instances * cheapest.price, instances * dearest.price
    full = f"; on demand ${instances * cheapest.on_demand:.4g}/h" if cheapest.on_demand else ""
    lines = [
        f"{instances} instances: ${low:.4g}/h in {cheapest.type} in {cheapest.zone}, "
        f"${high:.4g}/h in {dearest.type} in {dearest.zone}, at the prices of now{full}",
        f"in the past {cheapest.type} was ${cheapest.average:.4g}/h on average and ${cheapest.highest:.4g}/h at most "
        "there; prices may change while the run goes on",
    ]
    if budget is not None:
        lasts = f"of ${budget:g} lasts {budget / high:.3g} to {budget / low:.3g} h" if low > 0 else f"is ${budget:g}"
        lines.append(f"the budget {lasts}")
    return lines


_FILE = "prices.json"


def instance_usages(roster: Roster) -> list[InstanceUsage]:
    """Return the usage of all instances that were ever launched, ordered by id."""
    instances = (roster.instance(id) for id in roster.ids())
    return [_usage(instance, roster.end(instance.id)) for instance in instances if instance is not None]


def _usage(instance: Instance, end: End | None) -> InstanceUsage:
    usage = InstanceUsage(**asdict(instance))
    return usage if end is None else replace(usage, ended_s=end.ended_s, taken=end.taken)


def save_prices(root: Path, prices: Prices) -> None:
    """Save market prices durably, replacing the earlier ones. Raises OSError."""
    steps_of = {market: [list(step) for step in steps] for market, steps in prices.items()}
    write_atomic(root / FOLDER / _FILE, json.dumps(steps_of).encode())


def saved_prices(root: Path) -> dict[str, list[list[float]]]:
    """Return the saved market prices, if any. Raises LedgerError for a damaged file."""
    path = root / FOLDER / _FILE
    try:
        values = loads(path.read_bytes())
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
    if not all(type(each) in (int, float) and abs(each) < MAX_FLOAT for each in (*times, *prices)):
        return False
    return min(prices) >= 0 and [*times] == sorted(times)


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged ({why}): move it away; instances are then counted at their full prices."

"""Cost of a run's instances, per market and per instance, compared with on-demand prices.

The cost is computed from the run's roster of instances and the price history stored with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from master.sftp.roster import Roster
from master.sftp.spending import HOUR_S, Basis, Charge, InstanceUsage, Prices, charge, instance_usages, saved_prices


@dataclass(frozen=True)
class LifeCost:
    """Cost of one instance."""

    id: str
    worker: str
    type: str
    zone: str
    seconds: float  #: from its launch to its end, or until now
    dollars: float
    on_demand: float | None  #: dollars at the on-demand price; None: not known
    ended: bool
    taken: bool  #: interrupted by the provider
    free: bool  #: interrupted within its first hour, which is not billed


@dataclass(frozen=True)
class MarketCost:
    """Total cost of all instances of one type in one zone."""

    type: str
    zone: str
    instances: int
    taken: int  #: instances interrupted by the provider
    free: int  #: instances interrupted within their first hour, which is not billed
    seconds: float  #: total of all instances
    dollars: float
    on_demand: float | None  #: dollars at the on-demand price; None: not known for all instances


@dataclass(frozen=True)
class Money:
    """Total cost of a run."""

    dollars: float
    on_demand: float | None  #: dollars at the on-demand price; None: not known for all instances
    #: floating-point operations of credited work per dollar; None: the program gives no count, or nothing was paid
    flop_per_dollar: float | None
    markets: list[MarketCost]
    lives: list[LifeCost]
    assumed: list[str]  #: assumptions behind the figures, one sentence each


def read_money(root: Path, flop: float | None, now: float | None = None) -> Money | None:
    """Return the cost of the run in `root` at `now` (seconds since 1970), with `flop` credited floating-point
    operations; None if it has had no instances. Raises LedgerError if the stored prices cannot be read."""
    stayed = instance_usages(Roster(root))
    if not stayed:
        return None
    now_s = time.time() if now is None else now
    prices = saved_prices(root)
    charges = [(stay, charge(stay, prices.get(stay.market), now_s)) for stay in stayed]
    lives = sorted(
        (_life(*each) for each in charges),
        key=lambda life: (len(life.worker), life.worker, life.id),  # w2 before w10
    )
    dollars = math.fsum(each.dollars for each in lives)
    return Money(
        dollars=dollars,
        on_demand=_together([each.on_demand for each in lives]),
        flop_per_dollar=flop / dollars if flop and dollars else None,
        markets=_by_market(lives),
        lives=lives,
        assumed=_assumed(charges, prices),
    )


def read_spent(root: Path, times_s: Sequence[float]) -> list[float]:
    """Return the dollars spent on the run in `root` up to each of `times_s` (seconds since 1970), as known at
    each time; empty if the run has had no instances. The sum falls when an instance is interrupted within its first
    hour, which is not billed.

    Raises LedgerError if the stored prices cannot be read.
    """
    stayed = instance_usages(Roster(root))
    prices = saved_prices(root) if stayed else {}
    return [
        math.fsum(
            charge(_as_at(stay, at_s), prices.get(stay.market), at_s).dollars
            for stay in stayed
            if stay.launched_s <= at_s
        )
        for at_s in times_s
        if stayed
    ]


def _as_at(stay: InstanceUsage, at_s: float) -> InstanceUsage:
    """Return an instance's usage as it was known at `at_s`: an end after that time is left out."""
    return replace(stay, ended_s=None, taken=False) if stay.ended_s is not None and stay.ended_s > at_s else stay


def _life(stay: InstanceUsage, cost: Charge) -> LifeCost:
    return LifeCost(
        id=stay.id,
        worker=stay.worker,
        type=stay.type,
        zone=stay.zone,
        seconds=cost.seconds,
        dollars=cost.dollars,
        on_demand=cost.on_demand if stay.on_demand else None,
        ended=stay.ended_s is not None,
        taken=stay.taken,
        free=cost.free,
    )


def _by_market(lives: Sequence[LifeCost]) -> list[MarketCost]:
    markets = []
    for type, zone in sorted({(life.type, life.zone) for life in lives}):
        own = [life for life in lives if (life.type, life.zone) == (type, zone)]
        markets.append(
            MarketCost(
                type=type,
                zone=zone,
                instances=len(own),
                taken=sum(life.taken for life in own),
                free=sum(life.free for life in own),
                seconds=math.fsum(life.seconds for life in own),
                dollars=math.fsum(life.dollars for life in own),
                on_demand=_together([life.on_demand for life in own]),
            )
        )
    return markets


def _together(parts: Sequence[float | None]) -> float | None:
    numbers = [part for part in parts if part is not None]
    return math.fsum(numbers) if len(numbers) == len(parts) else None


def _assumed(charges: Sequence[tuple[InstanceUsage, Charge]], prices: Prices) -> list[str]:
    remarks = [
        "billed by the second, 60 s at least, from the launch on, spot instances at the price then in effect and free "
        "if taken within the first hour; disks, traffic and the machine of the master are not in it"
    ]
    if living := sum(stay.ended_s is None for stay, _ in charges):
        remarks.append(f"{living} not known to have ended, billed until now")
    early = {stay.market for stay, _ in charges if (steps := prices.get(stay.market)) and stay.launched_s < steps[0][0]}
    if early:
        remarks.append(f"the history of {', '.join(sorted(early))} begins after a launch: its first price before that")
    for basis, words in (
        (Basis.ON_DEMAND, "no price history: counted at the full price"),
        (Basis.NOTHING, "no price at all: not counted"),
    ):
        without = {
            stay.market for stay, cost in charges if cost.basis is basis and (stay.spot or basis is Basis.NOTHING)
        }
        if without:
            remarks.append(f"{', '.join(sorted(without))}: {words}")
    return remarks


def in_hours(seconds: float) -> str:
    """Return seconds as instance hours."""
    return f"{seconds / HOUR_S:.2f} h"

"""Replay recorded spot markets: dollars and hours of two jobs, with gridml and with the alternatives.

gridml's rows are the real master in the project's simulator: real leases, pushes, merging times and a ledger; only the
training is simulated. The others are computed from the same windows and prices. Bills are those of
`master.sftp.spending`.

    GRIDML_DATA=DIR python -m benchmarks.spot.replay [--starts 8] [--processes 2] [--again]

GRIDML_DATA names a folder with `spot/aws-spot-price-2015.csv.gz` and `spot/skypilot/` (Wu et al., NSDI 2024).
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache

from benchmarks.arguments import parser_of, sized
from benchmarks.spot.plot import Panel, draw
from benchmarks.spot.supply import (
    HORIZON_S,
    NOTICE_S,
    Series,
    Supply,
    count_starts,
    count_trace,
    from_counts,
    from_prices,
    on_demand,
    price_starts,
    price_trace,
)
from benchmarks.spot.ways import BOOT_S, Job, Outcome, alone, restarted, with_gridml
from benchmarks.table import Cell, results, write
from chunk_model.traces import Record

PLAYED = "spot_replay.jsonl"
LONG_S = 36_000.0
SAVE_EVERY_S = 600.0  # about Young's optimum: the root of 2 · 5 s (a save) · 10 h (a mean life)
# The paper bid $0.10 for a c1.xlarge, which was $0.52 on demand in 2015.
PAPER_BID = 0.10 / 0.52
SPOT_V100, FULL_V100 = 0.918, 3.06  # dollars an hour of p3.2xlarge, SkyPilot's catalogue of us-east-1
BETWEEN_REGIONS, FROM_EC2 = 0.02, 0.09  # dollars a GB (10^9 bytes)
ZONES = ("us-east-1f", "us-east-2a", "us-west-2c")
COUNTED = (*((zone,) for zone in ZONES), ZONES)  # one zone, or all at once


def mnist(images_per_s: float) -> Job:
    return Job("MNIST", 60_000, 20, 1 / images_per_s, push_s=0.1, travel_s=0.1, merge_s=0.01, push_mb=0.25, save_s=1.0)


def imagenet(images_per_s: float) -> Job:
    return Job(
        "ImageNet", 1_281_167, 90, 1 / images_per_s, push_s=1.0, travel_s=2.5, merge_s=0.9, push_mb=100.0, save_s=5.0
    )


@dataclass(frozen=True)
class Setting:
    """A job in the markets of a trace."""

    job: Job
    kind: str  #: instance type
    instances: int
    full: float  #: dollars per hour on demand
    zones: tuple[str, ...] = ()  #: of a trace of counts

    @property
    def trace(self) -> str:
        where = "three zones" if self.zones == ZONES else ", ".join(self.zones) or "us-east-1, 2015"
        return f"{self.kind} {where}"

    @property
    def prices(self) -> dict[str, Series]:
        return _prices(self.kind)

    def starts(self, count: int) -> list[float]:
        if self.zones:
            return count_starts([_counts(zone) for zone in self.zones], count)
        return price_starts(self.prices, count)

    def supply(self, start_s: float) -> Supply:
        """Return the supply of gridml and of checkpoint-and-restart: the cheapest market up to the full price, which is
        EC2's default."""
        if self.zones:
            records = {f"{self.kind}/{zone}": _counts(zone) for zone in self.zones}
            return from_counts(records, start_s, SPOT_V100, self.full)
        return from_prices(self.prices, start_s, self.instances, self.full, self.full)

    def bid(self, start_s: float, number: int) -> Supply:
        """Return the supply of the paper's bid: one market, a different one for each start."""
        name = sorted(self.prices)[number % len(self.prices)]
        return from_prices({name: self.prices[name]}, start_s, self.instances, PAPER_BID * self.full, self.full)


@cache
def _prices(kind: str) -> dict[str, Series]:
    return price_trace(kind)


@cache
def _counts(zone: str) -> Record:
    return count_trace(f"preemption/4-node/aws-08-03-2023/{zone}_v100_1.json")


_ALL = (
    Setting(mnist(333), "c3.xlarge", 4, 0.21),
    *(Setting(mnist(10_000), "p3.2xlarge", 4, FULL_V100, zones) for zones in COUNTED),
    Setting(imagenet(100), "g2.2xlarge", 16, 0.65),
    *(Setting(imagenet(360), "p3.2xlarge", 4, FULL_V100, zones) for zones in COUNTED),
)
SETTINGS = sized(_ALL, _ALL[:1])
ALONE, FLEET = "on demand, one instance", "on demand, gridml"
ONE, STEP = "checkpoint and restart, one", "checkpoint and restart, all in step"
PAPER, UNTOLD, GRIDML = "the paper's bid and chunks", "gridml, notices unheard", "gridml"
WAYS = (ALONE, FLEET, ONE, STEP, PAPER, UNTOLD, GRIDML)


@dataclass(frozen=True)
class Case:
    """One way from one start."""

    setting: Setting
    way: str
    number: int  #: of the start
    start_s: float

    @property
    def name(self) -> str:
        return f"{self.setting.trace}, {self.setting.job.name}, {self.way}, {self.start_s:.0f}"


def play(case: Case) -> Outcome:
    setting, job, instances = case.setting, case.setting.job, case.setting.instances
    if case.way == ALONE:
        return alone(job, setting.full)
    if case.way == FLEET:
        return with_gridml(job, on_demand(instances, setting.full, f"{setting.kind}/full"), instances, notice=False)
    if case.way in (ONE, STEP):
        return restarted(job, setting.supply(case.start_s), 1 if case.way == ONE else instances, SAVE_EVERY_S)
    if case.way == PAPER:
        return _paper(setting, case.start_s, case.number)
    return with_gridml(job, setting.supply(case.start_s), instances, notice=case.way == GRIDML)


def _paper(setting: Setting, start_s: float, number: int) -> Outcome:
    """Return the paper's chunk size: a life's worth of images, n = T/(t_c + t_x), but at most an instance's share of an
    epoch. A chunk counts whole or not at all, and workers get no notice of an eviction."""
    supply = setting.bid(start_s, number)
    lives = [window.closes_s - window.opens_s for window in supply.places[0]]
    share = setting.job.images // setting.instances
    chunk = max(1, min(share, int(statistics.mean(lives) / setting.job.image_s))) if lives else share
    return with_gridml(setting.job, supply, setting.instances, notice=False, chunk=chunk)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--starts", type=int, default=sized(8, 1), help="moments in each trace to start from")
    parser.add_argument("--processes", type=int, default=sized(2, 1))
    parser.add_argument("--again", action="store_true", help="replay recorded cases, too")
    options = parser.parse_args()
    if not os.environ.get("GRIDML_DATA"):
        print("skipped: GRIDML_DATA names no folder with spot/ in it")
        return
    cases = [
        Case(setting, way, number, start_s)
        for way in reversed(WAYS)
        for setting in SETTINGS
        for number, start_s in enumerate(setting.starts(options.starts))
        if (way not in (ALONE, FLEET) or number == 0) and not (way == PAPER and setting.zones)
    ]
    # Short jobs and every other start come first, so that an interrupted benchmark has most of its information.
    cases.sort(key=lambda case: (case.setting.job.work_s > LONG_S, case.number % 2))
    played = {} if options.again else _played()
    with (
        ProcessPoolExecutor(options.processes) as pool,
        (results() / PLAYED).open("w" if options.again else "a") as file,
    ):
        missing = {pool.submit(play, case): case for case in cases if case.name not in played}
        for done in as_completed(missing):
            case, outcome = missing[done], done.result()
            played[case.name] = outcome
            print(case.name, outcome, flush=True)
            print(json.dumps({"case": case.name, **asdict(outcome)}), file=file, flush=True)
    outcomes: dict[tuple[Setting, str], list[Outcome]] = {}
    for case in cases:
        outcomes.setdefault((case.setting, case.way), []).append(played[case.name])
    report(outcomes, options.starts)


def _played() -> dict[str, Outcome]:
    """Return the recorded results: a replay is deterministic, and takes an hour of a core."""
    path = results() / PLAYED
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {line.pop("case"): Outcome(**line) for line in lines}


def report(outcomes: Mapping[tuple[Setting, str], Sequence[Outcome]], starts: int) -> None:
    """Write the table and the plot."""
    ordered = [(setting, way) for setting in SETTINGS for way in WAYS if (setting, way) in outcomes]
    rows = [row(setting, way, outcomes[setting, way]) for setting, way in ordered]
    draw(
        [panel(setting, outcomes) for setting in SETTINGS], WAYS, (FLEET, UNTOLD, GRIDML), results() / "spot_replay.png"
    )
    write("spot_replay", "Recorded spot markets replayed: hours and dollars of two jobs", rows, notes(outcomes, starts))


def panel(setting: Setting, outcomes: Mapping[tuple[Setting, str], Sequence[Outcome]]) -> Panel:
    played = {way: outcomes[setting, way] for way in WAYS if (setting, way) in outcomes}
    return Panel(
        setting.job.name,
        f"{setting.instances} × {setting.trace}",
        {way: [(each.hours, each.dollars) for each in found if each.finished] for way, found in played.items()},
        {way: len(found) for way, found in played.items()},
    )


def spread(outcomes: Sequence[Outcome]) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return (least, median, most) hours and dollars of those that finished."""
    done = [each for each in outcomes if each.finished]
    if not done:
        return (math.nan,) * 3, (math.nan,) * 3
    hours, dollars = [each.hours for each in done], [each.dollars for each in done]
    return (
        (min(hours), statistics.median(hours), max(hours)),
        (min(dollars), statistics.median(dollars), max(dollars)),
    )


def traffic(job: Job, outcome: Outcome) -> float:
    """Return the dollars for the traffic between regions: each push and its answer."""
    return outcome.far * 2 * job.push_mb / 1e3 * BETWEEN_REGIONS


def row(setting: Setting, way: str, outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    hours, dollars = spread(outcomes)
    full = alone(setting.job, setting.full).dollars
    done = [each for each in outcomes if each.finished]
    known = bool(done)
    return {
        "trace": setting.trace,
        "job": setting.job.name,
        "way": way,
        "instances": 1 if way in (ALONE, ONE) else setting.instances,
        "hours": round(hours[1], 3) if known else None,
        "from to": f"{hours[0]:.3g}-{hours[2]:.3g}" if known else "",
        "$": round(dollars[1], 4) if known else None,
        "$ from to": f"{dollars[0]:.3g}-{dollars[2]:.3g}" if known else "",
        "traffic $": round(statistics.median(traffic(setting.job, each) for each in done), 4) if known else None,
        "of on demand": round(dollars[1] / full, 3) if known else None,
        "taken": round(statistics.mean(each.taken for each in done), 1) if known else None,
        "free": round(statistics.mean(each.free for each in done), 1) if known else None,
        "finished": f"{len(done)}/{len(outcomes)}",
    }


def sooner(outcomes: Mapping[tuple[Setting, str], Sequence[Outcome]], setting: Setting) -> str:
    """Describe, start by start, how often gridml is better than the same instances in step."""
    ours, theirs = (
        [replace(each, dollars=each.dollars + traffic(setting.job, each)) for each in outcomes[setting, way]]
        for way in (GRIDML, STEP)
    )
    pairs = list(zip(ours, theirs, strict=True))
    return (
        f"{setting.job.name}, {setting.trace}: sooner {sum(our.hours < their.hours for our, their in pairs)}, "
        f"cheaper {sum(our.dollars < their.dollars for our, their in pairs)} of {len(pairs)}"
    )


def between_regions(setting: Setting, outcomes: Sequence[Outcome]) -> str:
    """Describe the cost of the traffic of gridml's runs, by the region of the master."""
    pushes = statistics.median(each.pushes for each in outcomes)
    far = [each.far for each in outcomes]
    paid = [traffic(setting.job, each) for each in outcomes]
    outside = pushes * setting.job.push_mb / 1e3 * FROM_EC2
    return (
        f"{setting.job.name}: {pushes:,.0f} pushes of {setting.job.push_mb:g} MB, {statistics.median(far):,.0f} "
        f"({min(far):,}-{max(far):,}) from afar, ${statistics.median(paid):.3g} (${min(paid):.3g}-{max(paid):.3g}); "
        f"with the master outside EC2 ${outside:.3g}"
    )


def notes(outcomes: Mapping[tuple[Setting, str], Sequence[Outcome]], starts: int) -> list[str]:
    spread_out = [setting for setting in SETTINGS if len(setting.zones) > 1]
    return [
        "read: spot costs a tenth to a third of on demand in every way. gridml is better where capacity is short: in "
        "us-east-1f it finishes sooner than the same instances in step from every start (5% in the median) and is "
        "cheaper (11%: its instances are taken one by one, and those younger than an hour are free; $76 pay 83 of the "
        "89 hours of training). Where capacity mostly suffices (g2.2xlarge, us-east-2a, three zones) it is 2 to 5% "
        "later and more expensive: the cost of pushes and of starting chunks, while working in step costs nothing "
        "here. us-west-2c is in between: sooner from half of the starts, 1% more expensive. Small jobs are most "
        "expensive with gridml: 12% more than in step on c3.xlarge, and on p3.2xlarge, where MNIST is 30 s of work "
        "after 90 s of boot, 24%, or 2.8 times one instance. For a large job one instance is about as cheap as any "
        "other way, and takes 2 to 15 times as long. The paper's low bid saves 14% of gridml's dollars on g2.2xlarge, "
        "or waits for hours, or forever",
        "three zones: a job that may move to another zone hardly waits, with gridml (97 hours in us-east-1f alone, 23 "
        "in three zones) or in step (102 and 23). So gridml is sooner only from the three starts that take longest "
        "(30.2 hours instead of 32.5 in the worst case), and with its traffic it is more expensive from all",
        "gridml against checkpoint and restart in step, start by start, with traffic: "
        + "; ".join(sooner(outcomes, setting) for setting in SETTINGS),
        "gridml's time on demand, without interruptions: ImageNet on p3.2xlarge takes 83,883 s: 80,073 for training, "
        "90 for boots, 2,776 for pushes and 928 for starting chunks; on g2.2xlarge 76,238 s: 72,066, 90, 3,031 and "
        "1,016. Merging runs in parallel and the ends of epochs overlap: all waiting is 16 and 35 s. Pushes exceed "
        "their budget of 3%, which allows one in 63 s, because a push is due after 30 s at the latest (with 65 s: "
        "82,936 s on p3.2xlarge). On c3.xlarge MNIST takes 1,108 s: 901 for training, 90 for boots, 89 for starting "
        "chunks and 26 for pushes",
        f"medians and ranges of {starts} starts spread evenly over each trace, of those that finished within "
        f"{HORIZON_S / 86_400:.0f} days (column finished); one start on demand. of on demand: dollars relative to one "
        "instance on demand, which wastes nothing",
        "gridml: the real master in the simulator: its leases, its own choice of push intervals, merges, ledger; "
        f"credits exact (checked). On a notice, {NOTICE_S:.0f} s before its instance is taken, a worker pushes and "
        "leaves; unheard: notices are ignored. A taken instance is replaced as soon as another can be had; gridml "
        "works with any number",
        "a worker that obeys a notice leaves at once, so up to two paid minutes are not used; one that does not loses "
        "its training since the last push, about half a minute. So notices cost more than they save here: 1% of the "
        "hours and 2% of the dollars in us-east-1f, where most instances are taken. With rarer pushes they would gain "
        "more",
        f"checkpoint and restart: a save every {SAVE_EVERY_S / 60:.0f} minutes of work, notices are ignored; in step: "
        "all start when all requested instances can be had at once in one zone, and end when one is taken. Both move "
        "to the zone that has had the required capacity for longest, like SkyPilot. Assumed in their favour: they "
        "share the work evenly, at no cost for the network or for waiting for each other, never wait at an epoch's "
        "end, find data and checkpoints in every zone, and hold no instance while they wait",
        f"the paper's: one market (a different one for each start), a bid of {PAPER_BID:.0%} of the full price (the "
        "paper's $0.10 of $0.52 for a c1.xlarge), a chunk of a mean life's images but at most a share of an epoch, "
        "pushed once, at its end, notices ignored; with gridml's master. Assumed in its favour: the table does not "
        "show the lower accuracy of one merge per epoch. Traces of counts have no bids",
        "prices: per second at the price in effect, 60 s at least, free if taken within the first hour (EC2's rules of "
        "today; in 2015 whole hours were billed). c3.xlarge and g2.2xlarge: the recorded prices, the cheapest of three "
        "zones at the launch, kept until it exceeds $0.21 or $0.65, the full price; any number of instances can be "
        f"had, because the trace has no capacities. p3.2xlarge: a constant ${SPOT_V100} in all zones (on demand "
        f"${FULL_V100:.2f}; SkyPilot's catalogue), up to 4 at once in a zone, as counted by the trace; traces are "
        "repeated",
        "three zones: the three traces in parallel, from the beginning of each, because their dates are unknown; the "
        "shortest one is repeated first, and starts are spread over it. gridml's workers may be in several regions at "
        "once, instances in step in one only. Assumed: a push from another region travels no longer (2.5 s for 100 MB "
        "are 320 Mbit/s)",
        "traffic $, not in the other dollars: each push and its answer, which is as large, from other regions than the "
        f"one of most pushes, the best place for the master; ${BETWEEN_REGIONS} a GB between regions; from EC2 to a "
        f"master outside ${FROM_EC2} a GB, while answers are free. The bytes are computed, because the simulator's "
        "pushes are empty. gridml in three zones, "
        + "; ".join(between_regions(setting, outcomes[setting, GRIDML]) for setting in spread_out),
        f"assumed: {BOOT_S:.0f} s from launch to the first batch, paid; images a second of an instance: MNIST 333 on "
        "c3.xlarge and 10,000 on p3.2xlarge, ImageNet 100 on g2.2xlarge and 360 on p3.2xlarge (they change the hours "
        "of all ways alike); 20 epochs of 60,000 and 90 of 1,281,167 images; a push of MNIST occupies worker and "
        "master for 0.1 and 0.01 s and travels 0.1 s, of ImageNet (100 MB, limits.md) 1, 0.9 and 2.5 s; the start of a "
        "chunk takes gridml's workers 1 s; a save takes 1 and 5 s",
        "left out: the cost of the master's own machine (none in ways without gridml), disks, traffic within a region "
        "($0.02 a GB between its zones), reading the data (from another region 150 GB of ImageNet are $3), evaluation, "
        "and accuracy: all ways train the same number of images, although steps that are merged late gain less "
        "(averaging.md), and so may larger batches in step",
    ]


if __name__ == "__main__":
    main()

"""The ways to do a job on a market's supply: gridml's real master in its simulator, and the alternatives."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase

from benchmarks.spot.supply import HORIZON_S, Supply, Window, Windows
from chunk_model.goodput import Costs
from gridml.errors import RunError
from gridml.protocol.messages import NO_PUSH
from master.sftp.spending import InstanceUsage, charge
from master.simulation import cost_only_worker
from master.simulation.result import result_of
from master.simulation.scenario import Scenario
from master.simulation.world import START_S, play_scenario
from master.state.jobs import State
from master.store.reader import opened
from master.store.settings import Settings

BOOT_S = 90.0  # from an instance's launch to its first batch, paid
HOUR_S = 3600.0


@dataclass(frozen=True)
class Job:
    """The costs of a job."""

    name: str
    images: int  #: of an epoch
    epochs: int
    image_s: float  #: time of one instance for an image
    push_s: float  #: time in which a push occupies the worker
    travel_s: float  #: time of a push on its way
    merge_s: float  #: time in which a push occupies the master
    push_mb: float  #: of a push, and of its answer, in 10^6 bytes
    save_s: float  #: to write, or to read, a checkpoint

    @property
    def work_s(self) -> float:
        """The time of one instance without losses."""
        return self.images * self.epochs * self.image_s


@dataclass(frozen=True)
class Outcome:
    """The result of a way. Counts are 0 for ways that have none."""

    hours: float  #: infinite if it did not finish
    dollars: float
    instances: int = 0
    taken: int = 0  #: instances that were taken
    free: int = 0  #: of these, without a charge
    pushes: int = 0
    far: int = 0  #: pushes that did not come from the region of most pushes

    @property
    def finished(self) -> bool:
        return math.isfinite(self.hours)


UNFINISHED = Outcome(math.inf, math.inf)


def billed(supply: Supply, stays: list[InstanceUsage], end_s: float) -> Outcome:
    charges = [charge(stay, supply.prices[stay.market], end_s) for stay in stays]
    return Outcome(
        end_s / HOUR_S,
        math.fsum(each.dollars for each in charges),
        len(stays),
        sum(stay.taken for stay in stays),
        sum(each.free for each in charges),
    )


# --- gridml


def with_gridml(job: Job, supply: Supply, instances: int, *, notice: bool = True, chunk: int | None = None) -> Outcome:
    """Do the job by the real master: its leases, pushes and ledger. With a `chunk` all chunks have that size, and are
    pushed once, at their end."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    script = Windows(supply.places, notice)
    costs = Costs(exec_s=job.image_s, start_s=1.0, end_s=0.0, push_s=job.push_s, boot_s=BOOT_S)
    try:
        program = folder / "job.py"
        program.write_text(cost_only_worker.source(job.images, job.epochs))
        scenario = Scenario(
            script,
            costs,
            turn_s=0.25,
            travel_s=job.travel_s,
            merge_s=job.merge_s,
            limit_s=HORIZON_S,
        )
        settings = Settings(
            program,
            backend="simulated",
            workers=instances,
            chunk=chunk,
            push_every=None if chunk is None else NO_PUSH,
            steps_each=0,
        )
        try:
            report = result_of(play_scenario(settings, scenario, folder / "run"), folder / "run").report
        except RunError as error:
            print(error, flush=True)
            return UNFINISHED
        assert report.duplicated == report.lost == 0 and report.credited == job.images * job.epochs
        stays, pushes = _stays(folder / "run", script)
        outcome = billed(supply, stays, report.wall_s)
        return replace(outcome, pushes=pushes.total(), far=pushes.total() - max(pushes.values()))
    finally:
        shutil.rmtree(folder)


def _stays(root: Path, script: Windows) -> tuple[list[InstanceUsage], Counter[str]]:
    """Return the usage of the workers' instances, and the credited pushes of each region. A taken instance is paid to
    its end, although its worker has left before."""
    stays: list[InstanceUsage] = []
    pushes: Counter[str] = Counter()
    with opened(root) as ledger:
        rows = ledger.execute(
            "SELECT machine, started_s, ended_s, state, cancelled, count(credits.worker) FROM workers "
            "LEFT JOIN credits USING (worker) WHERE started_s IS NOT NULL GROUP BY worker"
        ).fetchall()
    for machine, started_s, ended_s, state, cancelled, pushed in rows:
        launched_s = started_s - START_S
        window = script.window(int(machine.removeprefix("slot-")) - 1, launched_s)
        assert window is not None, f"{machine} was not open at {launched_s}"
        taken = state == State.EVICTED and not cancelled
        gone_s = window.closes_s if taken else None if ended_s is None else ended_s - START_S
        stays.append(_stay(window, launched_s, gone_s, taken=taken))
        pushes[stays[-1].zone.rstrip(ascii_lowercase)] += pushed  # us-east-1f is in us-east-1
    return stays, pushes


def _stay(window: Window, launched_s: float, ended_s: float | None, *, taken: bool) -> InstanceUsage:
    kind, _, zone = window.market.partition("/")
    return InstanceUsage(kind, zone, launched_s, ended_s, taken)


# --- alternatives


def restarted(job: Job, supply: Supply, instances: int, every_s: float) -> Outcome:
    """Do the job by checkpoint and restart: `instances` work in step and share the work evenly, at no cost.

    A checkpoint is written every `every_s` of work. When one instance is taken, all end, and they restart from the last
    checkpoint as soon as enough instances can be had. Notices are ignored.
    """
    stays: list[InstanceUsage] = []
    left_s, now_s = job.work_s / instances, 0.0
    for window in supply.together(instances):
        if window.closes_s <= now_s:
            continue
        launched_s = max(now_s, window.opens_s)
        if launched_s >= HORIZON_S:
            break
        ready_s = launched_s + BOOT_S + job.save_s
        saves = max(0, math.ceil(left_s / every_s) - 1)  # none at the end: the model is saved with the job
        end_s = ready_s + left_s + saves * job.save_s
        if end_s <= window.closes_s:
            stays += [_stay(window, launched_s, end_s, taken=False)] * instances
            return billed(supply, stays, end_s)
        kept = max(0, math.floor((window.closes_s - ready_s) / (every_s + job.save_s)))
        left_s -= kept * every_s
        now_s = window.closes_s
        ended = [_stay(window, launched_s, now_s, taken=True)]
        # In a trace of counts only one instance is taken; the job releases the others, which therefore are charged.
        ended += [_stay(window, launched_s, now_s, taken=supply.alike)] * (instances - 1)
        stays += ended
    return UNFINISHED


def alone(job: Job, price: float) -> Outcome:
    """Do the job on one instance on demand."""
    hours = (BOOT_S + job.work_s) / HOUR_S
    return Outcome(hours, hours * price, 1)

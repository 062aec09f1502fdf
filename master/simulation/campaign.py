"""Campaigns: many small simulated runs with all kinds of faults at once, each checked for exact credits.

A run depends only on its seed, so `python -c "from master.simulation.campaign import play_seed;
print(play_seed(SEED))"` replays it. `status_line` shows the progress of a simulation on the terminal.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.goodput import Costs
from chunk_model.lifetime import Lifetime
from chunk_model.traces import TraceEvent
from gridml.errors import LedgerError, UsageError
from gridml.protocol.messages import MAX_PUSH_INTERVAL_S
from master.backends.script import Replay, Script
from master.simulation import cost_only_worker
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_credits, verify_ticks
from master.simulation.scenario import Absent, MachineSpeeds, ManyLives, Scenario, Storms
from master.simulation.world import play_scenario
from master.store.journal import Report
from master.store.ledger_file import last_activity_s
from master.store.reader import connect, read_clock
from master.store.rundir import EventFacts
from master.store.settings import Settings, check_seed
from master.views.console import PlainConsole
from master.views.progress import read_progress
from master.views.render import duration

# Numbers of random streams, for scenarios, failing machines, hostile machines, spot checks and slack. They are separate
# so that a new kind of fault does not change the other draws of a seed.
_DRAWN, _FAILING, _HOSTILITY, _CHECKED, _WAITING = 110, 111, 112, 113, 114
#: Minimum share of workers that live until their first push. With a smaller share, the master could end the run,
#: because by chance too many workers in a row die before their first push.
MIN_SHARE = 0.01
TICK_S = 1e-9  # avoids a division by zero if messages have no delay
MAX_HOSTILE_SHARE = 0.4  # maximum share of hostile machines; honest machines must be the majority
#: Simulated seconds after which a run counts as hung; a run takes about 1,000 s.
MAX_RUN_S = 1e6


@dataclass(frozen=True)
class DrawnLives:
    """The distribution of machines' lifetimes."""

    law: Lifetime
    graceful: float  # share of the lives that end with a warning
    grace_s: float  # seconds from the warning to the end


@dataclass(frozen=True)
class DrawnTicks:
    """How workers wait for one another within a pass, as in `gridml.MiniBatch`."""

    slack: int
    parts: int
    size: int  # vertices of a mini-batch, of which no part is ever credited


@dataclass(frozen=True)
class DrawnRun:
    """The run drawn from a seed."""

    scenario: Scenario
    lives: DrawnLives  # lifetimes in `scenario`, without its storms; approximate if the script is a trace
    vertices: int  # per epoch
    epochs: int
    workers: int
    chunk: int | None  # vertices; None: chosen by the master
    push_every: int | None  # vertices; None: chosen by the master
    silent_s: float  # as in Settings
    spot_checks: float  # share of the pushes that are checked
    ticks: DrawnTicks | None = None  # None: workers do not wait for one another

    def settings(self, program: Path, seed: int) -> Settings:
        return Settings(
            program,
            backend="simulated",
            workers=self.workers,
            seed=seed,
            chunk=self.chunk,
            push_every=self.push_every,
            silent_s=self.silent_s,
            spot_checks=self.spot_checks,
        )


@dataclass(frozen=True)
class Played:
    """Counts of the events in one or more runs. `+` adds the counts of both sides."""

    runs: int = 0
    kills: int = 0  # workers whose machine was taken away
    graceful: int = 0  # workers in `kills` that had a warning
    masters: int = 0  # masters that drove a run, including the first master of each run
    sent: int = 0  # messages and replies
    lost: int = 0  # messages and replies of which no copy arrived intact
    hostile: int = 0  # hostile values in messages and heartbeats
    credits: int = 0  # pushes merged
    credited: int = 0  # vertices credited

    def __add__(self, other: Played) -> Played:
        return Played(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def draw(seed: int) -> DrawnRun:
    """Draw a run that can finish, with each kind of fault at a random rate. Raises UsageError for a seed that is out of
    range."""
    check_seed(seed)
    rng = np.random.default_rng([seed, _DRAWN])
    drawn = _draw(rng, seed)
    while not can_finish(drawn)[0]:
        drawn = _draw(rng, seed)
    return drawn


def can_finish(run: DrawnRun) -> tuple[bool, str]:
    """Return whether enough lives last until their first push arrives, and why.

    A life must last until the push is due, or get its warning early enough for a push to arrive. In both cases the
    worker must not be silent for longer than `silent_s`.
    """
    costs, faults, lives = run.scenario.costs, run.scenario.faults or Chances(), run.lives
    sizes = [size for size in (run.chunk, run.push_every) if size is not None]
    chunk = run.chunk or 1 if run.ticks is None else run.ticks.size
    begin_s = costs.boot_s + costs.start_s + chunk * costs.copy_s
    train_s = min(min(sizes, default=1) * costs.exec_s, MAX_PUSH_INTERVAL_S)
    if run.ticks is not None:
        train_s = run.ticks.size * costs.exec_s
    push_s = (costs.push_s or 0.0) + run.scenario.travel_s
    due_s = begin_s + train_s + push_s + faults.delay_s
    # Delays are uniform, so this is the share of the pushes that arrive within the grace period.
    in_time = min(1.0, max(0.0, lives.grace_s - push_s) / max(faults.delay_s, TICK_S))
    to_the_end = lives.law.survival(due_s) if train_s < run.silent_s else 0.0
    warned = lives.graceful * in_time * lives.law.survival(begin_s) * (run.ticks is None)
    share = max(to_the_end, warned) if begin_s < run.silent_s else 0.0
    return share >= MIN_SHARE, (
        f"the first push takes {due_s:.3g} s, and a share of {to_the_end:.2g} of the lives lasts as long; {warned:.2g} "
        f"are warned in time; --silence is {run.silent_s:.3g} s"
    )


def _draw(rng: np.random.Generator, seed: int) -> DrawnRun:
    """Draw a run that may be unable to finish."""
    # The order of the draws decides what a seed means. Add a new draw at the end, or give it a stream of its own.
    workers = round(20 * 8.0 ** float(rng.random()))  # 20 to 160, log-uniform
    life_s = float(rng.uniform(8.0, 40.0))
    wanted = int(rng.integers(5, 30)) * workers  # expected kills
    lasts_s = wanted * life_s / workers  # expected length of the run
    exec_s = life_s / float(rng.integers(40, 400))
    costs = Costs(
        exec_s=exec_s,
        copy_s=float(rng.uniform(0, 0.1)) * exec_s,
        start_s=float(rng.uniform(0, 0.1)) * life_s,
        end_s=float(rng.uniform(0, 0.02)) * life_s,
        push_s=float(rng.uniform(0, 0.02)) * life_s,
        wait_s=float(rng.choice([0.0, rng.uniform(0, 5)])),
        boot_s=float(rng.uniform(0, 0.05)) * life_s,
    )
    # A common factor of all faults of messages: some runs have many faults of all kinds, others have few.
    often = float(rng.uniform(0, 1))
    faults = Chances(
        lose=0.1 * often * float(rng.random()),
        repeat=0.2 * often * float(rng.random()),
        truncate=0.05 * often * float(rng.random()),
        corrupt=0.05 * often * float(rng.random()),
        delay_s=life_s * often * float(rng.random()),
    )
    script, lives = _machines(rng, workers, life_s, lasts_s, seed)
    scenario = Scenario(
        script,
        costs,
        MachineSpeeds(
            fast=float(rng.uniform(0, 0.5)), factor=float(rng.uniform(1, 6)), sigma=float(rng.uniform(0, 0.6))
        ),
        faults,
        crash_every_s=lasts_s / float(rng.uniform(0.3, 4)),
        restart_s=life_s * float(rng.uniform(0, 1)),
        turn_s=life_s * float(rng.uniform(0.05, 0.3)),
        travel_s=float(rng.choice([0.0, rng.uniform(0, 1)])),
        chunks_per_job=int(rng.choice([0, 0, 1, 3])),
        failing=int(np.random.default_rng([seed, _FAILING]).random() < 0.3),
        limit_s=MAX_RUN_S,
        hostile=_hostility(seed),
        seed=seed,
    )
    life = round(life_s / exec_s)  # mean lifetime in vertices; scales chunks and push intervals
    return DrawnRun(
        scenario,
        lives,
        vertices=max(500, round(0.5 * workers * lasts_s / exec_s)) // (epochs := int(rng.integers(1, 4))),
        epochs=epochs,
        workers=workers,
        chunk=[None, max(1, life // 4), life, life, 4 * life, 4 * life][int(rng.integers(6))],
        push_every=[None, max(1, life // 8), max(1, life // 3), max(1, life // 3), 4 * life][int(rng.integers(5))],
        silent_s=life_s * float(rng.uniform(1, 6)),
        spot_checks=float(np.random.default_rng([seed, _CHECKED]).choice([0.0, 0.0, 0.02, 0.3])),
        ticks=_ticks(seed, workers, life),
    )


def _ticks(seed: int, workers: int, life: int) -> DrawnTicks | None:
    """Draw how workers wait for one another, None in two thirds of the runs. `life` is a mean lifetime in vertices."""
    rng = np.random.default_rng([seed, _WAITING])
    if rng.random() >= 1 / 3:
        return None
    parts, size = rng.integers(workers // 2, 2 * workers), rng.integers(max(1, life // 20), max(2, life // 3))
    return DrawnTicks(int(rng.choice([0, 0, 1, 3])), int(parts), int(size))


def _hostility(seed: int) -> float:
    """Draw the share of hostile machines: 0 in a quarter of the runs."""
    rng = np.random.default_rng([seed, _HOSTILITY])
    return float(rng.choice([0.0, *(MAX_HOSTILE_SHARE * rng.random(3))]))


def _machines(
    rng: np.random.Generator, workers: int, life_s: float, lasts_s: float, seed: int
) -> tuple[Script, DrawnLives]:
    """Draw lifetimes from a distribution or a trace. In some runs a share of the machines never comes, in some runs
    storms take many machines at once."""
    graceful, grace_s = float(rng.random()), life_s * float(rng.uniform(0, 0.3))
    script: Script
    law: Lifetime = Exponential(life_s)
    if rng.random() < 0.25:
        script = Replay(_trace(rng, workers, life_s, lasts_s), seed, graceful, grace_s)
    else:
        gap_s = life_s * float(rng.choice([0.0, rng.uniform(0, 0.3)]))
        law = _law(rng, life_s)
        script = ManyLives(workers, law, seed, graceful, grace_s, gap_s)
    if rng.random() < 0.5:
        script = Absent(script, float(rng.uniform(0, 0.3)), seed)
    if rng.random() < 0.5:
        script = Storms(script, life_s * float(rng.uniform(1, 8)), float(rng.uniform(0.1, 0.9)), seed)
    return script, DrawnLives(law, graceful, grace_s)


def _law(rng: np.random.Generator, mean_s: float) -> Lifetime:
    laws: list[Lifetime] = [
        Exponential(mean_s),
        Weibull(0.7, mean_s / 1.27),
        Weibull(2.0, mean_s / 0.886),
        Normal(mean_s, mean_s / 4),
        LogNormal(mean_s / 1.38, 0.8),
        Mixture((0.3, 0.7), (Exponential(mean_s / 5), Weibull(1.5, 1.5 * mean_s))),
    ]
    return laws[int(rng.integers(len(laws)))]


def _trace(rng: np.random.Generator, nodes: int, life_s: float, lasts_s: float) -> tuple[TraceEvent, ...]:
    """Draw a trace of nodes that join and leave, some at the same instant. Nodes leave during three times the expected
    length of the run; then all stay, so that every run can finish."""
    events: list[TraceEvent] = []
    for node in range(nodes):
        at_s = float(rng.choice([0.0, rng.uniform(0, life_s)]))
        while at_s < 3 * lasts_s:
            until_s = at_s + float(rng.exponential(life_s))
            if rng.random() < 0.2:
                until_s = (at_s // life_s + 1) * life_s  # a multiple of `life_s`, at which other nodes leave, too
            events += [TraceEvent(at_s, f"node-{node}", True), TraceEvent(until_s, f"node-{node}", False)]
            at_s = until_s + float(rng.exponential(0.2 * life_s))
        events.append(TraceEvent(at_s, f"node-{node}", True))
    return tuple(sorted(events, key=lambda event: event.time_s))


def play_seed(seed: int, folder: Path | None = None) -> Played:
    """Play the run of a seed in a new directory below `folder`. The directory is removed on success, kept on failure.

    The credits are verified after each kill of the master and at the end. Raises LedgerError, naming the seed, if the
    credits are not exact, the run did not finish, or anything else failed.
    """
    drawn = draw(seed)
    root = Path(tempfile.mkdtemp(prefix=f"campaign-{seed}-", dir=folder))
    try:
        played = _played(drawn, seed, root)
    except Exception as error:
        raise LedgerError(
            f"the simulated run of seed {seed} is wrong: {type(error).__name__}: {error}. It lies in {root}; "
            f"play it again with master.simulation.campaign.play_seed({seed})."
        ) from error
    shutil.rmtree(root)
    return played


def _played(drawn: DrawnRun, seed: int, root: Path) -> Played:
    program = root / "costs.py"
    ticks = () if drawn.ticks is None else astuple(drawn.ticks)
    program.write_text(cost_only_worker.source(drawn.vertices, drawn.epochs, *ticks))
    run = root / "run"
    settings = drawn.settings(program, seed)
    world = play_scenario(settings, drawn.scenario, run, killed=lambda: verify_credits(run))
    exact, total = verify_credits(run), drawn.vertices * drawn.epochs
    if (exact.credited, exact.finished) != (total, drawn.epochs):
        raise LedgerError(f"{exact.credited} of {total} vertices are credited, in {exact.finished} finished epochs")
    if drawn.ticks is not None:
        verify_ticks(run, drawn.ticks.slack)
    tally = world.pool.tally
    return Played(
        runs=1,
        kills=tally.kills,
        graceful=tally.graceful,
        masters=world.masters,
        sent=world.workers.traffic.sent,
        lost=world.workers.traffic.lost,
        hostile=world.hostile,
        credits=exact.credits,
        credited=exact.credited,
    )


def campaign(
    kills: int, seed: int = 0, folder: Path | None = None, report: Callable[[Played], None] = lambda played: None
) -> Played:
    """Play the runs of seed, seed + 1, … until `kills` workers were killed. `report` is called with the totals after
    each run.

    Raises LedgerError naming the seed for the first run that fails.
    """
    if kills < 1:
        raise UsageError(f"a campaign of {kills} kills was asked for; expected 1 or more.")
    played = Played()
    while played.kills < kills:
        played += play_seed(seed + played.runs, folder)
        report(played)
    return played


EVERY_S = 0.5  # real seconds between two updates of the status line
#: Topics of events that are printed. Evictions are not printed, because a large simulation has thousands of them.
SHOWN = ("training", "epoch", "metrics", "resumed", "warning", "failure")


@contextlib.contextmanager
def status_line(root: Path, *, quiet: bool) -> Iterator[Report]:
    """Yield the callback for the events of the simulation in `root`. On a terminal, the callback also updates a status
    line."""
    console = PlainConsole(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda topic, text, facts: None if quiet or topic not in SHOWN else console.print(f"{topic}: {text}")
        return
    looked_s = time.monotonic()
    with console.status("simulating") as status:

        def report(topic: str, text: str, facts: EventFacts) -> None:
            nonlocal looked_s
            if topic in SHOWN:
                console.print(f"{topic}: {text}")
            if time.monotonic() - looked_s >= EVERY_S:
                status.update(_line(root))
                looked_s = time.monotonic()

        yield report


def _line(root: Path) -> str:
    """Return the progress of the run as one line of text."""
    try:
        connection = connect(root)
    except LedgerError:  # the first events come before the ledger exists
        return "simulating"
    with contextlib.closing(connection):
        at_s = last_activity_s(connection)
        progress, began_s = read_progress(connection, at_s), read_clock(connection, root, at_s).start_s
    simulated = duration(at_s - began_s)
    return f"simulated {simulated}: {progress.all_credited:,} of {progress.total or 0:,} vertices credited"

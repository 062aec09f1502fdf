"""Many small runs in which everything goes wrong at once, each checked; a run can be replayed from its seed.

`python -c "from master.simulation.campaign import play_seed; print(play_seed(SEED))"` is the replay of one. A line
on the terminal shows a simulation while it goes on, and its epochs as they end.
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
from master.simulation.result import verify_credits
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

# Streams of random numbers: of scenarios, of bad and of hostile machines, of spot checks.
_DRAWN, _FAILING, _HOSTILITY, _CHECKED = 110, 111, 112, 113
LEAST_SHARE = 0.01  # of the lives that bring home a push: where fewer do, 5,000 in a row may well fail to
TICK_S = 1e-9
MOST_HOSTILE = 0.4  # of the machines
PATIENT_S = 1e6  # a run that takes longer does not come to its end; they take about a thousand seconds


@dataclass(frozen=True)
class DrawnLives:
    """How long machines live: by `law`, a share `graceful` with a warning, after which they work on for `grace_s`."""

    law: Lifetime
    graceful: float
    grace_s: float


@dataclass(frozen=True)
class DrawnRun:
    """The run that a seed gives."""

    scenario: Scenario
    lives: DrawnLives
    vertices: int
    epochs: int
    workers: int
    chunk: int | None
    push_every: int | None
    silent_s: float
    spot_checks: float

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
    """What happened, in one run or in many: of the `kills` some were `graceful`, `masters` counts all that took part,
    `lost` the messages and answers of which no copy arrived whole, `hostile` the values that no honest worker sends."""

    runs: int = 0
    kills: int = 0
    graceful: int = 0
    masters: int = 0
    sent: int = 0
    lost: int = 0
    hostile: int = 0
    credits: int = 0
    credited: int = 0

    def __add__(self, other: Played) -> Played:
        return Played(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def draw(seed: int) -> DrawnRun:
    """Draw a run with every sort of fault, each more or less likely, that can finish. Raises UsageError for a seed out
    of range."""
    check_seed(seed)
    rng = np.random.default_rng([seed, _DRAWN])
    drawn = _draw(rng, seed)
    while not can_finish(drawn)[0]:
        drawn = _draw(rng, seed)
    return drawn


def can_finish(run: DrawnRun) -> tuple[bool, str]:
    """Return whether enough of the lives that were drawn bring home a push, and why: until one is due they must last,
    or be warned early enough for it to arrive, and nothing may take longer than a worker may be silent."""
    costs, faults, lives = run.scenario.costs, run.scenario.faults or Chances(), run.lives
    sizes = [size for size in (run.chunk, run.push_every) if size is not None]
    begin_s = costs.boot_s + costs.start_s + (run.chunk or 1) * costs.copy_s
    train_s = min(min(sizes, default=1) * costs.exec_s, MAX_PUSH_INTERVAL_S)
    push_s = (costs.push_s or 0.0) + run.scenario.travel_s
    due_s = begin_s + train_s + push_s + faults.delay_s
    in_time = min(1.0, max(0.0, lives.grace_s - push_s) / max(faults.delay_s, TICK_S))
    to_the_end = lives.law.survival(due_s) if train_s < run.silent_s else 0.0
    warned = lives.graceful * in_time * lives.law.survival(begin_s)
    share = max(to_the_end, warned) if begin_s < run.silent_s else 0.0
    return share >= LEAST_SHARE, (
        f"a push is due after {due_s:.3g} s, which a share of {to_the_end:.2g} of the lives lasts; {warned:.2g} are "
        f"warned in time; the longest silence is {run.silent_s:.3g} s"
    )


def _draw(rng: np.random.Generator, seed: int) -> DrawnRun:
    """Draw a run, whether it can finish or not."""
    workers = round(20 * 8.0 ** float(rng.random()))
    life_s = float(rng.uniform(8.0, 40.0))
    wanted = int(rng.integers(5, 30)) * workers  # kills
    lasts_s = wanted * life_s / workers
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
    often = float(rng.uniform(0, 1))  # how bad the carrier is
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
        limit_s=PATIENT_S,
        hostile=_hostility(seed),
        seed=seed,
    )
    life = round(life_s / exec_s)  # in vertices
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
    )


def _hostility(seed: int) -> float:
    """Draw the share of machines that are hostile: in a quarter of the runs none are."""
    rng = np.random.default_rng([seed, _HOSTILITY])
    return float(rng.choice([0.0, *(MOST_HOSTILE * rng.random(3))]))


def _machines(
    rng: np.random.Generator, workers: int, life_s: float, lasts_s: float, seed: int
) -> tuple[Script, DrawnLives]:
    """Draw lives of some law, or of a trace; some machines never come, and storms take many at one instant."""
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
    """Return nodes that join and leave for three times as long as the run should last, some together, and stay then."""
    events: list[TraceEvent] = []
    for node in range(nodes):
        at_s = float(rng.choice([0.0, rng.uniform(0, life_s)]))
        while at_s < 3 * lasts_s:
            until_s = at_s + float(rng.exponential(life_s))
            if rng.random() < 0.2:
                until_s = (at_s // life_s + 1) * life_s  # an instant that others leave at, too
            events += [TraceEvent(at_s, f"node-{node}", True), TraceEvent(until_s, f"node-{node}", False)]
            at_s = until_s + float(rng.exponential(0.2 * life_s))
        events.append(TraceEvent(at_s, f"node-{node}", True))
    return tuple(sorted(events, key=lambda event: event.time_s))


def play_seed(seed: int, folder: Path | None = None) -> Played:
    """Play what a seed draws, in a new run below `folder`, which is removed when all is well.

    Its credits are checked whenever its master was killed, and at its end. Raises LedgerError naming the seed when they
    are not exact, when the run did not finish, or when anything else failed.
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
    program.write_text(cost_only_worker.source(drawn.vertices, drawn.epochs))
    run = root / "run"
    settings = drawn.settings(program, seed)
    world = play_scenario(settings, drawn.scenario, run, killed=lambda: verify_credits(run))
    exact, total = verify_credits(run), drawn.vertices * drawn.epochs
    if (exact.credited, exact.finished) != (total, drawn.epochs):
        raise LedgerError(f"{exact.credited} of {total} vertices are credited, in {exact.finished} finished epochs")
    tally = world.pool.tally
    return Played(
        runs=1,
        kills=tally.kills,
        graceful=tally.graceful,
        masters=world.masters,
        sent=world.messages,
        lost=world.lost,
        hostile=world.hostile,
        credits=exact.credits,
        credited=exact.credited,
    )


def campaign(
    kills: int, seed: int = 0, folder: Path | None = None, report: Callable[[Played], None] = lambda played: None
) -> Played:
    """Play what seed, seed + 1, … draw until so many workers were killed; `report` gets the sums after each run.

    Raises LedgerError, which names the seed, for the first run that is not exact.
    """
    if kills < 1:
        raise UsageError(f"a campaign of {kills} kills was asked for; expected 1 or more.")
    played = Played()
    while played.kills < kills:
        played += play_seed(seed + played.runs, folder)
        report(played)
    return played


EVERY_S = 0.5  # of real time
SHOWN = ("training", "epoch", "metrics", "resumed", "warning", "failure")  # topics; evictions are counted, not shown


@contextlib.contextmanager
def status_line(root: Path, *, quiet: bool) -> Iterator[Report]:
    """Yield what a simulation in `root` is to report its events to."""
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
    """Return how far the run is, in one line."""
    try:
        connection = connect(root)
    except LedgerError:
        return "simulating"
    with contextlib.closing(connection):
        at_s = last_activity_s(connection)
        progress, began_s = read_progress(connection, at_s), read_clock(connection, root, at_s).start_s
    simulated = duration(at_s - began_s)
    return f"simulated {simulated}: {progress.all_credited:,} of {progress.total or 0:,} vertices credited"

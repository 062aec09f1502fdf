"""Correlated kills, for `benchmarks.chunk_size`: storms that take a share of all machines, and recorded traces.

The model assumes independent lives. Here the real master plays machines that die together, on the calendar of a
script, to measure the error of the model's prediction and the regret of its choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import sized
from benchmarks.chunk_size.master import Machines, Measured, play
from benchmarks.chunk_size.traces import MODES, chosen_for, costs_of, fitted
from benchmarks.table import Cell, write
from chunk_model.choose import Choice
from chunk_model.families import Exponential
from chunk_model.goodput import chunk_goodput
from chunk_model.observations import Observations
from chunk_model.prices import read_record
from chunk_model.traces import Record, TraceEvent
from master.backends.script import Replay, Script, ScriptedLives
from master.simulation.scenario import Storms

MEAN_S, MACHINES = 2700.0, 16
FACTORS = sized((0.3, 0.6, 1.0, 1.6, 4.0), (1.0,))  # of the chosen size
STORMS = ((1.0, 0.3), (0.5, 0.6))  # (mean lives between two storms, share taken)


@dataclass(frozen=True)
class Case:
    name: str
    script: Script
    workers: int
    until_s: float
    seen: Observations


def compare(files: Sequence[Path], *, quick: bool, folder: Path) -> None:
    rows: list[dict[str, Cell]] = []
    for case in [*_storms(quick), *_traces(files, quick)]:
        law, family = fitted(case.seen)
        mean_s = law.mean()
        costs = costs_of(mean_s, 1e4, 0.05, 0.01)
        for mode in MODES[1::2] if quick else MODES:
            choice = chosen_for(law, costs, mode)

            def at(factor: float, choice=choice, case=case, costs=costs, mode=mode, mean_s=mean_s) -> Measured:  # type: ignore[no-untyped-def]
                n = max(1, round(choice.chunk * factor))
                m = None if choice.push_every is None else min(n, choice.push_every)
                machines = Machines.until(case.until_s, case.script, case.workers, mean_s)
                return play(machines, costs, mode, n, m)

            played = {factor: at(factor) for factor in FACTORS}
            own: float | None = None
            if mode.many:  # with one chunk a life, the end of the chunk censors the life
                life = fitted(played[1.0].lives)[0]
                own = chunk_goodput(life, mode.costs(costs), choice.chunk, many=True, push_every=choice.push_every)
            rows.append(_row(case, family, str(mode), choice, own, played))
    off = [abs(float(row["off %"] or 0)) for row in rows]
    regret = [float(row["regret %"] or 0) for row in rows]
    write(
        "chunk_size_correlated",
        "Correlated kills: the real master, the model's prediction, the regret of its choice",
        rows,
        [
            f"storms: {MACHINES} machines with exponential lives of 45 min, of which a storm takes a share at "
            "one instant; "
            "fitted to the lives of one play, predicted for and measured in another with other seeds",
            "traces: the machines of the trace join and leave on its calendar; fitted to its own lives. With one "
            "chunk a life the next job gets the rest of the machine's life, not a fresh one",
            f"regret: against the best of {', '.join(f'{each:g}' for each in FACTORS)} times the chosen size, "
            "each played "
            "by the real master, at the chosen push interval",
            "off: predicted against measured; own lives: predicted by a fit to the measured lives themselves",
            "costs: heavy (see chunk_size)",
            f"predicted is off by {min(off):.1f} to {max(off):.1f}%; regret at most {max(regret):.1f}%, goal 5%",
        ],
        folder,
    )


def _row(
    case: Case, family: str, mode: str, choice: Choice, own: float | None, played: dict[float, Measured]
) -> dict[str, Cell]:
    goodput = {factor: each.goodput for factor, each in played.items()}
    best = max(goodput, key=goodput.__getitem__)
    seen = played[1.0].lives
    return {
        "kills": case.name,
        "law": family,
        "mode": mode,
        "lives": len(seen),
        "deaths": seen.deaths,
        "apart": seen.independent_deaths,
        "chunk": choice.chunk,
        "push every": choice.push_every,
        "predicted": choice.goodput,
        "master": goodput[1.0],
        "off %": 100 * (choice.goodput / goodput[1.0] - 1),
        "off, own lives %": None if own is None else 100 * (own / goodput[1.0] - 1),
        "best": goodput[best],
        "at": best,
        "regret %": 100 * (1 - goodput[1.0] / goodput[best]),
    }


def _storms(quick: bool) -> list[Case]:
    until_s = sized(5 if quick else 25, 2) * MEAN_S
    cases = []
    for every, share in STORMS[1:] if quick else ((None, None), *STORMS):

        def script(seed: int, every: float | None = every, share: float | None = share) -> Script:
            base = ScriptedLives(MACHINES, Exponential(MEAN_S), seed, graceful_share=0.0, late=0)
            return base if every is None or share is None else Storms(base, every * MEAN_S, share, seed)

        costs = costs_of(MEAN_S, 1e4, 0.05, 0.01)
        seen = play(Machines.until(until_s, script(1), MACHINES, MEAN_S), costs, MODES[1], 3000, None).lives
        name = "each on its own" if every is None else f"{share:.0%} at once, every {every:g} mean lives"
        cases.append(Case(name, script(2), MACHINES, until_s, seen))
    return cases


def _traces(files: Sequence[Path], quick: bool) -> list[Case]:
    cases = []
    for file in files:
        if file.parent.name != "bamboo" or (quick and file.suffix != ".csv"):
            continue
        record = read_record(file)
        seen = Observations.of(record.lives, record.end_s)
        name = f"bamboo {file.stem}"
        cases.append(Case(name, Replay(events(record), graceful_share=0.0), _at_once(record), record.end_s, seen))
    return cases


def events(record: Record) -> tuple[TraceEvent, ...]:
    """Return a record as nodes that join and leave, one node for each life."""
    events = []
    for number, life in enumerate(record.lives):
        events.append(TraceEvent(life.start_s, f"n{number}", joined=True))
        if life.end_s is not None:
            events.append(TraceEvent(life.end_s, f"n{number}", joined=False))
    return tuple(sorted(events, key=lambda event: (event.time_s, not event.joined)))


def _at_once(record: Record) -> int:
    """Return the largest number of machines at one time."""
    present = largest = 0
    for event in events(record):
        present += 1 if event.joined else -1
        largest = max(largest, present)
    return largest

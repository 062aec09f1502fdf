"""Evaluate the chosen chunk size: against sweeps over four decades, on lives it was not fitted to, in the real master
under a virtual clock, and with correlated kills.

Needs matplotlib for the plot, and for recorded lives the folder named by GRIDML_DATA (with spot/ in it).

    python -m benchmarks.chunk_size [--quick]
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.chunk_size import correlated
from benchmarks.chunk_size.halves import Choices, Split, evaluate, splits_of
from benchmarks.chunk_size.master import play_lives
from benchmarks.chunk_size.plot import Curve, draw
from benchmarks.chunk_size.tables import write_drawn, write_halves, write_master, write_sizes
from benchmarks.chunk_size.traces import (
    DECADES,
    MODES,
    Mode,
    Setting,
    chosen_for,
    families,
    sweep,
    trace_files,
    traces,
)
from benchmarks.table import Cell, results
from chunk_model.goodput import Costs
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.paper import deterministic_chunk, stochastic_chunk_as_printed
from chunk_model.replay import replay
from gridml.protocol.messages import MAX_PUSH_INTERVAL_S


@dataclass(frozen=True)
class Effort:
    """The extent of the measurements."""

    a_decade: int = 12  #: sizes per decade of the sweep
    seeds: int = 20
    lives: int = 120  #: that the real master plays at a point
    resamplings: int = 100
    draws: int = 10  #: of each number of lives
    traces: int | None = None  #: the first of them; None: all


QUICK = Effort(a_decade=3, seeds=3, lives=40, resamplings=50, draws=2, traces=3)
SMALLEST = Effort(a_decade=1, seeds=1, lives=4, resamplings=2, draws=1, traces=0)


Evaluated = tuple[dict[str, Cell], dict[str, Cell] | None]  # rows on halves of a trace, and on lives drawn from it


@dataclass(frozen=True)
class Measured:
    """The rows of one setting, table by table, and its curves."""

    sizes: list[dict[str, Cell]]
    halves: list[dict[str, Cell]]
    drawn: list[dict[str, Cell]]
    master: list[dict[str, Cell]]
    curves: list[Curve]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute: coarse sweeps, few traces and seeds")
    parser.add_argument("--results", type=Path, default=results(), help="folder to write to")
    options = parser.parse_args()
    began = time.monotonic()
    effort = sized(QUICK if options.quick else Effort(), SMALLEST)
    files = sized(trace_files(), [])
    if not files:
        print("GRIDML_DATA names no folder with spot/ in it: families and Figure 4 only", flush=True)
    settings = [*families(), *traces(files[: effort.traces])]
    settings = sized(settings, settings[-1:])
    sizes: list[dict[str, Cell]] = []
    halves: list[dict[str, Cell]] = []
    drawn: list[dict[str, Cell]] = []
    master: list[dict[str, Cell]] = []
    curves: list[Curve] = []
    # Settings are independent, and nothing is timed, so they run in parallel.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for setting, result in zip(settings, pool.map(measured, settings, repeat(effort)), strict=True):
            sizes += result.sizes
            halves += result.halves
            drawn += result.drawn
            master += result.master
            curves += result.curves
            print(f"{time.monotonic() - began:4.0f} s  {setting.name}", flush=True)
    without = [] if files else ["GRIDML_DATA named no folder with spot/ in it: families and Figure 4 only"]
    write_sizes(sizes, without, options.results)
    if halves:
        write_halves(halves, options.results)
    if drawn:
        write_drawn(drawn, effort.draws, options.results)
    write_master(master, without, options.results)
    correlated.compare(files, quick=options.quick or smallest(), folder=options.results)
    draw(curves, options.results / "chunk_size.png")
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


def measured(setting: Setting, effort: Effort) -> Measured:
    """Measure one setting: both costs, all modes."""
    sizes: list[dict[str, Cell]] = []
    evaluated: list[Evaluated] = []
    master: list[dict[str, Cell]] = []
    curves: list[Curve] = []
    splits = splits_of(setting, effort.seeds, effort.draws)
    for name, costs in setting.costs.items():
        for mode in MODES:
            row, curve, others = measure(setting, name, costs, mode, splits, effort)
            sizes.append(row)
            evaluated += [others] if others is not None else []
            curves += [curve] if mode == MODES[0] and name != "light" else []
            if name != "light":
                master += played(setting, name, costs, mode, row, effort)
    halves, drawn = [each[0] for each in evaluated], [each[1] for each in evaluated if each[1] is not None]
    return Measured(sizes, halves, drawn, master, curves)


def measure(
    setting: Setting, name: str, costs: Costs, mode: Mode, splits: Sequence[Split], effort: Effort
) -> tuple[dict[str, Cell], Curve, Evaluated | None]:
    """Return the choice against the sweep on all lives, the curve, and the splits' choices against the other lives."""
    choice = chosen_for(setting.law, costs, mode)
    seen = setting.law if setting.observations is None else KaplanMeier.of(setting.observations)
    others = [chosen_for(law, costs, mode) for law in (seen, *(law for split in splits for law in split.laws))]
    most = setting.mean_s / costs.vertex_s
    decades = [(max(1, round(most * share)), choice.push_every) for share in DECADES]
    decades = [(n, None if m is None else min(n, m)) for n, m in decades]
    bare = replace(costs, push_s=None)
    paper = [(deterministic_chunk(setting.law.mean(), bare), None)]
    paper += [(stochastic_chunk_as_printed(setting.law, bare, np.array([n for n, _ in decades])), None)]
    chosen = [(each.chunk, each.push_every) for each in (choice, *others)]
    swept = sweep(setting, costs, mode, effort.a_decade, [*chosen, *decades])
    goodput = swept.goodput()
    grid = len(goodput) - len(chosen) - len(decades)
    best = int(np.argmax(goodput[: grid + 2]))  # with the two choices: a grid misses the best point of a ragged curve
    lives = setting.duration_s
    events = setting.groups().max() + 1
    replayed = replay(lives, mode.costs(costs), choice.chunk, choice.push_every, mode.many)
    worst = float(goodput[:grid].min())
    row: dict[str, Cell] = {
        "setting": setting.name,
        "lives": len(lives),
        "apart": int(events),
        "law": setting.reason.split("(")[0],
        "costs": name,
        "mode": str(mode),
        "chunk": choice.chunk,
        "push every": choice.push_every,
        "predicted": choice.goodput,
        "simulated": replayed.goodput,
        "±": (replayed.high - replayed.low) / 2,
        "best": float(goodput[best]),
        "best chunk": int(swept.chunk[best]),
        "best every": int(swept.every[best]) or None,
        "regret %": _percent_lost(goodput[grid], goodput[best]),
        "regret, as seen %": _percent_lost(goodput[grid + 1], goodput[best]),
        **{f"at {share:g}": float(at) for share, at in zip(DECADES, goodput[-len(decades) :], strict=True)},
        "best/worst": f"{goodput[best] / worst:.3g}" if worst > 1e-9 else "nothing finishes",
    }
    if not mode.pushes:
        for title, (n, m) in zip(("deterministic", "stochastic"), paper, strict=True):
            row[f"paper, {title}"] = replay(lives, bare, n, m, mode.many).goodput
    curve = Curve(
        setting.name,
        swept.chunk[:grid] / most,
        goodput[:grid],
        choice.chunk / most,
        replayed.goodput,
        paper[0][0] / most,
    )
    # The choices for all lives, and for them as seen, come before those of the splits.
    choices = Choices(swept, grid, grid + 2)
    evaluated = evaluate(setting, name, mode, choices, splits, effort.resamplings) if splits else None
    return row, curve, evaluated


def _percent_lost(mine: float, best: float) -> float:
    return float(100 * (1 - mine / best))


# --- the real master


def played(
    setting: Setting, name: str, costs: Costs, mode: Mode, row: dict[str, Cell], effort: Effort
) -> list[dict[str, Cell]]:
    """Play the chosen size, a fifth and five times of it by the real master, and replay the same."""
    lives = setting.duration_s
    some = np.random.default_rng(2).permutation(lives)[: effort.lives]
    chunk, every = int(row["chunk"] or 0), row["push every"]
    factors = (1.0, 0.2, 5.0) if mode in (MODES[0], MODES[-1]) else (1.0,)
    rows: list[dict[str, Cell]] = []
    for factor in factors:
        n = max(1, round(chunk * factor))
        # A real worker pushes after MAX_PUSH_INTERVAL_S at the latest, so the replay must not use a longer interval.
        m = None if every is None else min(n, int(every), max(1, int(MAX_PUSH_INTERVAL_S / costs.exec_s)))
        began = time.perf_counter()
        real = play_lives(some, costs, mode, n, m)
        same = replay(some, mode.costs(costs if mode.many else replace(costs, boot_s=0.0)), n, m, mode.many)
        rows.append(
            {
                "setting": setting.name,
                "costs": name,
                "mode": str(mode),
                "chunk": n,
                "push every": m,
                "of the choice": factor,
                "lives": real.workers,
                "credits": real.credits,
                "master": real.goodput,
                "replay": same.goodput,
                "off %": 100 * (real.goodput / same.goodput - 1) if same.goodput else None,
                "predicted": row["predicted"] if factor == 1 else None,
                "seconds": time.perf_counter() - began,
            }
        )
    return rows

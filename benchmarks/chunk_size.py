"""How good the chosen chunk size is: against sweeps over four decades, on lives it was not fitted to, in the real
master under a virtual clock, and with kills that come together.

Needs matplotlib for the plot, and for recorded lives the folder named by GRIDML_DATA (with spot/ in it).

    python -m benchmarks.chunk_size [--quick]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import chunk_correlated
from benchmarks.chunk_master import play_lives
from benchmarks.chunk_plot import Curve, draw
from benchmarks.chunk_tables import MANY_LIVES, write_halves, write_master, write_sizes
from benchmarks.chunk_traces import (
    DECADES,
    MODES,
    Mode,
    Setting,
    Sweep,
    chosen_for,
    families,
    fitted,
    sweep,
    trace_files,
    traces,
)
from benchmarks.table import RESULTS, Cell
from chunk_model.costs import Costs
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import Floats, Lifetime
from chunk_model.observations import Observations
from chunk_model.paper import deterministic_chunk, stochastic_chunk_as_printed
from chunk_model.replay import simulate


@dataclass(frozen=True)
class Effort:
    a_decade: int = 12
    seeds: int = 20
    lives: int = 120  # that the real master plays at a point
    resamplings: int = 100
    traces: int | None = None


QUICK = Effort(a_decade=3, seeds=3, lives=40, resamplings=50, traces=3)


@dataclass(frozen=True)
class Split:
    """A law fitted to one part of a trace, and who is left to judge it: bool [lives]."""

    law: Lifetime
    judges: NDArray[np.bool_]
    by_time: bool


def main() -> None:
    parser = argparse.ArgumentParser(description="Regret of the chosen chunk size.", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a minute: coarse sweeps, few traces and seeds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    options = parser.parse_args()
    began = time.monotonic()
    effort = QUICK if options.quick else Effort()
    files = trace_files()
    if not files:
        print("GRIDML_DATA names no folder with spot/ in it: families and Figure 4 only", flush=True)
    settings = [*families(), *traces(files[: effort.traces])]
    sizes: list[dict[str, Cell]] = []
    halves: list[dict[str, Cell]] = []
    master: list[dict[str, Cell]] = []
    curves: list[Curve] = []
    for setting in settings:
        splits = _splits(setting, effort.seeds)
        for name, costs in setting.costs.items():
            for mode in MODES:
                row, curve, judged = measure(setting, name, costs, mode, splits, effort)
                sizes.append(row)
                halves += judged
                curves += [curve] if mode == MODES[0] and name != "light" else []
                if name != "light":
                    master += played(setting, name, costs, mode, row, effort)
        print(f"{time.monotonic() - began:4.0f} s  {setting.name}", flush=True)
    without = [] if files else ["GRIDML_DATA named no folder with spot/ in it: families and Figure 4 only"]
    write_sizes(sizes, without, options.results)
    if halves:
        write_halves(halves, options.results)
    write_master(master, without, options.results)
    chunk_correlated.compare(files, quick=options.quick, folder=options.results)
    draw(curves, options.results / "chunk_size.png")
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


def measure(
    setting: Setting, name: str, costs: Costs, mode: Mode, splits: Sequence[Split], effort: Effort
) -> tuple[dict[str, Cell], Curve, list[dict[str, Cell]]]:
    """The choice against the sweep on all lives, the curve, and the choices of the splits against their judges."""
    choice = chosen_for(setting.law, costs, mode)
    seen = setting.law if setting.observations is None else KaplanMeier.of(setting.observations)
    others = [chosen_for(law, costs, mode) for law in (seen, *(split.law for split in splits))]
    most = setting.mean_s / costs.vertex_s
    decades = [(max(1, round(most * share)), choice.push_every) for share in DECADES]
    decades = [(n, None if m is None else min(n, m)) for n, m in decades]
    bare = replace(costs, push_s=None)
    paper = [(deterministic_chunk(setting.law.mean(), bare), None)]
    paper += [(stochastic_chunk_as_printed(setting.law, bare, np.array([n for n, _ in decades])), None)]
    chosen = [(each.chunk, each.push_every) for each in (choice, *others)]
    found = sweep(setting, costs, mode, effort.a_decade, [*chosen, *decades])
    goodput = found.goodput()
    grid = len(goodput) - len(chosen) - len(decades)
    best = int(np.argmax(goodput[: grid + 2]))  # the two choices too: where curves are ragged, a grid misses the best
    lives = setting.duration_s
    apart = setting.groups().max() + 1
    replayed = simulate(lives, mode.costs(costs), choice.chunk, choice.push_every, mode.many)
    worst = float(goodput[:grid].min())
    row: dict[str, Cell] = {
        "setting": setting.name,
        "lives": len(lives),
        "apart": int(apart),
        "law": setting.said.split("(")[0],
        "costs": name,
        "mode": str(mode),
        "chunk": choice.chunk,
        "push every": choice.push_every,
        "predicted": choice.goodput,
        "simulated": replayed.goodput,
        "±": (replayed.high - replayed.low) / 2,
        "best": float(goodput[best]),
        "best chunk": int(found.chunk[best]),
        "best every": int(found.every[best]) or None,
        "regret %": _percent_lost(goodput[grid], goodput[best]),
        "regret, as seen %": _percent_lost(goodput[grid + 1], goodput[best]),
        **{f"at {share:g}": float(at) for share, at in zip(DECADES, goodput[-len(decades) :], strict=True)},
        "best/worst": f"{goodput[best] / worst:.3g}" if worst > 1e-9 else "nothing finishes",
    }
    if not mode.pushes:
        for title, (n, m) in zip(("deterministic", "stochastic"), paper, strict=True):
            row[f"paper, {title}"] = simulate(lives, bare, n, m, mode.many).goodput
    curve = Curve(
        setting.name,
        found.chunk[:grid] / most,
        goodput[:grid],
        choice.chunk / most,
        replayed.goodput,
        paper[0][0] / most,
    )
    judged = [_judged(setting, name, mode, found, grid, splits, effort)] if splits else []
    return row, curve, judged


# --- lives that were not seen


def _splits(setting: Setting, seeds: int) -> list[Split]:
    """The first half of a trace against the second, and random halves; what died at one instant stays together."""
    seen, start_s = setting.observations, setting.start_s
    if seen is None or start_s is None or seen.end_at_s is None:
        return []
    middle = float(np.median(start_s))
    early, late = start_s < middle, start_s >= middle
    ended = seen.ended & (seen.end_at_s <= middle)
    lasted = np.minimum(seen.duration_s, middle - start_s)
    known = Observations(lasted[early], ended[early], np.minimum(seen.end_at_s, middle)[early])
    splits = [Split(fitted(known)[0], late, by_time=True)] if early.any() else []
    groups = seen.groups()
    count = int(groups.max()) + 1
    for seed in range(seeds):
        mine = (np.random.default_rng(seed).permutation(count) < count / 2)[groups]
        splits.append(Split(fitted(seen.take(mine))[0], ~mine, by_time=False))
    return splits


def _judged(
    setting: Setting, name: str, mode: Mode, found: Sweep, grid: int, splits: Sequence[Split], effort: Effort
) -> dict[str, Cell]:
    """Regret of each split's choice on its judges; of what is best for all lives, for comparison; and its interval."""
    groups = setting.groups()
    weight = np.stack([split.judges for split in splits]).astype(np.float64)
    goodput = found.goodput(weight)
    first = grid + 2  # the choice for all lives, and the one for them as seen, come before
    mine = goodput[np.arange(len(splits)), first + np.arange(len(splits))]
    best = goodput[:, :grid].max(axis=1)
    regret = 100 * (1 - mine / best)
    everybody = 100 * (1 - goodput[:, int(np.argmax(found.goodput()[:grid]))] / best)
    by_time = np.array([split.by_time for split in splits])
    enough = len(setting.duration_s) >= MANY_LIVES
    row: dict[str, Cell] = {
        "trace": setting.name,
        "lives": len(setting.duration_s),
        "apart": int(groups.max()) + 1,
        "costs": name,
        "mode": str(mode),
        "second half %": float(regret[by_time][0]) if by_time.any() else None,
        "random halves %": float(regret[~by_time].mean()),
        "worst %": float(regret[~by_time].max()),
        "best of all %": float(everybody[~by_time].mean()),
    }
    if not enough:
        lost = _resampled(found, grid, first, weight, groups, effort.resamplings)
        row["95% of random halves"] = _interval(lost[~by_time])
        row["95% of second half"] = _interval(lost[by_time]) if by_time.any() else None
    return row


def _resampled(found: Sweep, grid: int, first: int, weight: Floats, groups: NDArray[np.intp], times: int) -> Floats:
    """[splits, times] regret in percent, with the judges resampled; deaths at one instant are drawn together."""
    rng, count = np.random.default_rng(0), int(groups.max()) + 1
    lost = np.empty((len(weight), times))
    for at, judges in enumerate(weight):
        inside = np.unique(groups[judges > 0])
        drawn = np.stack([np.bincount(rng.choice(inside, len(inside)), minlength=count) for _ in range(times)])
        goodput = found.goodput(drawn[:, groups] * judges)
        best = goodput[:, :grid].max(axis=1)
        lost[at] = 100 * (1 - goodput[:, first + at] / np.maximum(best, 1e-300))
    return lost


def _interval(lost: Floats) -> str:
    low, high = np.quantile(lost, [0.025, 0.975])
    return f"{max(low, 0):.1f} to {max(high, 0):.1f}"


def _percent_lost(mine: float, best: float) -> float:
    return float(100 * (1 - mine / best))


# --- the real master


def played(
    setting: Setting, name: str, costs: Costs, mode: Mode, row: dict[str, Cell], effort: Effort
) -> list[dict[str, Cell]]:
    """The chosen point, and a fifth and five times its size, played by the real master, and replayed."""
    lives = setting.duration_s
    some = np.random.default_rng(2).permutation(lives)[: effort.lives]
    chunk, every = int(row["chunk"] or 0), row["push every"]
    factors = (1.0, 0.2, 5.0) if mode in (MODES[0], MODES[-1]) else (1.0,)
    rows: list[dict[str, Cell]] = []
    for factor in factors:
        n = max(1, round(chunk * factor))
        m = None if every is None else min(n, int(every))
        began = time.perf_counter()
        found = play_lives(some, costs, mode, n, m)
        same = simulate(some, mode.costs(costs if mode.many else replace(costs, boot_s=0.0)), n, m, mode.many)
        rows.append(
            {
                "setting": setting.name,
                "costs": name,
                "mode": str(mode),
                "chunk": n,
                "push every": m,
                "of the choice": factor,
                "lives": found.workers,
                "credits": found.credits,
                "master": found.goodput,
                "replay": same.goodput,
                "off %": 100 * (found.goodput / same.goodput - 1) if same.goodput else None,
                "predicted": row["predicted"] if factor == 1 else None,
                "seconds": time.perf_counter() - began,
            }
        )
    return rows


if __name__ == "__main__":
    main()

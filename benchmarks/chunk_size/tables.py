"""The tables of `benchmarks.chunk_size`, with summaries."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from benchmarks.chunk_size.halves import DRAWN, MANY_LIVES, RANDOM, REFITTED, SECOND_HALF
from benchmarks.chunk_size.traces import MODES
from benchmarks.table import Cell, write

GOAL = 5.0  # percent of regret


def write_sizes(rows: list[dict[str, Cell]], without: list[str], folder: Path) -> None:
    drawn = [row for row in rows if row["law"] == _head(row["setting"]) or row["setting"] == "figure 4"]
    off = {id(row): abs(100 * (_of(row, "predicted") / _of(row, "simulated") - 1)) for row in rows}
    most = max(drawn, key=lambda row: off[id(row)])
    missed = [row for row in rows if _of(row, "regret %") > GOAL]
    pushed = [row for row in rows if "pushes" in str(row["mode"])]
    enough = [row for row in rows if _of(row, "lives") >= MANY_LIVES]
    notes = [
        "every row: four decades of chunk size, from 1/1000 to 10 times the vertices that a mean life could train; "
        "with pushes, every interval, too; simulated by chunk_model.replay on the same lives for all points",
        "families: chosen for the true law, 20,000 lives drawn. Traces: chosen for the lives as seen (four fifths) "
        "and the selected family (law), evaluated on the trace's own lives; censored lives are completed by Kaplan "
        "and Meier. apart: independent deaths; those at one instant count once",
        "light: a mean life holds 100,000 vertices, start 1% of it, push 0.1%; heavy: 10,000 vertices, start 5%, "
        "push 1%; both: copying a tenth of training, end a tenth of start, wait and boot as long as start",
        "figure 4: a million vertices and lives of 45 minutes on average, normal, as in the paper; their deviation of "
        "10 minutes, t_x 0.1 s, t_c 0.01 s, t_s 60 s, t_e 6 s, push 6 s, wait and boot 60 s are ours",
        "regret: the loss of the choice against the best simulated point, of the sweep or chosen; goal at most "
        f"{GOAL:g}%. Missed in {len(missed)} of {len(rows)} rows; worst: {_worst(rows)}; with pushes: "
        f"{_worst(pushed)}; with {MANY_LIVES} lives or more: {_worst(enough)}",
        "regret, as seen: the same for a choice for the lives as seen alone; worst: "
        + _worst(rows, "regret, as seen %"),
        f"predicted against simulated where the law is known: at most {off[id(most)]:.2f}% off "
        f"({most['setting']}, {most['costs']}, {most['mode']}); goal 2%",
        "at 0.001 … 10: simulated goodput of chunks of that share of a mean life, at the chosen push interval",
        *_paper(rows),
        *without,
    ]
    write("chunk_size", "The chosen chunk size against the best of a sweep", rows, notes, folder)


def _paper(rows: list[dict[str, Cell]]) -> list[str]:
    bare = [row for row in rows if row["mode"] == str(MODES[0])]
    ratios = [float(str(row["best/worst"])) for row in bare if str(row["best/worst"])[0].isdigit()]
    never = len(bare) - len(ratios)
    least, most = (end(ratios, default=math.nan) for end in (min, max))
    kept = {
        name: [_of(row, f"paper, {name}") / _of(row, "best") for row in bare]
        for name in ("deterministic", "stochastic")
    }
    return [
        "the paper: a bad size costs up to two orders of magnitude. Here, all or nothing, one chunk a life, the best "
        f"is {least:.3g} to {most:.3g} times as good as the worst of the four decades, and in {never} of "
        f"{len(bare)} rows nothing at all finishes at the worst",
        f"the paper's choices there: deterministic, n = T/(t_c + t_x), has {100 * min(kept['deterministic']):.2g} to "
        f"{100 * max(kept['deterministic']):.2g}% of the best goodput; stochastic as printed, always the largest size, "
        f"{100 * min(kept['stochastic']):.2g} to {100 * max(kept['stochastic']):.2g}%",
    ]


def write_halves(rows: list[dict[str, Cell]], folder: Path) -> None:
    enough = [row for row in rows if _of(row, "lives") >= MANY_LIVES]
    independent = [row for row in enough if _of(row, "apart") >= MANY_LIVES]
    pushed = [row for row in enough if "pushes" in str(row["mode"])]
    notes = [
        "regret in percent on lives that the choice was not fitted to, against the size that is best for them, which "
        "could not be known",
        "second half: fitted to the lives known when half of them had begun; as a run refits: and again, for later "
        "lives, whenever a master would",
        "random halves: mean and worst of 20 (of 3 with --quick); deaths at one instant stay in one half, so the "
        "effective number of lives is that of independent deaths (apart)",
        "best of all: the loss, by chance, of even the size that is best for the whole trace on the random halves",
        "95%: interval of the regret over resampled lives (and halves), for traces of less than 300 lives",
        f"with {MANY_LIVES} lives or more, random halves: {_missed(enough, RANDOM)}",
        f"with {MANY_LIVES} independent deaths or more, random halves: {_missed(independent, RANDOM)}",
        f"with {MANY_LIVES} lives or more and pushes, random halves: {_missed(pushed, RANDOM)}",
        f"with {MANY_LIVES} lives or more, second half: {_missed(enough, SECOND_HALF)}",
        f"with {MANY_LIVES} lives or more, as a run refits: {_missed(enough, REFITTED)}",
    ]
    write("chunk_size_halves", "Chosen on half of a trace, evaluated on the other half", rows, notes, folder)


def write_drawn(rows: list[dict[str, Cell]], seeds: int, folder: Path) -> None:
    missed = {method: sum(_of(row, method) > GOAL for row in rows) for method in DRAWN}
    notes = [
        f"regret in percent, mean of {seeds}: chosen for a number of independent lives drawn from a trace (as if it "
        "were the law), and evaluated by as many others; deaths at one instant are drawn together and count once",
        f"more than {GOAL:g}%: "
        + ", ".join(f"{missed[method]} of {len(rows)} rows {method.removesuffix(' %')}" for method in DRAWN),
    ]
    write("chunk_size_drawn", "The number of independent lives that a choice needs", rows, notes, folder)


def _missed(rows: list[dict[str, Cell]], column: str) -> str:
    over = [row for row in rows if _of(row, column) > GOAL]
    each = "".join(f"; {row['trace']}, {row['costs']}, {row['mode']}: {_of(row, column):.1f}%" for row in over)
    return f"more than {GOAL:g}% in {len(over)} of {len(rows)} rows{each}"


def write_master(rows: list[dict[str, Cell]], without: list[str], folder: Path) -> None:
    def off(chosen: list[dict[str, Cell]]) -> str:
        values = [_of(row, "off %") for row in chosen if row["off %"] is not None]
        return f"{min(values):+.2f} to {max(values):+.2f}%, median {np.median(values):+.2f}%"

    notes = [
        "the real master in the simulator plays the lives of the replay, each once, one after the other on 32 "
        "machines; goodput: credited vertices · t_x / (seconds from start to end of every worker + its wait)",
        f"all or nothing: master against replay {off([r for r in rows if r['push every'] is None])}",
        f"pushes, at the choice: {off([r for r in rows if r['push every'] is not None and r['of the choice'] == 1])}",
        f"pushes, other sizes: {off([r for r in rows if r['push every'] is not None and r['of the choice'] != 1])}: "
        "the master leases the rest of a killed worker's lease as it is, so chunks are shorter than requested, which "
        "costs goodput where starting is expensive and gains where chunks are too large",
        *without,
    ]
    write(
        "chunk_size_master",
        "The real master in the simulator against the replay of the same lives",
        rows,
        notes,
        folder,
    )


def _worst(rows: list[dict[str, Cell]], column: str = "regret %") -> str:
    row = max(rows, key=lambda each: _of(each, column))
    return f"{_of(row, column):.2f}% ({row['setting']}, {row['lives']} lives, {row['costs']}, {row['mode']})"


def _of(row: dict[str, Cell], column: str) -> float:
    value = row.get(column)
    return 0.0 if value is None else float(value)


def _head(text: Cell) -> str:
    return str(text).split(",")[0]

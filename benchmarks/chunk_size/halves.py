"""Chunk sizes on lives that they were not chosen for: other halves of a trace, and lives resampled from it.

A trace is split by time, and at random. The first half is also played like a run, which chooses again whenever enough
machines have died. In addition, lives are drawn from the trace as if it were the law, to find the number of
independent lives after which a choice is nearly the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.chunk_size.traces import Mode, Setting, Sweep, fitted
from benchmarks.table import Cell
from chunk_model.lifetime import Floats, Lifetime
from chunk_model.observations import Observations
from master.leases.sizing import SeenLives, is_due

MANY_LIVES = 300  # with as many, a choice should be good for lives that were not seen
SECOND_HALF, REFITTED, RANDOM = "second half %", "as a run refits %", "random halves %"
DRAWN = {"of 75 %": 75, "of 150 %": 150, "of 300 %": 300, "of 600 %": 600, "of 1200 %": 1200}  # independent lives


@dataclass(frozen=True)
class Split:
    """Laws fitted to some lives, and other lives to evaluate the choices by."""

    method: str
    laws: tuple[Lifetime, ...]
    plays: NDArray[np.intp]  #: [lives] the index of the law by which the size for a life is chosen
    weight: Floats  #: [lives] the frequency of each life among the other lives


def splits_of(setting: Setting, seeds: int, draws: int) -> list[Split]:
    """Return all splits of a trace, and none of lives drawn from a family. Simultaneous deaths stay together."""
    seen = setting.observations
    if seen is None or setting.start_s is None or seen.end_at_s is None:
        return []
    events = int(setting.groups().max()) + 1
    splits = [*_by_time(seen, setting.start_s), *_at_random(seen, seeds)]
    # With more independent lives than the largest draw, the random halves already answer the question.
    if len(seen) >= MANY_LIVES and events < max(DRAWN.values()):
        splits += _drawn(seen, draws)
    return splits


def _by_time(seen: Observations, start_s: Floats) -> Iterator[Split]:
    middle = float(np.median(start_s))
    late = (start_s >= middle).astype(np.float64)
    if late.all():
        return
    moments = [middle, *_refits(seen, start_s, middle)]
    laws = tuple(fitted(_seen_at(seen, start_s, moment))[0] for moment in moments)
    yield Split(SECOND_HALF, laws[:1], np.zeros(len(seen), np.intp), late)
    yield Split(REFITTED, laws, np.maximum(np.searchsorted(moments, start_s, side="right") - 1, 0), late)


def _seen_at(seen: Observations, start_s: Floats, moment: float) -> Observations:
    """Return the observations at a moment: lives that had begun, censored if they went on."""
    assert seen.end_at_s is not None
    begun = start_s < moment
    ended = (seen.ended & (seen.end_at_s <= moment))[begun]
    lasted = np.minimum(seen.duration_s, moment - start_s)[begun]
    return Observations(lasted, ended, np.minimum(seen.end_at_s, moment)[begun])


def _refits(seen: Observations, start_s: Floats, begin: float) -> Iterator[float]:
    """Yield the moments after `begin` at which a master would choose again."""
    end_at_s = seen.end_at_s
    assert end_at_s is not None

    def seen_by(moment: float, deaths: int) -> SeenLives:
        lived = np.clip(np.minimum(end_at_s, moment) - start_s, 0, seen.duration_s)
        return SeenLives(deaths, float(lived.sum()), moment)

    died = np.sort(end_at_s[seen.ended])
    last = seen_by(begin, int(np.searchsorted(died, begin, side="right")))
    for moment in np.unique(died[died > begin]).tolist():
        now = seen_by(moment, int(np.searchsorted(died, moment, side="right")))
        if is_due(now, last)[0]:
            last = now
            yield moment


def _at_random(seen: Observations, seeds: int) -> Iterator[Split]:
    groups = seen.groups()
    count = int(groups.max()) + 1
    for seed in range(seeds):
        mine = (np.random.default_rng(seed).permutation(count) < count / 2)[groups]
        yield Split(RANDOM, (fitted(seen.take(mine))[0],), np.zeros(len(seen), np.intp), (~mine).astype(np.float64))


def _drawn(seen: Observations, seeds: int) -> Iterator[Split]:
    """Yield splits: laws fitted to independent events that are drawn from all events, evaluated by all lives."""
    assert seen.end_at_s is not None
    groups, members = seen.groups(), seen.members()
    shift_s = 2 * (np.ptp(seen.end_at_s) + 1)  # between draws: an event that is drawn twice counts as two events
    for method, count in DRAWN.items():
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            mine, others = rng.integers(len(members), size=(2, count))
            chosen = [members[each] for each in mine]
            index = np.concatenate(chosen)
            event = np.repeat(np.arange(count), [len(each) for each in chosen])
            lives = Observations(
                seen.duration_s[index], seen.ended[index], seen.end_at_s[index] + shift_s * event.astype(np.float64)
            )
            weight = np.bincount(others, minlength=len(members))[groups].astype(np.float64)
            yield Split(method, (fitted(lives)[0],), np.zeros(len(seen), np.intp), weight)


# --- evaluated


@dataclass(frozen=True)
class Choices:
    """A sweep over a grid of sizes and over chosen sizes."""

    sweep: Sweep
    grid: int  #: the number of first points that are a grid of sizes
    first: int  #: the first point that was chosen for a law; the others follow in the order of splits


def evaluate(
    setting: Setting, name: str, mode: Mode, choices: Choices, splits: Sequence[Split], times: int
) -> tuple[dict[str, Cell], dict[str, Cell] | None]:
    """Return the regrets of a trace's halves, and of lives drawn from it if they were.

    Where lives are few, regrets are given with their interval from `times` resamplings of the other lives.
    """
    swept, grid, first = choices.sweep, choices.grid, choices.first
    groups = setting.groups()
    best_of_all = int(np.argmax(swept.goodput()[:grid]))
    regret: dict[str, list[float]] = {}
    likely: dict[str, list[Floats]] = {}
    chance: list[float] = []
    few = len(setting.duration_s) < MANY_LIVES
    for split in splits:
        lost = _lost(replace(choices, first=first), split, split.weight[None])
        regret.setdefault(split.method, []).append(float(lost[0]))
        if split.method == RANDOM:
            goodput = swept.goodput(split.weight[None])[0, :grid]
            chance.append(float(100 * (1 - goodput[best_of_all] / goodput.max())))
        if few:
            likely.setdefault(split.method, []).append(
                _lost(replace(choices, first=first), split, _resampled(split.weight, groups, times))
            )
        first += len(split.laws)
    about: dict[str, Cell] = {
        "trace": setting.name,
        "lives": len(setting.duration_s),
        "apart": int(groups.max()) + 1,
        "costs": name,
        "mode": str(mode),
    }
    halves: dict[str, Cell] = dict(about)
    for method in (SECOND_HALF, REFITTED, RANDOM):
        halves[method] = float(np.mean(regret[method])) if method in regret else None
    halves["worst %"] = max(regret[RANDOM])
    halves["best of all %"] = float(np.mean(chance))
    for method in (SECOND_HALF, RANDOM):
        if method in likely:
            halves[f"95% of {method.removesuffix(' %')}"] = _interval(np.concatenate(likely[method]))
    drawn = {method: float(np.mean(regret[method])) for method in DRAWN if method in regret}
    return halves, {**about, **drawn} if drawn else None


def _lost(choices: Choices, split: Split, weight: Floats) -> Floats:
    """Return [weightings] regret in percent against the best point of the grid, for weights [weightings, lives]."""
    swept, first = choices.sweep, choices.first
    credited, paid = np.zeros(len(weight)), np.zeros(len(weight))
    for point in range(len(split.laws)):
        lives = split.plays == point
        credited += weight[:, lives] @ swept.credited[first + point, lives]
        paid += weight[:, lives] @ swept.paid_s[first + point, lives]
    best = swept.goodput(weight)[:, : choices.grid].max(axis=1)
    return np.asarray(100 * (1 - swept.exec_s * credited / paid / np.maximum(best, 1e-300)))


def _resampled(weight: Floats, groups: NDArray[np.intp], times: int) -> Floats:
    """Return [times, lives] the weights resampled; deaths at one instant are drawn together."""
    rng, count = np.random.default_rng(0), int(groups.max()) + 1
    inside = np.unique(groups[weight > 0])
    drawn = np.stack([np.bincount(rng.choice(inside, len(inside)), minlength=count) for _ in range(times)])
    return np.asarray(drawn[:, groups] * weight)


def _interval(lost: Floats) -> str:
    low, high = np.quantile(lost, [0.025, 0.975])
    return f"{max(low, 0):.1f} to {max(high, 0):.1f}"

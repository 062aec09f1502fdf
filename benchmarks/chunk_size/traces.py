"""The settings of `benchmarks.chunk_size`: lives of families and of recorded traces, costs, modes, and the sweep.

All simulation here is `chunk_model.replay`, which walks lives one by one and uses no formula of the model. Lives are
independent of each other, so one replay of all lives at a point of the sweep serves every half and every resampling.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_model.choose import Choice, Work, choose
from chunk_model.families import Exponential, LogNormal, Mixture, Normal, Weibull
from chunk_model.fit import select
from chunk_model.goodput import Costs
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import Floats, Lifetime
from chunk_model.observations import Observations
from chunk_model.parse import hedged
from chunk_model.prices import read_record
from chunk_model.replay import replay_each
from chunk_model.traces import Record

LIVES = 20_000  # drawn of a family
HOUR = 3600.0
DECADES = (0.001, 0.01, 0.1, 1.0, 10.0)  # relative to a mean life: the sweep's ends, and whole decades between

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Mode:
    """A mode of work."""

    many: bool  #: many chunks in a life, not one
    pushes: bool  #: with pushes, not all or nothing

    def __str__(self) -> str:
        return f"{'many chunks' if self.many else 'one chunk'} a life, {'pushes' if self.pushes else 'all or nothing'}"

    def costs(self, costs: Costs) -> Costs:
        return costs if self.pushes else replace(costs, push_s=None)


MODES = tuple(Mode(many, pushes) for pushes in (False, True) for many in (False, True))


@dataclass(frozen=True)
class Setting:
    """Lives to replay, and the law to choose for."""

    name: str
    duration_s: Floats  #: [lives] complete lives: those that were censored are completed
    law: Lifetime
    reason: str
    observations: Observations | None = None  #: of a trace
    start_s: Floats | None = None  #: [lives] of a trace
    own_costs: Costs | None = None

    @cached_property
    def mean_s(self) -> float:
        return float(self.duration_s.mean())

    @property
    def costs(self) -> dict[str, Costs]:
        """Two extremes: light costs, and heavy ones on machines that hold a tenth of the vertices."""
        if self.own_costs is not None:
            return {"figure 4": self.own_costs}
        return {"light": costs_of(self.mean_s, 1e5, 0.01, 0.001), "heavy": costs_of(self.mean_s, 1e4, 0.05, 0.01)}

    def groups(self) -> NDArray[np.intp]:
        """[lives] the independent event of each life: deaths at one instant are one event."""
        return np.arange(len(self.duration_s)) if self.observations is None else self.observations.groups()


def costs_of(mean_s: float, vertices: float, start: float, push: float) -> Costs:
    """Return costs by which a mean life could train and copy `vertices`. `start` and `push` are shares of a mean life:
    the start of a chunk, and a push."""
    vertex_s, start_s = mean_s / vertices, start * mean_s
    return Costs(
        exec_s=vertex_s / 1.1,
        copy_s=vertex_s - vertex_s / 1.1,
        start_s=start_s,
        end_s=start_s / 10,
        push_s=push * mean_s,
        wait_s=start_s,
        boot_s=start_s,
    )


def families() -> Iterator[Setting]:
    """Yield every family, chosen for its true law and evaluated on lives drawn from it, and the paper's Figure 4."""
    laws: dict[str, Lifetime] = {
        "normal": Normal(2700.0, 600.0),
        "exponential": Exponential(2700.0),
        "weibull": Weibull(0.7, 2133.0),
        "weibull, wearing out": Weibull(2.5, 3043.0),
        "lognormal": LogNormal(1638.0, 1.0),
        "mixture": Mixture((0.3, 0.7), (Exponential(300.0), Weibull(1.5, 7200.0))),
    }
    rng = np.random.default_rng(1)
    seen, until = laws["mixture"].sample(rng, 300), rng.uniform(600, 20_000, 300)
    laws["kaplan_meier"] = KaplanMeier.of(Observations(np.minimum(seen, until), seen <= until))
    for name, law in laws.items():
        yield Setting(name, law.sample(np.random.default_rng(0), LIVES), law, str(law))
    law = Normal(2700.0, 600.0)
    costs = Costs(exec_s=0.1, copy_s=0.01, start_s=60, end_s=6, push_s=6, wait_s=60, boot_s=60)
    yield Setting("figure 4", law.sample(np.random.default_rng(0), LIVES), law, str(law), own_costs=costs)


def trace_files() -> list[Path]:
    """Return the traces in $GRIDML_DATA/spot, sorted; none if there is no such folder."""
    data = os.environ.get("GRIDML_DATA")
    if not data:
        return []
    return sorted(file for file in Path(data, "spot").rglob("*") if file.suffix in (".csv", ".txt", ".json", ".gz"))


def traces(files: Sequence[Path]) -> Iterator[Setting]:
    """Yield every trace, chosen for the law fitted to its lives, and evaluated on those lives."""
    for file in files:
        yield of_record(_name(file), read_record(file))


def of_record(name: str, record: Record) -> Setting:
    observations = Observations.of(record.lives, record.end_s)
    law, reason = fitted(observations)
    start_s = np.array([life.start_s for life in record.lives])[: len(observations)]
    return Setting(name, completed(observations), law, reason, observations, start_s)


def fitted(observations: Observations) -> tuple[Lifetime, str]:
    """Return the law that the master would choose for, and the name of its family."""
    selected = select(observations)
    return hedged(selected.lifetime, observations), selected.family


def completed(observations: Observations) -> Floats:
    """Return complete lives [lives]: the rest of a censored one is drawn once from the estimate of Kaplan and Meier."""
    law, rng = KaplanMeier.of(observations), np.random.default_rng(0)
    reached = np.exp(law.log_survival(observations.duration_s))
    drawn = law.quantile(1 - reached * (1 - rng.random(len(observations))))
    return np.where(observations.ended, observations.duration_s, np.maximum(drawn, observations.duration_s))


def _name(file: Path) -> str:
    """Return a short name, such as "bamboo p3-trace" or "preemption us-east-1f_v100_1"."""
    stem = file.name.split(".")[0]
    folders = {"availability": "availability", "preemption": "preemption", "bamboo": "bamboo"}
    folder = next((folders[part] for part in file.parts if part in folders), "")
    nodes = next((f" {part}" for part in file.parts if part.endswith("-node") and not part.startswith("1-")), "")
    return f"{folder}{nodes} {stem}".strip()


# --- the sweep


@dataclass(frozen=True)
class Sweep:
    """The results of all lives at all points of a sweep."""

    chunk: Ints  #: [points] vertices
    every: Ints  #: [points] vertices between pushes; 0: no pushes
    credited: NDArray[np.float32]  #: [points, lives] vertices
    paid_s: NDArray[np.float32]  #: [points, lives]
    exec_s: float  #: of a vertex

    def goodput(self, weight: Floats | None = None) -> Floats:
        """Return the goodput [points], or [weightings, points] for weights [weightings, lives] of the lives."""
        if weight is None:
            return self.exec_s * np.asarray(self.credited.sum(1, np.float64) / self.paid_s.sum(1, np.float64))
        used = weight.astype(np.float32)
        return self.exec_s * np.asarray((used @ self.credited.T) / (used @ self.paid_s.T), np.float64)


def points(costs: Costs, mode: Mode, mean_s: float, a_decade: int) -> tuple[Ints, Ints]:
    """Return sizes over four decades, with push intervals: from a tenth of the smallest size on, and equal parts of the
    size."""
    whole = mean_s / costs.vertex_s
    low, high = whole * DECADES[0], whole * DECADES[-1]
    if not mode.pushes:
        chunk = _whole(low, high, 16 * a_decade + 1)
        return chunk, np.zeros_like(chunk)
    pairs = set()
    for n in _whole(low, high, 2 * a_decade + 1).tolist():
        intervals = _whole(low / 10, high, 2 * a_decade + a_decade // 2 + 1)
        pairs |= {(n, m) for m in intervals.tolist() if m <= n} | {(n, -(-n // parts)) for parts in range(1, 7)}
    chunk, every = np.array(sorted(pairs), np.int64).T
    return chunk, every


def sweep(
    setting: Setting, costs: Costs, mode: Mode, a_decade: int, extra: Sequence[tuple[int, int | None]] = ()
) -> Sweep:
    """Replay all lives at every point; those in `extra`, (chunk, push interval), come last."""
    chunk, every = points(costs, mode, setting.mean_s, a_decade)
    chunk = np.append(chunk, np.array([n for n, _ in extra], np.int64))
    every = np.append(every, np.array([m or 0 for _, m in extra], np.int64))
    credited = np.empty((len(chunk), len(setting.duration_s)), np.float32)
    paid = np.empty_like(credited)
    for at, (n, m) in enumerate(zip(chunk.tolist(), every.tolist(), strict=True)):
        credited[at], paid[at], _ = replay_each(setting.duration_s, mode.costs(costs), n, m or None, mode.many)
    return Sweep(chunk, every, credited, paid, costs.exec_s)


def chosen_for(law: Lifetime, costs: Costs, mode: Mode) -> Choice:
    return choose(law, mode.costs(costs), Work(many=mode.many))


def _whole(low: float, high: float, count: int) -> Ints:
    return np.unique(np.maximum(np.rint(np.geomspace(low, high, count)), 1).astype(np.int64))

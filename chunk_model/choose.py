"""Choice of the chunk size and the push interval, with a reason.

Without pushes the size with the best goodput is chosen: smaller chunks start too often, larger chunks lose more when a
machine dies. With pushes, the push interval limits the loss, and goodput hardly falls for larger chunks. Then the
smallest size that loses at most 1% of the best goodput is chosen, because an epoch ends with its last chunk, and
because small chunks can be leased again sooner. In an epoch of known length a chunk is at most an eighth of a worker's
share: at the end workers wait half a chunk on average, which is a sixteenth of their share. If starting a chunk is so
expensive that this bound loses more than it saves, the bound is a quarter, a half or all of the share instead.

A size is a whole number of batches. The result is deterministic, because resampling has a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import gammaincinv

from chunk_model.families import Mixture
from chunk_model.fit import fit
from chunk_model.goodput import Costs, job_s
from chunk_model.lifetime import Lifetime
from chunk_model.observations import Observations
from chunk_model.parse import hedged
from chunk_model.sizes import CLOSE, ROUGH, Ints, Sizes, grid

_CURVE = 64  # number of sizes on the reported curve
_LOSS = 0.01  # with pushes, a smaller chunk is chosen if it loses at most this share of the best goodput
_SLACK = 0.004  # part of _LOSS that is reserved for errors of the search
# ChoiceError if the goodput and the share of lives that complete any work in the smallest chunk are both below this.
_NEVER = 1e-3
_SELDOM = 0.05  # warning if a smaller share of lives than this completes any work
_OUTLIVED = 1e-9  # the longest chunk considered takes so long that only this share of workers would complete it
_MAX_BATCHES = 10**12  # maximum number of batches in a chunk, even for lifetimes with a very long tail
_RESAMPLINGS = 60
_RESAMPLINGS_OF_MIXTURE = 20  # fewer, because fitting a mixture takes a hundred times as long as fitting most families
_FEW = 10  # with fewer independent deaths than this, a fit depends more on its family than on the machines
_HEAVY = 0.5  # warning if the longest hundredth of the lives has more than this share of the machines' total time


class ChoiceError(ValueError):
    """No chunk can be chosen: the bounds contradict each other, or practically no chunk would finish."""


@dataclass(frozen=True)
class Work:
    """The work of an epoch and the bounds of a chunk. Raises ChoiceError unless each number is whole and at least 1;
    None stands for an unknown number."""

    vertices: int | None = None  #: vertices of an epoch
    workers: int | None = None  #: workers that share the epoch
    batch: int = 1  #: vertices of a batch; chunks and push intervals are whole batches
    largest: int | None = None  #: vertices that fit into a worker's memory
    many: bool = False  #: True: a worker takes chunk after chunk until it dies; False: it takes one chunk
    push_at_least: int = 1  #: minimum vertices of a chunk and between two pushes, to limit network traffic

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "many" or (field.name not in ("batch", "push_at_least") and value is None):
                continue
            if not (isinstance(value, int | np.integer) and value >= 1):
                raise ChoiceError(f"Work.{field.name} must be a whole number from 1, got {value!r}")
        if self.largest is not None and self.largest < self.batch:
            raise ChoiceError(
                f"a worker can hold {self.largest:,} vertices, but a batch has {self.batch:,}: choose a smaller batch, "
                f"or workers with more memory"
            )


@dataclass(frozen=True)
class GoodputPoint:
    """`goodput`, from 0 to 1, of chunks of `chunk` vertices."""

    chunk: int
    goodput: float


@dataclass(frozen=True)
class Choice:
    """A chunk size, with the information to judge it."""

    chunk: int  #: vertices
    push_every: int | None  #: vertices between two pushes; None if a chunk is all or nothing
    push_interval_s: float | None  #: seconds of training between two pushes
    goodput: float  #: share of the machines' time spent on training that is credited, from 0 to 1
    #: goodput of possible sizes, the chosen size included, at the chosen push interval; in ascending order of size
    curve: tuple[GoodputPoint, ...]
    lifetime: Lifetime  #: the distribution of lives for which the choice was made
    reason: str  #: sentences with the choice, its cause, and the goodput of half and double the size
    warnings: tuple[str, ...]  #: reasons to doubt the choice
    #: (median, 95th percentile) of the share of the best goodput that this choice loses under other lifetimes that
    #: explain the observations equally well; None without observations
    regret: tuple[float, float] | None


_ANY_WORK = Work()


def choose(
    lifetime: Lifetime, costs: Costs, work: Work = _ANY_WORK, *, observations: Observations | None = None
) -> Choice:
    """Choose the size of a chunk, and the push interval if costs.push_s is given, for workers with this lifetime.

    `observations` are the lives that `lifetime` was fitted to. If they are given, the choice is made for a mixture of
    `lifetime` and the observed lives (`hedged`), which becomes `Choice.lifetime`, and `Choice.regret` is computed. For
    a worker that is already running, pass `lifetime.after(age_s)`.

    Raises ChoiceError if practically no chunk would ever finish; the message has the cause and advice.
    """
    fitted, lifetime = lifetime, lifetime if observations is None else hedged(lifetime, observations)
    sizes, limit = _bounded(lifetime, costs, work)
    k, j = sizes.best()
    if _productive_share(sizes, sizes.lowest, sizes.lowest) < _NEVER and float(sizes.goodput(k, j)) < _NEVER:
        raise ChoiceError(_hopeless(sizes))
    curve = grid(sizes.lowest, sizes.highest, _CURVE)
    allowed, limit = _bounded_by_share(sizes, j, curve, work, limit)
    if k > allowed.highest:
        k, j = allowed.best()
    if j is not None:
        k = allowed.smallest(k, j, 1 - _LOSS + _SLACK)
        j = allowed.best_interval(k, j)
        # Round k up to whole pushes, unless goodput falls: a chunk longer by one vertex can outlast many lives that end
        # together.
        whole = -(-k // j) * j
        if whole <= allowed.highest and sizes.goodput(whole, j) >= sizes.goodput(k, j):
            k = whole
    points = dict(zip(curve.tolist(), sizes.goodput(curve, j, CLOSE).tolist(), strict=True))
    points[k] = goodput = float(sizes.goodput(k, j))
    regret = None if observations is None else _regret(allowed, k, j, fitted, observations)
    return Choice(
        chunk=k * sizes.batch,
        push_every=None if j is None else j * sizes.batch,
        push_interval_s=None if j is None else j * sizes.batch * costs.exec_s,
        goodput=goodput,
        curve=tuple(GoodputPoint(each * sizes.batch, points[each]) for each in sorted(points)),
        lifetime=lifetime,
        reason=_reason(sizes, _Answer(k, j, goodput, limit, regret), observations),
        warnings=tuple(_warnings(sizes, k, j, work, observations)),
        regret=regret,
    )


def _bounded(lifetime: Lifetime, costs: Costs, work: Work) -> tuple[Sizes, str]:
    """Return (the possible sizes, the upper bound as text). Sizes go from one batch, or the minimum push, to the lowest
    of all upper bounds."""
    batch = int(min(work.batch, work.vertices or work.batch))
    least = -(-work.push_at_least // batch)
    longest_s = lifetime.quantile(1 - _OUTLIVED)
    if costs.push_s is None:  # without pushes, start and end must fit into a life as well for anything to be credited
        longest_s -= costs.start_s + costs.end_s
    longest = int(min(longest_s / (costs.vertex_s * batch), _MAX_BATCHES))
    bounds = [(max(longest, least), "practically no machine lives longer")]
    if work.vertices is not None:
        bounds.append((work.vertices // batch, f"there are {work.vertices:,} vertices in all"))
    if work.largest is not None:
        bounds.append((work.largest // batch, f"a worker can hold {work.largest:,} vertices"))
    highest, limit = min(bounds)
    return Sizes(lifetime, costs, batch, work.many, int(min(least, highest)), int(highest)), limit


def _bounded_by_share(sizes: Sizes, j: int | None, curve: Ints, work: Work, limit: str) -> tuple[Sizes, str]:
    """Bound the sizes so that workers wait little at the end of an epoch. Return (sizes, the upper bound as text)."""
    if work.vertices is None or work.workers is None:
        return sizes, limit
    share = work.vertices / work.workers
    names = {8: "an eighth", 4: "a quarter", 2: "half", 1: "all"}
    highest = {parts: int(np.clip(share / (parts * sizes.batch), sizes.lowest, sizes.highest)) for parts in names}
    candidates = np.union1d(curve, np.array([*highest.values()]))
    goodput = sizes.goodput(candidates, j, CLOSE)
    # With the wait for half a chunk at the end, a share takes 1 + 1/(2·parts) times as long.
    worth = {parts: goodput[candidates <= highest[parts]].max() / (1 + 1 / (2 * parts)) for parts in names}
    parts = max(names, key=lambda each: worth[each])
    if highest[parts] == sizes.highest:
        return sizes, limit
    why = f"{names[parts]} of a worker's share of the epoch ({share:,.0f} vertices) keeps the last wave short"
    return replace(sizes, highest=highest[parts]), why


def _productive_share(sizes: Sizes, k: int, j: int) -> float:
    """Return the share of the lives that complete any work, in chunks of k batches pushed every j batches."""
    return sizes.lifetime.survival(sizes.exposed_s(k, j if sizes.has_pushes else None))


def _regret(sizes: Sizes, k: int, j: int | None, fitted: Lifetime, observations: Observations) -> tuple[float, float]:
    """Return (median, 95th percentile) of the share of the best goodput that is lost under other plausible
    lifetimes."""
    lost: list[float] = []
    for lifetime in _plausible_lifetimes(fitted, observations):
        other = replace(sizes, lifetime=lifetime)
        mine = float(other.goodput(k, j, ROUGH))
        best = max(mine, other.highest_goodput())
        lost.append(1 - mine / best if best > 0 else 0.0)
    median, high = np.quantile(lost, [0.5, 0.95])
    return float(median), float(high)


def _plausible_lifetimes(lifetime: Lifetime, observations: Observations) -> Iterator[Lifetime]:
    """Yield lifetimes that explain the observations about as well as `lifetime` does.

    They are fits to resampled lives; lives that ended at one instant are resampled as a group. With fewer than `_FEW`
    independent deaths, the rate of death is varied instead, over evenly spaced quantiles of its posterior. For d deaths
    and Jeffreys' prior, the posterior is Gamma(d + ½). Here it is scaled to the mean 1, which stands for the fitted
    rate.
    """
    family = lifetime.NAME
    deaths = observations.independent_deaths
    if deaths < _FEW or family is None:
        shape = deaths + 0.5
        rates = gammaincinv(shape, (np.arange(_RESAMPLINGS) + 0.5) / _RESAMPLINGS) / shape
        yield from (lifetime.scaled(1 / float(rate)) for rate in rates)
        return
    members = observations.members()
    rng = np.random.default_rng(0)
    for _ in range(_RESAMPLINGS_OF_MIXTURE if isinstance(lifetime, Mixture) else _RESAMPLINGS):
        resampled = rng.integers(len(members), size=len(members))
        yield fit(family, observations.take(np.concatenate([members[each] for each in resampled]))).lifetime


@dataclass(frozen=True)
class _Answer:
    """The chosen size and push interval, for `_reason`."""

    k: int  # batches of a chunk
    j: int | None  # batches between two pushes
    goodput: float
    limit: str  # the upper bound of the size, as text
    regret: tuple[float, float] | None


def _reason(sizes: Sizes, answer: _Answer, observations: Observations | None) -> str:
    """Return the reason for the size and the interval."""
    k, j, goodput, regret = answer.k, answer.j, answer.goodput, answer.regret
    costs, chunk = sizes.costs, k * sizes.batch
    lasts = _span(job_s(costs, chunk, None if j is None else j * sizes.batch))
    pushed = (
        "" if j is None else f", pushed every {j * sizes.batch:,} ({_span(j * sizes.batch * costs.exec_s)} of work)"
    )
    sentences = [
        f"{chunk:,} vertices a chunk ({lasts} if it is not killed){pushed}: {_percent(goodput)} of the machines' time "
        f"is training that is kept."
    ]
    if j is None:
        lost = 1 - sizes.lifetime.survival(job_s(costs, chunk))
        sentences.append(
            f"Smaller chunks start and end too often, larger ones lose too much when a machine dies"
            f"{'' if sizes.many else f' ({_percent(lost)} of the jobs do not get through)'}."
        )
    else:
        sentences.append(
            f"The interval weighs what a push costs ({_span(costs.push_s or 0.0)}) against the work that a death "
            f"loses; the chunk is the smallest within {_LOSS:.0%} of the best size allowed."
        )
    double = float(sizes.goodput(2 * k, j, CLOSE))
    half = f"half the size {_percent(float(sizes.goodput(k // 2, j, CLOSE)))}" if k > sizes.lowest else None
    sentences.append(" and ".join(filter(None, (half, f"double {_percent(double)}"))).capitalize() + ".")
    if double > goodput * (1 + _LOSS):
        sentences.append(f"It is not larger because {answer.limit}.")
    if regret is not None and observations is not None:
        deaths = f"{observations.deaths:,} deaths"
        if observations.independent_deaths < observations.deaths:
            deaths += f" at {observations.independent_deaths:,} instants"
        sentences.append(
            f"Judged by {len(observations):,} lives with {deaths}, it is 95% sure to be within {100 * regret[1]:.2g}% "
            f"of the best choice, and as likely as not within {100 * regret[0]:.2g}%."
        )
    return " ".join(sentences)


def _warnings(sizes: Sizes, k: int, j: int | None, work: Work, observations: Observations | None) -> Iterator[str]:
    lifetime = sizes.lifetime
    if (share := _productive_share(sizes, k, j or k)) < _SELDOM:
        yield (
            f"only {_percent(share)} of the workers live long enough to complete any work: shorten the start, or use "
            f"machines that live longer"
        )
    if work.push_at_least > sizes.highest * sizes.batch:
        yield (
            f"the network takes a push every {work.push_at_least:,} vertices, but a chunk can have "
            f"{sizes.highest * sizes.batch:,} at most: pushes will queue; use fewer workers or smaller replicas"
        )
    far = lifetime.quantile(0.99)
    beyond = lifetime.mean() - lifetime.restricted_mean(far) + 0.01 * far
    if beyond > _HEAVY * lifetime.mean():
        yield (
            f"the longest hundredth of the lives has {_percent(beyond / lifetime.mean())} of the machines' total time, "
            f"so the goodput depends on a few machines; half of all die within {_span(lifetime.quantile(0.5))}"
        )
    if observations is None:
        return
    if observations.deaths == 0:
        yield (
            f"no worker has died in {_span(observations.exposure_s)} of observation, so the lifetime is a guess: "
            f"observe for longer, or give the lifetime if you know it"
        )
    elif observations.independent_deaths < _FEW:
        yield (
            f"only {observations.independent_deaths} independent deaths were observed, and lifetimes fitted to fewer "
            f"than {_FEW} are uncertain: ask again after more deaths"
        )
    longest = float(observations.duration_s.max(initial=0.0))
    if (needed := sizes.exposed_s(k, j)) > longest:
        yield (
            f"no work is complete before {_span(needed)}, but the longest life observed is {_span(longest)}: beyond "
            f"that the lifetime is extrapolated"
        )


def _hopeless(sizes: Sizes) -> str:
    costs, lifetime = sizes.costs, sizes.lifetime
    boot = f"boot {_span(costs.boot_s)}, " if sizes.many and costs.boot_s else ""
    end = f", end {_span(costs.end_s)}" if costs.end_s else ""
    needed = sizes.exposed_s(sizes.lowest, sizes.lowest if sizes.has_pushes else None)
    return (
        f"no chunk would ever finish: the smallest, {sizes.lowest * sizes.batch:,} vertices, takes {_span(needed)} "
        f"({boot}start {_span(costs.start_s)}, {_span(costs.vertex_s)} a vertex{end}), but workers live "
        f"{_span(lifetime.mean())} on average ({lifetime}) and {_percent(lifetime.survival(needed))} of them live that "
        f"long. Shorten the start (prepare the environment beforehand, send less data), make the batch smaller, or use "
        f"machines that live longer."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _span(seconds: float) -> str:
    """Format a time: 40 ms, 27 s, 4.5 min, 2.3 h, 12 days."""
    for unit, length in (("days", 172800.0), ("h", 7200.0), ("min", 120.0), ("s", 1.0)):
        if seconds >= length:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60, 's': 1}[unit]:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"

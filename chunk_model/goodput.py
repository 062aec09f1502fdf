"""Goodput of a chunk size: the share of a machine's time spent on training that is credited, from 0 to 1.

Times in seconds: T is the life of a worker, from the time its job begins to run; S(t) = P[T > t]; R(t) =
E[min(T, t)] = ∫₀ᵗ S; x = `exec_s`, y = `copy_s`, u = x + y, s = `start_s`, e = `end_s`, c = `push_s`, w = `wait_s`,
b = `boot_s`. Counts: n vertices a chunk, m vertices between two pushes, K = ⌈n/m⌉ pushes a chunk. The paper trains n
vertices in a job that starts (t_s), copies and trains each vertex (t_c + t_x) and ends (t_e). Here a job can also
push while it runs, wait for a machine, and share the boot of the machine with other jobs.

All or nothing (c is None): a chunk takes A = s + nu + e, and its n vertices are credited if the worker outlives A. With
pushes: the whole chunk is copied before the first vertex is trained. Push i < K credits m vertices and ends at
aᵢ = s + ny + i(mx + c). The last push credits the rest, n − (K − 1)m, at a_K = s + nu + Kc. Then the chunk ends, A =
a_K + e. A completed push stays credited if the worker dies later.

    one chunk     x·Σᵢ mᵢ S(aᵢ) / (w + R(A))                    a fresh life for each chunk
    many chunks   x·Σⱼ Σᵢ mᵢ S(b + jA + aᵢ) / (w + E[T])        chunk after chunk until the worker dies, j = 0, 1, …

All or nothing has the single term mᵢ = n, aᵢ = A. Both formulas are renewal-reward ratios over the life of a worker.
For a worker that is already running, pass `lifetime.after(age_s)`, whose survival is S(age + t)/S(age).

A life can have 10⁸ pushes. Only the first k terms of a sum are evaluated; for the rest the midpoint rule gives
Σᵢ S(a + iΔ) ≈ (R(end) − R(begin))/Δ. Because S never rises, the error is at most half the first term of the rest, and
so at most 1/(2k) of the sum, for any lifetime (a step function is the worst case). k is `terms` for one chunk per life
and for all or nothing. If a life has many chunks of many pushes each, k is √terms in both sums. For a smooth S the
error is of second order: below 10⁻⁵ with the default of 4,096 terms, below 10⁻⁴ with 256.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunk_model.lifetime import Given, Lifetime


class CostError(ValueError):
    """A cost is not a valid time: negative, NaN or infinite."""


@dataclass(frozen=True)
class Costs:
    """Costs, each a time in seconds. Only training is useful time. A machine can die during any of these times except
    `wait_s`.

    Raises CostError unless every cost is finite and at least 0, and `exec_s` is above 0.
    """

    exec_s: float  #: t_x, the time to train a vertex
    copy_s: float = 0.0  #: t_c, the time to copy a vertex
    start_s: float = 0.0  #: t_s, the time to start a chunk
    end_s: float = 0.0  #: t_e, the time to end a chunk
    push_s: float | None = None  #: the time of one push; None: a chunk is all or nothing
    wait_s: float = 0.0  #: the time from the request of a machine until its life begins; paid once per life
    boot_s: float = 0.0  #: the time from the start of a life to its first chunk; paid only if a life has many chunks

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "push_s":
                continue
            if not (math.isfinite(value) and value >= 0):
                raise CostError(f"{field.name} must be a time in seconds, finite and at least 0, got {value!r}")
        if self.exec_s == 0:
            raise CostError("exec_s, the time to train a vertex, must be above 0: measure it on one chunk")

    @property
    def vertex_s(self) -> float:
        """t_c + t_x: to copy and train one vertex."""
        return self.copy_s + self.exec_s


Floats = NDArray[np.float64]
Numbers = NDArray[np.float64] | NDArray[np.int64]

_TERMS = 4096  # default number of terms that are evaluated for each size
_CELLS = 1 << 18  # terms evaluated at once: a few arrays of 2 MB, which stay in the cache


class ChunkError(ValueError):
    """A chunk or a push has no vertices, or a push interval was given without the cost of a push."""


def chunk_goodput(
    lifetime: Lifetime,
    costs: Costs,
    n: Given,
    *,
    many: bool = False,
    push_every: float | Numbers | None = None,
    terms: int = _TERMS,
) -> Given:
    """Return the goodput of chunks of n vertices, by the formulas in the module's docstring.

    Without `many` every chunk has a new life, like a job of a batch system, and `boot_s` is ignored. With `many` a
    worker boots once and takes chunk after chunk until it dies. `push_every` is the number of vertices between two
    pushes; if it is None, a chunk has one push, at its end. `n` and `push_every` are numbers above 0, or arrays that
    broadcast to the shape of the result, float64. If `push_every` is an array, `n` must be one, too. `terms` is the
    number of pushes that are evaluated one by one: a lower number is faster and less exact. Raises ChunkError.
    """
    times, shape = _push_times(costs, n, push_every)
    if many:
        used = np.full_like(times.cycle_s, costs.wait_s + lifetime.mean())
    else:
        used = costs.wait_s + lifetime.restricted_mean(times.cycle_s)
    boot_s = costs.boot_s if many else 0.0
    return _share(costs.exec_s * _credited(lifetime, times, boot_s, terms, many=many), used, n, shape)


def one_chunk_safe_ends(lifetime: Lifetime, costs: Costs, n: Given) -> Given:
    """Return the goodput in the paper's setting, with its formula corrected: chunks are all or nothing, each job has a
    life of its own, and no machine dies during the start or the end of a job.

    n·x·S(v) / (w + s + R(v) + e·S(v)) with v = nu: a life begins when its job begins to copy, and only completed jobs
    pay for their end. `push_s` and `boot_s` are ignored. Shapes and errors are those of `chunk_goodput`.
    """
    sizes = _checked("n, the vertices of a chunk,", n)
    work = sizes * costs.vertex_s
    alive = np.asarray(lifetime.survival(work))
    used = costs.wait_s + costs.start_s + lifetime.restricted_mean(work) + costs.end_s * alive
    return _share(sizes * costs.exec_s * alive, used, n, np.shape(n))


def job_s(costs: Costs, n: Given, push_every: float | Numbers | None = None) -> Given:
    """Return A, the seconds that a chunk takes from start to end if nothing kills it. Arguments as for
    `chunk_goodput`."""
    times, shape = _push_times(costs, n, push_every)
    return _shaped(times.cycle_s, n, shape)


@dataclass(frozen=True)
class _PushTimes:
    """End times of a chunk's pushes, in seconds from its start. Each field is float64 [sizes]; symbols as above."""

    vertices: Floats  # n
    pushes: Floats  # K
    first_s: Floats  # push i < K ends at first_s + i·step_s
    step_s: Floats
    each: Floats  # m, vertices of push i < K
    last_s: Floats  # end of push K
    last: Floats  # vertices of push K
    cycle_s: Floats  # A

    def at(self, which: slice | tuple[slice, None] | NDArray[np.intp]) -> _PushTimes:
        return _PushTimes(*(getattr(self, field.name)[which] for field in fields(self)))


def _push_times(
    costs: Costs, n: float | Numbers, push_every: float | Numbers | None
) -> tuple[_PushTimes, tuple[int, ...]]:
    """Return (the push times of every size, flattened; the shape of the result)."""
    sizes = _checked("n, the vertices of a chunk,", n)
    if push_every is not None and costs.push_s is None:
        raise ChunkError(f"push_every is {push_every!r}, but the costs are without pushes: give push_s, what one costs")
    between = sizes if push_every is None else _checked("push_every, the vertices between two pushes,", push_every)
    shape = np.broadcast_shapes(sizes.shape, between.shape)
    sizes, between = (np.broadcast_to(each, shape).ravel() for each in (sizes, between))
    pushes = np.ceil(sizes / between)
    push_s = costs.push_s or 0.0
    pushed = costs.start_s + sizes * costs.vertex_s + pushes * push_s
    cycle = pushed + costs.end_s
    times = _PushTimes(
        vertices=sizes,
        pushes=pushes,
        first_s=costs.start_s + sizes * costs.copy_s,
        step_s=between * costs.exec_s + push_s,
        each=between,
        last_s=cycle if costs.push_s is None else pushed,
        last=sizes - (pushes - 1) * between,
        cycle_s=cycle,
    )
    return times, shape


def _checked(what: str, value: float | Numbers) -> Floats:
    values = np.asarray(value, np.float64)
    if not bool(np.all((values > 0) & np.isfinite(values))):
        wrong = values[~((values > 0) & np.isfinite(values))].flat[0]
        raise ChunkError(f"{what} must be above 0 and finite, got {wrong}")
    return values


def _credited(lifetime: Lifetime, times: _PushTimes, boot_s: float, terms: int, *, many: bool) -> Floats:
    """Return E[vertices credited in a life], float64 [sizes]; with `many`, chunk by chunk after `boot_s`."""
    size = max(1, _CELLS // terms)
    blocks = (times.at(slice(first, first + size)) for first in range(0, len(times.vertices), size))
    parts = [_credited_block(lifetime, block, boot_s, terms, many=many) for block in blocks]
    return np.concatenate(parts) if parts else np.zeros(0)


def _credited_block(lifetime: Lifetime, times: _PushTimes, boot_s: float, terms: int, *, many: bool) -> Floats:
    column = times.at((slice(None), None))  # a row is a size, a column is a term
    # The number of evaluated pushes i < K of each chunk, and the number of evaluated chunks of each life.
    inner = np.minimum(column.pushes - 1, math.isqrt(terms) if many else terms)
    outer = np.maximum(terms // (inner + 1), 1) if many else np.ones_like(inner)

    # The last push of each chunk.
    chunk = np.arange(int(outer.max()))
    begins = boot_s + chunk * column.cycle_s
    there = chunk < outer
    total = np.sum(column.last * there * lifetime.survival(begins + column.last_s), axis=1)

    # The first pushes of each chunk.
    if (most := int((inner * outer).max())) > 0:
        at, width = np.arange(most), np.maximum(inner, 1)
        j, i = np.divmod(at, width)
        ends = boot_s + j * column.cycle_s + column.first_s + (i + 1) * column.step_s
        total += np.sum(column.each * (at < inner * outer) * lifetime.survival(ends), axis=1)

    # The pushes between: the midpoint rule within a chunk.
    if len(long := np.flatnonzero(times.pushes - 1 > inner[:, 0])):
        few = column.at(long)
        begins = begins[long, : int(outer[long].max())] + few.first_s
        low = lifetime.restricted_mean(begins + (inner[long] + 0.5) * few.step_s)
        high = lifetime.restricted_mean(begins + (few.pushes - 0.5) * few.step_s)
        between = there[long, : begins.shape[1]] * np.maximum(high - low, 0.0)
        total[long] += np.sum(few.each / few.step_s * between, axis=1)

    # The later chunks: the midpoint rule over chunks, with a chunk's credit at its mean time.
    if many:
        regular = times.pushes - 1
        moments = times.each * regular * (times.first_s + times.step_s * times.pushes / 2) + times.last * times.last_s
        begin = boot_s + (outer[:, 0] - 0.5) * times.cycle_s + moments / times.vertices
        left = np.maximum(lifetime.mean() - lifetime.restricted_mean(begin), 0.0)
        total += times.vertices / times.cycle_s * left
    return np.asarray(total)


def _share(useful: Floats, used: Floats, n: Given, shape: tuple[int, ...]) -> Given:
    """Return useful/used, clipped to [0, 1] against rounding errors."""
    return _shaped(np.clip(useful / used, 0.0, 1.0), n, shape)


def _shaped(values: Any, n: Given, shape: tuple[int, ...]) -> Given:
    """Return `values`, computed for n, as an array of this shape, or as a float if the shape is ()."""
    formed: Given = values.reshape(shape) if shape else values.item()
    return formed

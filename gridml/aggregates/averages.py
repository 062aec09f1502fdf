"""Merge rules that average: the mean, the stale mean (the default), Nesterov, FedBuff, EASGD and clipping.

In the formulas, v is the master's value, b the base of a push (the older master value that the worker trained from), p
the pushed replica, and n the number of vertices that the push trained. τ is the staleness of the push: the vertices
credited to others since b, divided by n.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gridml.aggregates import kernels
from gridml.aggregates.base import KAPPA, Aggregate, Array, Contraction, Merge, TensorMerge, Tensors
from gridml.errors import UsageError


@final
@dataclass(frozen=True)
class Mean(Aggregate):
    """The mean (v + p)/2 at any staleness: the rule printed in the paper, kept as the baseline.

    The last push always has half the weight, so the result reflects about the last three replicas, whatever the number
    of workers. With one worker the rule is not plain SGD.
    """

    def merge(self, t: TensorMerge) -> float:
        return kernels.blend(t.out, t.value, t.base, t.replica, 0.5, 0.5 * t.scale)


@final
@dataclass(frozen=True)
class StaleMean(Aggregate):
    """The default: a mean in which a staler push has less weight, and nearly a sum for rows that pushes hardly move.

        α = κ/(κ+τ)        ρ' = 1 + (ρ−1)(1−α)        v ← v + α(b−v) + αρ'(p−b)

    The first term moves the master's value part of the way back to the base. The second adds the worker's step, with a
    factor ρ' that grows with staleness. At ρ = 1 the result is the weighted average of v and p. At τ = 0 the rule is
    exactly v ← p, so training with one worker is exactly plain SGD. The rule does not depend on the number of workers.
    The weight α is the hinge function of Xie, Koyejo, Gupta, "Asynchronous federated optimization" (arXiv 1903.03934),
    with a = 1/κ and b = 0.

    Some rows of array fields are moved weakly: a push moves them only the fraction 1 − e^−x of the way to their
    optimum. Several pushes in sequence would move them 1 − e^−X of the way, where X is the sum of all x. For small X
    this fraction is nearly X, and an average of the pushes would discard most of it. If the contraction x of the push
    and the contraction X of everything trained since the push's base were measured, the rule is

        v ← v + α(1−e^−x)(b−v) + max(αρ', (1−e^−X)/X) (p−b)

    It moves a row as far as the pushes in sequence would, and never further: a sum for small X, a mean for large X.

    The step of a part of one batch is added, v ← v + (p−b): the workers' rates are such that the steps of all parts are
    together as long as that of the batch (`gridml.engine.pace.choose_pace`).

    Raises UsageError unless κ > 0 and 1 ≤ ρ ≤ 2.
    """

    # κ = 5 and ρ = 2 gave the best accuracy of the values tried on MNIST with 4 to 256 workers.
    kappa: float = KAPPA  #: κ, the staleness at which the weight is one half
    rho: float = 2.0  #: ρ, the limit of ρ' for stale pushes; 1: no overshoot
    minds_contraction: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and 1 <= self.rho <= 2):
            raise UsageError(f"stale_mean got kappa={self.kappa}, rho={self.rho}; expected kappa > 0, rho in [1, 2]")

    def merge(self, t: TensorMerge) -> float:
        if t.merge.fast_forward:
            # v + (b−v) + (p−b) would round, and with one worker the result must be plain SGD to the last bit.
            return kernels.fast_forward(t.out, t.base, t.replica, t.scale)
        if t.contraction is not None and not t.merge.added:
            pulls, steps = self.row_weights(t.merge, t.contraction)
            return kernels.blend_rows(t.out, t.value, t.base, t.replica, pulls, steps * t.scale)
        pull, step = (0.0, 1.0) if t.merge.added else self.weights(t.merge)
        return kernels.blend(t.out, t.value, t.base, t.replica, pull, step * t.scale)

    def weights(self, merge: Merge) -> tuple[float, float]:
        """Return (α, αρ'): the factor of the way back to the base, and the factor of the worker's step."""
        alpha = self.kappa / (self.kappa + merge.staleness)
        return alpha, alpha * (1 + (self.rho - 1) * (1 - alpha))

    def row_weights(self, merge: Merge, contraction: Contraction) -> tuple[Array, Array]:
        """Return the two factors of `weights` for each row, as arrays (rows,), from measured contractions."""
        pull, step = self.weights(merge)
        # For X = 0 the formula is 0/0; the smallest normal number gives its limit, 1.
        together = np.maximum(contraction.together, np.finfo(np.float64).tiny)
        return pull * -np.expm1(-contraction.push), np.maximum(step, -np.expm1(-together) / together)


@final
@dataclass(frozen=True)
class Nesterov(Aggregate):
    """Delayed Nesterov momentum on the master, with N live leases.

        Δ = p−b        every push: v ← v + ηΔ/N        every N pushes: m ← βm + mean Δ, v ← v + ηβm

    Algorithm 3, with c = 0, of Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato, "Asynchronous local-SGD
    training for language modeling" (arXiv 2401.09135). Momentum is applied once per period of N pushes, because at
    every asynchronous push it would accumulate one direction too often.

    N is read at each push, because workers come and go. If a period has only k < N pushes at the end of an epoch, it
    counts as the fraction f = k/N of a period: m ← βᶠm + ΣΔ/N, v ← v + ηβfm.

    Raises UsageError unless η > 0 and 0 ≤ β < 1.
    """

    # The defaults are DiLoCo's (arXiv 2311.08105).
    rate: float = 0.7  #: η, the outer learning rate
    momentum: float = 0.9  #: β

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.momentum < 1):
            raise UsageError(
                f"nesterov got rate={self.rate}, momentum={self.momentum}; expected rate > 0 and momentum in [0, 1)"
            )

    def buffers(self, value: Array) -> dict[str, Array]:
        """`momentum`: m, at least float32. `steps`: ΣΔ of this period, in the same dtype. `pushes`: number of pushes of
        this period."""
        wide = np.result_type(value.dtype, np.float32)
        return {
            "momentum": np.zeros(value.shape, wide),
            "steps": np.zeros(value.shape, wide),
            "pushes": np.zeros((), np.int64),
        }

    def merge(self, t: TensorMerge) -> float:
        period = max(1, t.merge.live)
        sumsq = kernels.blend(t.out, t.value, t.base, t.replica, 0.0, self.rate * t.scale / period)
        gathered = kernels.blend(t.out_buffers["steps"], t.buffers["steps"], t.base, t.replica, 0.0, t.scale)
        np.copyto(t.out_buffers["momentum"], t.buffers["momentum"])
        t.out_buffers["pushes"][...] = t.buffers["pushes"] + 1
        if np.isfinite(sumsq) and t.out_buffers["pushes"] >= period:
            self._close(t.out, t.out_buffers, int(t.out_buffers["pushes"]))
        return max(sumsq, gathered) if np.isfinite(sumsq) else sumsq

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        if buffers["pushes"] == 0:
            return False
        self._close(value, buffers, max(1, live))
        return True

    def _close(self, value: Array, buffers: Tensors, period: int) -> None:
        """Close a period of `period` pushes, or the fraction of a period that has arrived. Writes in place."""
        # More pushes than `period` can have arrived, because N falls when leases end.
        fraction = min(1.0, int(buffers["pushes"]) / period)
        momentum, steps = buffers["momentum"], buffers["steps"]
        momentum *= self.momentum**fraction
        kernels.shift(momentum, momentum, steps, 1 / max(period, int(buffers["pushes"])))
        kernels.shift(value, value, momentum, self.rate * self.momentum * fraction)
        steps.fill(0)
        buffers["pushes"].fill(0)


@final
@dataclass(frozen=True)
class FedBuff(Aggregate):
    """Buffered asynchronous aggregation: the steps of K pushes are gathered, then applied together.

        wᵢ = nᵢ(1+τᵢ)^−½        every K pushes: v ← v + ηΣwᵢ(pᵢ−bᵢ)/Σwᵢ        K = max(8, live leases)

    Algorithm 1 of Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered
    asynchronous aggregation" (arXiv 2106.06639), with its damping (1+τ)^−½. No step is lost at the end of an epoch: the
    flush applies a partly filled buffer.

    Raises UsageError unless η > 0 and `least` ≥ 1.
    """

    rate: float = 1.0  #: η, the server's learning rate
    least: int = 8  #: the minimum of K; with more live leases than this, K is the number of live leases

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.least >= 1):
            raise UsageError(
                f"fedbuff got rate={self.rate}, least={self.least}; expected rate > 0 and least of 1 or more"
            )

    def buffers(self, value: Array) -> dict[str, Array]:
        """`step`: Σwᵢ(pᵢ−bᵢ), at least float32; `weight`: Σwᵢ; `pushes`: number of gathered pushes."""
        step = np.zeros(value.shape, np.result_type(value.dtype, np.float32))
        return {"step": step, "weight": np.zeros((), np.float64), "pushes": np.zeros((), np.int64)}

    def merge(self, t: TensorMerge) -> float:
        weight = max(1, t.merge.vertices) / (1 + t.merge.staleness) ** 0.5
        sumsq = kernels.blend(t.out_buffers["step"], t.buffers["step"], t.base, t.replica, 0.0, weight * t.scale)
        t.out_buffers["weight"][...] = t.buffers["weight"] + weight
        t.out_buffers["pushes"][...] = t.buffers["pushes"] + 1
        if t.out_buffers["pushes"] >= max(self.least, t.merge.live):
            self._apply(t.out, t.value, t.out_buffers)
        else:
            np.copyto(t.out, t.value)
        return sumsq

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        if buffers["pushes"] == 0:
            return False
        self._apply(value, value, buffers)
        return True

    def _apply(self, out: Array, value: Array, buffers: Tensors) -> None:
        """Apply the gathered step and empty the buffers. Writes in place."""
        kernels.shift(out, value, buffers["step"], self.rate / float(buffers["weight"]))
        for held in buffers.values():
            held.fill(0)


LAST = 0.4  # share of a run over which the momentum falls to 0, as learning rates do by default (`linear_decay`)


@final
@dataclass(frozen=True)
class Rounds(Aggregate):
    """Rounds in which all workers push and none waits: their mean step is taken, by default as it is.

        at the end of a round: D = Σ(pᵢ−bᵢ)/(1+aᵢ) · ΣN²/(ΣN)², m ← βm + D, v ← v + η(D + βm)

    The first sum is over pushes; aᵢ is the age of a push, the number of rounds that ended since its base. The others
    are over workers, of which each has brought N vertices, by one push or several. So D is as long as the mean of the
    workers' steps, weighed by their vertices, if these have one direction. The master ends a round when the live
    workers have pushed, or when it has waited for the last ones for long enough (`master.sync.rounds.ends`); what comes
    later counts in the next round. Until a round ends, a worker trains on from its own replica, and takes the master's
    next value with what it has trained meanwhile.

    With momentum, steps that point the same way for many rounds go η/(1−β) times as far. Towards the end of a run β
    falls to 0, and η to 1, so that the last rounds are plain means. While one worker is alive, its replica is taken as
    it is, so one worker is exactly plain SGD. Where pushes are cheap, the step of a part of one batch is added instead,
    as by `StaleMean`.

    Algorithm 1 of Douillard et al., "DiLoCo: distributed low-communication training of language models" (arXiv
    2311.08105), with weights as in Decoupled DiLoCo (arXiv 2604.21428), and β falling.

    Raises UsageError unless η > 0 and 0 ≤ β < 1.
    """

    # With any momentum the networks of docs/notes/averaging.md ended further from their loops.
    rate: float = 1.0  #: η, the factor of the mean step
    momentum: float = 0.0  #: β
    gathers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.momentum < 1):
            raise UsageError(
                f"rounds got rate={self.rate}, momentum={self.momentum}; expected rate > 0 and momentum in [0, 1)"
            )

    def buffers(self, value: Array) -> dict[str, Array]:
        """Of the open round `steps`: Σ(pᵢ−bᵢ)/(1+aᵢ), at least float32, `vertices`: ΣN and `squares`: ΣN², in which
        late pushes count for less, too; and `momentum`: m, if β > 0."""
        wide = np.result_type(value.dtype, np.float32)
        return {
            "steps": np.zeros(value.shape, wide),
            "vertices": np.zeros((), np.float64),
            "squares": np.zeros((), np.float64),
            **({"momentum": np.zeros(value.shape, wide)} if self.momentum else {}),
        }

    def merge(self, t: TensorMerge) -> float:
        held, gathered = t.buffers, t.out_buffers
        alone = t.merge.live <= 1 and not held["vertices"]
        if alone and t.merge.fast_forward and not t.merge.rounds:
            for buffer in gathered.values():
                buffer.fill(0)
            return kernels.fast_forward(t.out, t.base, t.replica, t.scale)
        if alone or t.merge.added:
            for name, buffer in gathered.items():
                np.copyto(buffer, held[name])
            return kernels.blend(t.out, t.value, t.base, t.replica, 0.0, t.scale)
        weight = 1 / (1 + t.merge.rounds)
        vertices = weight * max(1, t.merge.vertices)
        sumsq = kernels.blend(gathered["steps"], held["steps"], t.base, t.replica, 0.0, weight * t.scale)
        gathered["vertices"][...] = held["vertices"] + vertices
        gathered["squares"][...] = held["squares"] + vertices * (2 * t.merge.before + vertices)
        if self.momentum:
            np.copyto(gathered["momentum"], held["momentum"])
        np.copyto(t.out, t.value)
        return sumsq

    def end_round(self, value: Array, buffers: Tensors, share: float) -> bool:
        """At the end of a round, after `share` of the run, apply the gathered steps to `value` and empty their buffers.

        Both are copies to be written in place. Return False if nothing was gathered.
        """
        vertices, squares = float(buffers["vertices"]), float(buffers["squares"])
        if not vertices:
            return False
        rate, momentum = self.at(share)
        mean = buffers["steps"]
        mean *= squares / vertices**2
        if self.momentum:
            m = buffers["momentum"]
            m *= momentum
            m += mean
            kernels.shift(mean, mean, m, momentum)
        kernels.shift(value, value, mean, rate)
        for name in ("steps", "vertices", "squares"):
            buffers[name].fill(0)
        return True

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        return self.end_round(value, buffers, 1.0)

    def at(self, share: float) -> tuple[float, float]:
        """Return (η, β) after `share` of the run."""
        left = min(1.0, (1.0 - share) / LAST)
        return 1.0 + left * (self.rate - 1.0), left * self.momentum


@final
@dataclass(frozen=True)
class Easgd(Aggregate):
    """Elastic averaging: a spring between the master and each worker.

        master: v ← v + α(p−v)        worker: θ ← θ − α(p−v)        α = β/live leases

    Equations 5 and 6 and algorithm 1 (asynchronous) of Zhang, Choromanska, LeCun, "Deep learning with elastic
    averaging SGD" (arXiv 1412.6651). A worker explores: it keeps its own θ, which is only pulled towards the master's
    value. The reply to a push brings the master's value after the merge, so the worker's formula uses this newer v.

    Raises UsageError unless 0 < β ≤ 1.
    """

    elasticity: float = 0.9  #: β, which is divided by the number of live leases

    def __post_init__(self) -> None:
        if not 0 < self.elasticity <= 1:
            raise UsageError(f"easgd got elasticity={self.elasticity}; expected a number above 0, at most 1")

    def merge(self, t: TensorMerge) -> float:
        alpha = self.elasticity / max(1, t.merge.live)
        return kernels.blend(t.out, t.value, t.base, t.replica, alpha, alpha * t.scale)

    def adopt(self, local: Array, pushed: Array, newest: Array, out: Array, live: int = 1) -> None:
        """out = local − α(pushed − newest). `live` is the number of live leases, from the reply."""
        pull = np.subtract(pushed, newest)
        pull *= self.elasticity / max(1, live)
        np.subtract(local, pull, out=out)


RATE = 0.2  # η: one push changes the radius by a factor of exp(±η)


@final
@dataclass(frozen=True)
class Clipped(Aggregate):
    """Centred clipping: a push moves the master by the usual step of a push, plus a bounded deviation from it.

        u = (p−b)/n        d = u − c        û = c + d·min(1, λR/‖d‖)        c ← c + (û − c)/W
        v ← v + α(b−v) + αρ'·n·û            α, ρ' as in `StaleMean`, W live leases

    The centre c is a running mean of the steps per vertex. The radius R is a running median of ‖d‖. However far one of
    W workers pushes, its step per vertex counts as at most λR away from the centre, and the push moves the centre by at
    most λR/W. With one live worker the rule is exactly `StaleMean`.

    Algorithm 2 of Karimireddy, He, Jaggi, "Learning from history for Byzantine robust optimization" (arXiv
    2012.10333), v ← v + Σ(mᵢ−v)·min(1, τ/‖mᵢ−v‖)/n, with two changes. First, pushes are merged one at a time and tensor
    by tensor; in the paper workers send a momentum, here the master keeps it as c. Second, the paper's τ is chosen by
    hand; here R follows the median of ‖d‖ by the geometric update of Andrew, Thakkar, McMahan, Ramaswamy,
    "Differentially private learning with adaptive clipping" (arXiv 1905.03871), algorithm 1 with γ = 1/2: R ← R·exp(−η)
    if ‖d‖ ≤ R, else R ← R·exp(η).

    Raises UsageError unless λ > 0.
    """

    radius: float = 1.5  #: λ, the bound of a deviation in multiples of R, the usual distance from the centre

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise UsageError(f"clipped got radius={self.radius}; expected a number above 0")

    def buffers(self, value: Array) -> dict[str, Array]:
        """`centre`: c, at least float32. `radius`: R, 0 before the first push."""
        wide = np.result_type(value.dtype, np.float32)
        return {"centre": np.zeros(value.shape, wide), "radius": np.zeros((), np.float64)}

    def merge(self, t: TensorMerge) -> float:
        centre, known = t.buffers["centre"], float(t.buffers["radius"])
        n, (pull, step) = max(1, t.merge.vertices), StaleMean().weights(t.merge)
        if t.merge.live <= 1:
            for name, held in t.buffers.items():
                np.copyto(t.out_buffers[name], held)
            return StaleMean().merge(t)
        sumsq = kernels.blend(t.out, t.value, t.base, t.replica, pull, 0.0)
        if not math.isfinite(sumsq):
            return sumsq
        with np.errstate(over="ignore"):
            deviation = (t.replica - t.base.astype(centre.dtype)) * (t.scale / n) - centre
            limit = np.finfo(centre.dtype).max
            # Finite inputs can overflow to infinity here, which no factor could scale back to the radius.
            deviation = np.asarray(np.clip(deviation, -limit, limit))
            distance = min(float(np.sqrt(np.sum(np.square(deviation, dtype=np.float64)))), sys.float_info.max)
        factor = min(1.0, self.radius * known / distance) if known and distance else 1.0
        if factor < 1.0:
            t.clipped()
        deviation = np.asarray(deviation * factor, centre.dtype)
        # The centre's next buffer first holds û, which `shift` reads, and then the next centre.
        np.add(centre, deviation, out=t.out_buffers["centre"])
        kernels.shift(t.out, t.out, t.out_buffers["centre"], step * n)
        np.add(centre, deviation / t.merge.live, out=t.out_buffers["centre"])
        follows = known * math.exp(-RATE if distance <= known else RATE)
        t.out_buffers["radius"][...] = min(follows, sys.float_info.max) if known else distance
        return sumsq

    def flush(self, value: Array, buffers: Tensors, live: int) -> bool:
        """Return False: every push is applied when it is merged."""
        return False

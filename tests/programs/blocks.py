"""l1 logistic regression by block proximal gradient (Li et al., NIPS 2014): a mini-batch is a block of features, with
two exchanges. Features are left out while their gradient is small, and the run ends by itself."""

from math import exp

import numpy as np

import gridml

FEATURES, SAMPLES, NONZERO, LAMBDA, ETA, ENOUGH = 60, 200, 5, 1.5, 0.8, 1e-2


class Shared(gridml.Vertex):
    theta, full = gridml.array("float64"), gridml.array("bool")
    worst = gridml.accumulator("float64", by="max")
    passes = gridml.array("int64")
    aggregate = gridml.owned()


class Feature(gridml.Vertex):
    w, stride, reach = gridml.array("float64"), gridml.array("float64"), gridml.array("float64")
    active = gridml.array("bool")
    g, u = gridml.accumulator("float64"), gridml.accumulator("float64")
    aggregate = gridml.owned()


class Sample(gridml.Vertex):
    label = gridml.array("float64")
    dual = gridml.array("float64", mutable=True)  # exp(label * score)
    has = gridml.edge(Feature, weight="float64")


@gridml.exchange(over=Feature, when="active")
def slope(feature: Feature, sample: Sample, x: gridml.Link) -> None:
    tau = 1 / (1 + sample.dual)
    feature.g -= sample.label * tau * x.weight
    feature.u += min(tau * (1 - tau) * exp(abs(x.weight) * feature.reach), 0.25) * x.weight**2


@gridml.apply(Feature)
def move(feature: Feature, at: Shared) -> None:
    feature.stride = 0.0
    if not feature.active:
        return
    g, w, u = feature.g, feature.w, feature.u / ETA + 1e-10
    if w == 0 and abs(g) < LAMBDA - at.theta:
        feature.active = False
        return
    at.worst = max(at.worst, abs(abs(g) - LAMBDA) if w != 0 else abs(g) - LAMBDA)
    stride = -(g + LAMBDA) / u if g + LAMBDA <= u * w else -(g - LAMBDA) / u if g - LAMBDA >= u * w else -w
    feature.stride = min(max(stride, -feature.reach), feature.reach)
    feature.reach = min(5.0, 2 * abs(feature.stride) + 0.1)
    feature.w += feature.stride


@gridml.exchange(over=Feature, when="stride")
def carry(feature: Feature, sample: Sample, x: gridml.Link) -> None:
    sample.dual *= exp(sample.label * x.weight * feature.stride)


@gridml.global_sync
def tighten(shared: Shared) -> bool:
    shared.passes += 1
    done = shared.worst < ENOUGH * LAMBDA
    enough, shared.full, shared.theta = bool(done and shared.full), done, shared.worst / 100
    return enough


@gridml.apply(Feature)
def reopen(feature: Feature, at: Shared) -> None:
    feature.active = feature.active or at.full


def samples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, weights, labels) of shapes (SAMPLES, NONZERO), (SAMPLES, NONZERO), (SAMPLES,)."""
    rng = np.random.default_rng(4)
    feature = np.array([rng.choice(FEATURES, NONZERO, replace=False) for _ in range(SAMPLES)])
    x, hidden = rng.normal(size=feature.shape), rng.normal(size=FEATURES) * (rng.random(FEATURES) < 0.4)
    return feature, x, np.where((x * hidden[feature]).sum(1) + rng.normal(0, 0.3, SAMPLES) > 0, 1.0, -1.0)


def graph() -> gridml.Graph:
    feature, x, label = samples()
    g = gridml.Graph()
    g.add(Shared, theta=1e9, full=True, passes=0)
    g.add(Feature, w=np.zeros(FEATURES), stride=0, reach=1, active=True)
    has = gridml.csr(np.arange(SAMPLES + 1) * NONZERO, feature.ravel(), x.ravel())
    g.add(Sample, label=label, dual=1, has=has)
    return g


def objective(w: np.ndarray) -> float:
    feature, x, label = samples()
    return float(np.log1p(np.exp(-label * (x * w[feature]).sum(1))).sum() + LAMBDA * np.abs(w).sum())


def evaluate(features: gridml.Batch[Feature], shared: Shared) -> dict[str, float]:
    return {"objective": objective(features.w), "used": int((features.w != 0).sum()), "passes": int(shared.passes)}


block = gridml.MiniBatch([slope, move, carry], size=30, parts=4, exact=True)
program = gridml.Program(graph, [block, tighten, reopen], evaluate, epochs=60)

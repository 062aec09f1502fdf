"""Logistic regression by steps along the slope, each as long as its curvature allows: two exchanges a mini-batch, each
followed by an apply at the owner, and a global_sync that ends the run. Features are drawn with hidden weights."""

from math import exp, log1p

import numpy as np

import gridml

FEATURES, SAMPLES, NONZERO, RIDGE, ENOUGH = 30, 240, 5, 0.05, 0.47


class Shared(gridml.Vertex):
    loss, samples = gridml.accumulator("float64"), gridml.accumulator("int64")
    steps = gridml.accumulator("int64")  # of features, by the owner
    last_loss, damp = gridml.array("float64"), gridml.array("float64")
    mini_batches, passes, last_steps = gridml.array("int64"), gridml.array("int64"), gridml.array("int64")
    aggregate = gridml.owned()


class Feature(gridml.Vertex):
    w, stride = gridml.array("float64"), gridml.array("float64")
    slope, curve = gridml.accumulator("float64"), gridml.accumulator("float64")
    samples = gridml.accumulator("int64")
    aggregate = gridml.owned()


class Sample(gridml.Vertex):
    label = gridml.array("float64")
    score = gridml.array("float64", mutable=True)
    along = gridml.array("float64", mutable=True)
    has = gridml.edge(Feature, weight="float64")


@gridml.exchange(over=Sample)
def score(sample: Sample, features: gridml.Links[Feature], at: Shared) -> None:
    total = 0.0
    for feature in features:
        total += feature.weight * feature.end.w
    sample.score = total
    at.loss += log1p(exp(-sample.label * total))
    at.samples += 1


@gridml.exchange(over=Sample)
def slope(sample: Sample, feature: Feature, x: gridml.Link) -> None:
    feature.slope -= sample.label * x.weight / (1.0 + exp(sample.label * sample.score))
    feature.samples += 1


@gridml.apply(Feature)
def aim(feature: Feature) -> None:
    feature.stride = -(feature.slope / feature.samples + RIDGE * feature.w)


@gridml.exchange(over=Sample)
def bend(sample: Sample, features: gridml.Links[Feature]) -> None:
    along = 0.0
    for feature in features:
        along += feature.weight * feature.end.stride
    sample.along = along
    tau = 1.0 / (1.0 + exp(-sample.score))
    for feature in features:
        feature.end.curve += abs(feature.weight * feature.end.stride * along) * tau * (1.0 - tau)


@gridml.apply(Feature)
def move(feature: Feature, at: Shared) -> None:
    feature.w += feature.stride * at.damp / (0.2 + feature.curve / (1e-9 + feature.stride * feature.stride))
    at.steps += 1


@gridml.global_sync
def look(shared: Shared) -> bool:
    shared.last_loss = shared.loss / shared.samples
    shared.last_steps += shared.steps
    shared.mini_batches += 1
    shared.damp = 0.5 + 0.5 * shared.damp
    return bool(shared.last_loss < ENOUGH)


@gridml.global_sync
def count(shared: Shared) -> None:
    shared.passes += 1


def samples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, weights, labels) of shapes (SAMPLES, NONZERO), (SAMPLES, NONZERO), (SAMPLES,)."""
    rng = np.random.default_rng(4)
    feature = np.array([rng.choice(FEATURES, NONZERO, replace=False) for _ in range(SAMPLES)])
    x, hidden = rng.normal(size=feature.shape), rng.normal(size=FEATURES)
    return feature, x, np.where((x * hidden[feature]).sum(1) + rng.normal(0, 0.3, SAMPLES) > 0, 1.0, -1.0)


def graph() -> gridml.Graph:
    feature, x, label = samples()
    g = gridml.Graph()
    g.add(Shared, last_loss=0, damp=0.5, mini_batches=0, passes=0, last_steps=0)
    g.add(Feature, w=np.zeros(FEATURES), stride=0)
    has = gridml.csr(np.arange(SAMPLES + 1) * NONZERO, feature.ravel(), x.ravel())
    g.add(Sample, label=label, score=0, along=0, has=has)
    return g


def evaluate(shared: Shared) -> dict[str, float]:
    return {"loss": float(shared.last_loss), "passes": int(shared.passes), "mini_batches": int(shared.mini_batches)}


stages = [score, slope, aim, bend, move, look]
program = gridml.Program(
    graph, [gridml.MiniBatch(stages, size=20, slack=0, parts=4, exact=True), count], evaluate, epochs=40
)

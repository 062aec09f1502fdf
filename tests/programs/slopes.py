"""Logistic regression by gradient: an exchange adds up slopes of features, and an apply at their owner takes the step.
Features are drawn with hidden weights; a sample has six of them."""

from math import exp, log1p

import numpy as np

import gridml

FEATURES, SAMPLES, NONZERO, RIDGE = 40, 360, 6, 0.01


class Shared(gridml.Vertex):
    rate = gridml.array("float64")
    steps = gridml.accumulator("int64")  # of features, by the owner
    loss = gridml.accumulator("float64")
    furthest = gridml.accumulator("float64", by="max")
    passes = gridml.array("int64")
    last_steps = gridml.array("int64")
    last_loss = gridml.array("float64")
    aggregate = gridml.owned()


class Feature(gridml.Vertex):
    w = gridml.array("float64")
    reach = gridml.accumulator("float64", by="max")
    slope = gridml.accumulator("float64")
    samples = gridml.accumulator("int64")
    steps = gridml.array("int64")
    aggregate = gridml.owned()


class Sample(gridml.Vertex):
    label = gridml.array("float64")
    score = gridml.array("float64", mutable=True)
    has = gridml.edge(Feature, weight="float64")


@gridml.exchange(over=Sample)
def score(sample: Sample, features: gridml.Links[Feature], at: Shared) -> None:
    total = 0.0
    for feature in features:
        total += feature.weight * feature.end.w
    sample.score = total
    at.loss += log1p(exp(-sample.label * total))


@gridml.exchange(over=Sample)
def slope(sample: Sample, feature: Feature, x: gridml.Link) -> None:
    feature.slope -= sample.label * x.weight / (1.0 + exp(sample.label * sample.score))
    feature.samples += 1
    feature.reach = max(feature.reach, abs(x.weight))


@gridml.apply(Feature)
def move(feature: Feature, at: Shared) -> None:
    step = at.rate * (feature.slope / feature.samples + RIDGE * feature.w) / max(1.0, feature.reach)
    feature.w -= step
    feature.steps += feature.samples
    at.steps += 1
    at.furthest = max(at.furthest, abs(step))


@gridml.global_sync
def cool(shared: Shared) -> None:
    shared.rate *= 0.9
    shared.passes += 1
    shared.last_steps = shared.steps
    shared.last_loss = shared.loss / SAMPLES


def samples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, weights, labels) of shapes (SAMPLES, NONZERO), (SAMPLES, NONZERO), (SAMPLES,)."""
    rng = np.random.default_rng(4)
    feature = np.array([rng.choice(FEATURES, NONZERO, replace=False) for _ in range(SAMPLES)])
    x, hidden = rng.normal(size=feature.shape), rng.normal(size=FEATURES)
    return feature, x, np.where((x * hidden[feature]).sum(1) + rng.normal(0, 0.3, SAMPLES) > 0, 1.0, -1.0)


def graph() -> gridml.Graph:
    feature, x, label = samples()
    g = gridml.Graph()
    g.add(Shared, rate=1.5, passes=0, last_steps=0, last_loss=0)
    g.add(Feature, w=np.zeros(FEATURES), steps=0)
    g.add(Sample, label=label, score=0, has=gridml.csr(np.arange(SAMPLES + 1) * NONZERO, feature.ravel(), x.ravel()))
    return g


def evaluate(features: gridml.Batch[Feature], shared: Shared) -> dict[str, float]:
    return {
        "loss": float(shared.last_loss),
        "moved": int(features.steps.sum()),
        "steps": int(shared.last_steps),
        "slopes": float(np.abs(features.slope).sum() + features.samples.sum()),
    }


program = gridml.Program(
    graph, [gridml.MiniBatch([score, slope, move], size=30, slack=0, parts=4, exact=True), cool], evaluate, epochs=5
)

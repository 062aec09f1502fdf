"""The same as lr.py on one machine: proximal Newton steps by coordinate descent over the words that may matter, after
Yuan, Ho and Lin, "An improved GLMNET for l1-regularized logistic regression", JMLR 2012. For gridml.compute."""

from math import exp

import numpy as np
from lr import LAMBDA, chapters, evaluate

import gridml

SETTLED, ENOUGH = 1e-2, 1e-3  # of a word, for the rest of a pass; of the run, in parts of the steepest slope at first


class Shared(gridml.Vertex):
    worst = gridml.accumulator("float64", by="max")  # how far a word is from its optimum
    last, first, floor = gridml.array("float64"), gridml.array("float64"), gridml.array("float64")
    aggregate = gridml.owned()


class Feature(gridml.Vertex):
    w, stride, g, h = (gridml.array("float64") for _ in range(4))
    active = gridml.array("bool")
    aggregate = gridml.stale_mean()


class Sample(gridml.Vertex):
    label = gridml.array("float64")
    score, pull, slope, bend = (gridml.array("float64", mutable=True) for _ in range(4))
    words = gridml.edge(Feature, weight="float64")


@gridml.apply(Sample)
def weigh(sample: Sample, at: Shared) -> None:  # takes the step, and finds the next parabola
    sample.score += sample.pull / sample.bend
    sample.pull = 0.0
    tau = 1 / (1 + exp(sample.label * sample.score))
    sample.slope = -sample.label * tau
    sample.bend = max(tau * (1 - tau), at.floor)


@gridml.exchange(over=Feature)
def screen(feature: Feature, samples: gridml.Links[Sample], at: Shared) -> None:
    g, h, w = 0.0, 1e-12, feature.w + feature.stride
    for x in samples:
        g += x.weight * x.end.slope
    feature.active = w != 0 or abs(g) > LAMBDA
    if feature.active:
        for x in samples:
            h += x.weight * x.weight * x.end.bend
    feature.g, feature.h, feature.w, feature.stride = g, h, w, 0.0
    at.worst = max(at.worst, abs(g) - LAMBDA if w == 0 else abs(g + LAMBDA if w > 0 else g - LAMBDA))


@gridml.exchange(over=Feature, when="active")
def descend(feature: Feature, samples: gridml.Links[Sample], at: Shared) -> None:
    g, h, w = feature.g, feature.h, feature.w + feature.stride
    for x in samples:
        g += x.weight * x.end.pull
    step = -(g + LAMBDA) / h if g + LAMBDA <= h * w else -(g - LAMBDA) / h if g - LAMBDA >= h * w else -w
    feature.active = abs(step) * h > SETTLED * min(at.last, LAMBDA)
    if step != 0:
        feature.stride += step
        for x in samples:
            x.end.pull += step * x.weight * x.end.bend


@gridml.global_sync
def look(shared: Shared) -> bool:
    # At 0.25 the parabola is above the loss, and every step goes down.
    shared.floor = min(0.25, 4 * shared.floor) if shared.worst > shared.last else max(1e-3, shared.floor / 4)
    shared.first, shared.last = max(shared.first, shared.worst), shared.worst
    return bool(shared.worst < ENOUGH * shared.first)


def graph() -> gridml.Graph:
    (label, offsets, word, x, vocabulary), g = chapters(held=False), gridml.Graph()
    g.add(Shared, last=1e300, first=0, floor=1e-3)
    g.add(Feature, ids=vocabulary, w=np.zeros(len(vocabulary)), stride=0, g=0, h=0, active=False)
    g.add(
        Sample, label=gridml.signs(label), score=0, pull=0, slope=0, bend=1, words=gridml.csr(offsets, word, weight=x)
    )
    return g


pass_over = gridml.MiniBatch([weigh, screen, *[descend] * 8, look], parts=1)
program = gridml.Program(graph, [pass_over], evaluate, epochs=100)

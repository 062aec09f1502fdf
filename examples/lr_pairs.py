"""The same as lr.py with few features, the commonest words, by Newton steps on all pairs of them. See docs/lr.md.

A pass sums up slopes over all chapters, on all workers, and curvatures over enough of them (Byrd, Chin, Neveitt and
Nocedal, "On the use of stochastic Hessian information in optimization methods for machine learning", 2011). Then the
master goes to the minimum of this parabola and the penalty by coordinate descent (Friedman, Hastie and Tibshirani,
"Regularization paths for generalized linear models via coordinate descent", 2010), and half of the way back if the
objective has risen.
"""

from math import exp, log1p

import numpy as np
from lr import LAMBDA, chapters, evaluate

import gridml

# SAMPLES: for each feature, from which curvatures of pairs are taken; ENOUGH: in parts of the steepest slope at first.
FEATURES, SAMPLES, SWEEPS, ENOUGH = 100, 32, 50, 1e-4


class Shared(gridml.Vertex):
    loss, g, d = gridml.accumulator("float64"), *(gridml.accumulator("float64", (FEATURES,)) for _ in range(2))
    h = gridml.accumulator("float64", (FEATURES, FEATURES))
    w, before, pull = (gridml.array("float64", (FEATURES,)) for _ in range(3))
    last, first, worst = (gridml.array("float64") for _ in range(3))
    aggregate = gridml.owned()


class Feature(gridml.Vertex):
    number, w = gridml.array("uint32"), gridml.array("float64")
    aggregate = gridml.owned()


class Sample(gridml.Vertex):
    label, times = gridml.array("float64"), gridml.array("float64")  # times: 0, or for how many samples its pairs count
    words = gridml.edge(Feature, weight="float64")


@gridml.exchange(over=Sample)
def look(sample: Sample, words: gridml.Links[Feature], at: Shared) -> None:
    margin = 0.0
    for x in words:
        margin += sample.label * x.weight * x.end.w
    odds = exp(-abs(margin))
    tau = (odds if margin > 0 else 1.0) / (1 + odds)
    at.loss += log1p(odds) - min(margin, 0.0)
    for x in words:
        at.g[x.end.number] -= sample.label * tau * x.weight
        at.d[x.end.number] += tau * (1 - tau) * x.weight**2
    if sample.times > 0:
        for x in words:
            for y in words:
                at.h[x.end.number, y.end.number] += sample.times * tau * (1 - tau) * x.weight * y.weight


@gridml.apply(Shared)
def solve(at: Shared) -> None:
    objective, worst = at.loss, 0.0
    for f in range(FEATURES):
        g, w, at.pull[f] = at.g[f], at.w[f], 0.0
        objective += LAMBDA * abs(w)
        worst = max(worst, abs(g) - LAMBDA if w == 0 else abs(g + LAMBDA if w > 0 else g - LAMBDA))
    if objective > at.last:
        for f in range(FEATURES):
            at.w[f] = (at.w[f] + at.before[f]) / 2
        return
    at.last, at.worst, at.first = objective, worst, max(at.first, worst)
    for f in range(FEATURES):
        at.before[f] = at.w[f]
    for turn in range(SWEEPS * FEATURES):
        f = turn % FEATURES
        g, h, w = at.g[f] + at.pull[f], max(at.d[f], at.h[f, f]) + 1e-12, at.w[f]
        at.w[f] = (max(h * w - g - LAMBDA, 0.0) + min(h * w - g + LAMBDA, 0.0)) / h
        if at.w[f] != w:
            for k in range(FEATURES):
                at.pull[k] += (at.w[f] - w) * (at.h[f, k] if k != f else h)


@gridml.apply(Feature)
def take(feature: Feature, at: Shared) -> None:
    if feature.number < FEATURES:
        feature.w = at.w[feature.number]


@gridml.global_sync
def enough(shared: Shared) -> bool:
    return bool(shared.worst < ENOUGH * shared.first)


def graph() -> gridml.Graph:
    (label, offsets, word, x, vocabulary), g = chapters(held=False), gridml.Graph()
    common = word < FEATURES  # the vocabulary begins with the most frequent
    words = gridml.csr(np.append(0, np.cumsum(common))[offsets], word[common], weight=x[common])
    every = max(1, len(label) // (SAMPLES * FEATURES))
    g.add(Shared, w=0, before=0, pull=0, last=1e300, first=0, worst=0)
    g.add(Feature, ids=vocabulary, w=0, number=np.arange(len(vocabulary)))
    g.add(Sample, label=gridml.signs(label), times=every * (np.arange(len(label)) % every == 0), words=words)
    return g


program = gridml.Program(graph, [gridml.MiniBatch([look]), solve, take, enough], evaluate, epochs=100, shuffle="none")

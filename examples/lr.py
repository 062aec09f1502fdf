"""Words that tell the New Testament from the Old: l1 logistic regression by blocks of features, see docs/lr.md."""

from math import exp, log

import numpy as np

import gridml

LAMBDA, ETA, ENOUGH, OLD = 0.3, 0.8, 0.03, 929  # the first 929 chapters are the Old Testament


class Shared(gridml.Vertex):  # one vertex: how far from the optimum the last pass was, and what follows from it
    worst, loss = gridml.accumulator("float64", by="max"), gridml.accumulator("float64")
    theta, eta, last, share, full = *(gridml.array("float64") for _ in range(4)), gridml.array("bool")
    aggregate = gridml.owned()


class Feature(gridml.Vertex):  # replicated: a word
    w, stride, reach, active = *(gridml.array("float64") for _ in range(3)), gridml.array("bool")
    g, u = gridml.accumulator("float64"), gridml.accumulator("float64")
    aggregate = gridml.owned()


class Sample(gridml.Vertex):  # local: a chapter
    label = gridml.array("float64")
    dual = gridml.array("float64", mutable=True)  # exp(label * score)
    words = gridml.edge(Feature, weight="float64")


@gridml.apply(Sample)
def lose(sample: Sample, at: Shared) -> None:
    at.loss += at.share * log(1 + 1 / sample.dual)


@gridml.exchange(over=Feature, when="active")
def slope(feature: Feature, sample: Sample, x: gridml.Link) -> None:
    tau = 1 / (1 + sample.dual)
    feature.g -= sample.label * tau * x.weight
    feature.u += min(tau * (1 - tau) * exp(abs(x.weight) * feature.reach), 0.25) * x.weight**2


@gridml.apply(Feature)
def move(feature: Feature, at: Shared) -> None:
    g, w, u, feature.stride = feature.g, feature.w, feature.u / at.eta + 1e-10, 0.0
    at.loss += LAMBDA * abs(w)
    feature.active = feature.active and not (w == 0 and abs(g) < LAMBDA - at.theta)
    if feature.active:
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
    done = shared.worst < ENOUGH * LAMBDA
    enough, shared.full, shared.theta = bool(done and shared.full), done, shared.worst / 100
    # Words that come together can step too far together: then all steps become shorter.
    shared.eta = 0.5 * shared.eta if shared.loss > (1 + 1e-4) * shared.last else min(ETA, 1.2 * shared.eta)
    shared.last = shared.loss
    return enough


@gridml.apply(Feature)
def reopen(feature: Feature, at: Shared) -> None:
    feature.active = feature.active or at.full


def chapters(held: bool) -> tuple[np.ndarray, ...]:
    """(labels, offsets, words, weights, vocabulary) of every tenth chapter, or of the others."""
    books = gridml.datasets.corpus(gridml.datasets.king_james().lines, skip=100, at_least=2)
    kept = (np.arange(len(books)) % 10 == 0) == held
    offsets, word, count = books.only(kept).bag()
    long = np.repeat(np.diff(offsets), np.diff(offsets))  # different words of the chapter
    label = np.where(np.arange(len(books)) < OLD, -1.0, 1.0)[kept]
    return label, offsets, word, np.log1p(count) / np.sqrt(long), books.vocabulary


def graph() -> gridml.Graph:
    (label, offsets, word, x, vocabulary), g = chapters(held=False), gridml.Graph()
    share = 1 / -(-len(vocabulary) // 1500)
    g.add(Shared, theta=1e9, eta=ETA, last=1e300, share=share, full=True)
    g.add(Feature, ids=vocabulary, w=np.zeros(len(vocabulary)), stride=0, reach=1, active=True)
    g.add(Sample, label=gridml.signs(label), dual=1, words=gridml.csr(offsets, word, weight=x))
    return g


def evaluate(features: gridml.Batch[Feature]) -> dict[str, float]:
    label, offsets, word, x, _ = chapters(held=True)
    score = np.add.reduceat(x * features.w[word], offsets[:-1])
    return {"accuracy": float(np.mean(score * label > 0)), "used": int(np.count_nonzero(features.w))}


block = gridml.MiniBatch([lose, slope, move, carry], size=1500, parts=4)  # words, drawn again in each pass
program = gridml.Program(graph, [block, tighten, reopen], evaluate, epochs=100)

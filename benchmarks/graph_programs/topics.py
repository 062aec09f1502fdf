"""Latent Dirichlet allocation for the benchmarks: examples/lda.py with weights of topics that are learnt.

Their fixed point is equation 55 of Minka, "Estimating a Dirichlet distribution", 2000; a difference of digammas is a
sum of as many terms as a text has tokens of the topic. TOPICS in the environment is the number of topics.
"""

import os
from dataclasses import dataclass

import numpy as np

import gridml
from benchmarks.graph_programs.texts import Texts
from gridml import counters

TOPICS, ALPHA, BETA = int(os.environ.get("TOPICS", "100")), 0.1, 0.01


@dataclass(frozen=True)
class Settings:
    """What is chosen on one text."""

    size: int = 10_000  #: texts in a mini-batch, before which the words' probabilities are computed
    every: int = 1  #: passes between two steps of the weights
    damped: float = 1.0  #: the exponent of a step
    floor: float = 1e-5  #: the least weight of a topic
    few: int = 0  #: topics with which a text begins, drawn at random; 0: one is drawn for each token


class Corpus(gridml.Vertex):
    count = gridml.array("int32", (TOPICS,))
    words, passes = gridml.array("float32"), gridml.array("int64")
    alpha, weights = gridml.array("float32", (TOPICS,)), gridml.array("float32")  # of each topic, and their sum
    more = gridml.accumulator("float64", (TOPICS,))
    less = gridml.accumulator("float64")
    mine, parts = gridml.counter(TOPICS), gridml.scratch("float32", (TOPICS,))
    aggregate = gridml.by_name({"*/count": gridml.add(), "*": gridml.owned()})


class Word(gridml.Vertex):
    count = gridml.array("int32", (TOPICS,))
    phi, upto = gridml.derived("float32", (TOPICS,)), gridml.derived("float32", (TOPICS,))
    far = gridml.derived("float32")
    aggregate = gridml.add()


class Text(gridml.Vertex):
    words = gridml.edge(Word, topic=gridml.array("int32", mutable=True))


@gridml.apply(Word, at="mirror")
def refresh(word: Word, at: Corpus) -> None:
    total = 0.0
    for k in range(TOPICS):
        word.phi[k] = (word.count[k] + BETA) / (at.count[k] + BETA * at.words)
        total += at.alpha[k] * word.phi[k]
        word.upto[k] = total
    word.far = total


def rising(count: int, x: float) -> float:
    """The digamma function of x + count, less that of x."""
    total = 0.0
    for i in range(count):
        total += 1.0 / (x + i)
    return total


@gridml.exchange(over=Text)
def sample(text: Text, tokens: gridml.Links[Word], at: Corpus) -> None:
    counters.empty(at.mine)
    for token in tokens:
        counters.put(at.mine, token.topic)
    for token in tokens:
        old, new = token.topic, token.topic
        counters.take(at.mine, old)
        size = np.float32(at.count[old]) + BETA * at.words  # so that `own` is the probability without this token
        own = max(token.end.phi[old] * size - 1.0, BETA) / (size - 1.0)
        near = counters.weigh(at.mine, token.end.phi, at.parts, old, own)
        while True:
            u = np.float32(gridml.uniform()) * (near + token.end.far)
            if u < near:
                new = counters.draw(at.mine, at.parts, u)
                break
            new = counters.search(token.end.upto, TOPICS, u - near)
            if new != old or gridml.uniform() * token.end.phi[old] < own:
                break
        counters.put(at.mine, new)
        if new != old:
            token.topic = new
            token.end.count[old] -= 1
            token.end.count[new] += 1
            at.count[old] -= 1
            at.count[new] += 1
    for i in range(counters.size(at.mine)):
        at.more[at.mine[0, i]] += rising(at.mine[1, i], at.alpha[at.mine[0, i]])
    at.less += rising(len(tokens), at.weights)


def program(found: Texts, settings: Settings, seed: int) -> gridml.Program:
    """Return the program for some texts. Each token begins with a topic drawn at random."""

    def graph() -> gridml.Graph:
        rng, texts = np.random.default_rng(seed), len(found.offsets) - 1
        topic = rng.integers(0, settings.few or TOPICS, len(found.word))
        if settings.few:
            begins = rng.integers(0, TOPICS, (texts, settings.few))
            topic = begins[np.repeat(np.arange(texts), np.diff(found.offsets)), topic]
        count = np.bincount(found.word * TOPICS + topic, minlength=found.words * TOPICS).astype(np.int32)
        count, g = count.reshape(-1, TOPICS), gridml.Graph()
        alpha = np.full((1, TOPICS), ALPHA)
        g.add(Corpus, count=count.sum(0)[None], words=found.words, passes=0, alpha=alpha, weights=alpha.sum())
        g.add(Word, count=count)
        g.add(Text, words=gridml.csr(found.offsets, found.word, topic=topic))
        return g

    def weigh(corpus: Corpus) -> None:
        corpus.passes += 1
        if corpus.passes % settings.every == 0:
            corpus.alpha[:] = np.maximum(corpus.alpha * (corpus.more / corpus.less) ** settings.damped, settings.floor)
            corpus.weights = corpus.alpha.sum()

    batch = gridml.MiniBatch([refresh, sample], size=settings.size, seed=seed)
    return gridml.Program(graph, [batch, gridml.global_sync(weigh)], epochs=100)

"""Topics of the King James Bible: latent Dirichlet allocation by Gibbs sampling, sparse in a chapter's topics.

Griffiths and Steyvers, "Finding scientific topics", PNAS 2004, equation 5; a token's proposal is split as in Yao, Mimno
and McCallum, KDD 2009. Counts are added, so they are exact whatever dies; topics come home with a chapter.
"""

import re
from collections import Counter

import numpy as np

import gridml
from gridml import counters

TOPICS, BETA, EPOCHS = 100, 0.01, 15


class Corpus(gridml.Vertex):  # one vertex: how often each topic is used, and working memory of a worker
    count = gridml.array("int32", (TOPICS,))
    words, alpha = gridml.array("float32"), gridml.array("float32")
    mine, sums = gridml.counter(TOPICS), gridml.scratch("float32", (TOPICS,))
    aggregate = gridml.by_name({"*/count": gridml.add(), "*": gridml.owned()})


class Word(gridml.Vertex):  # replicated: how often it has each topic
    count = gridml.array("int32", (TOPICS,))
    phi, upto = gridml.derived("float32", (TOPICS,)), gridml.derived("float32", (TOPICS,))
    aggregate = gridml.add()


class Chapter(gridml.Vertex):  # local
    words = gridml.edge(Word, topic=gridml.array("int32", mutable=True))


@gridml.apply(Word, at="mirror")
def refresh(word: Word, at: Corpus) -> None:
    total = 0.0
    for k in range(TOPICS):
        word.phi[k] = (word.count[k] + BETA) / (at.count[k] + BETA * at.words)
        total += word.phi[k]
        word.upto[k] = total


@gridml.exchange(over=Chapter)
def sample(chapter: Chapter, tokens: gridml.Links[Word], at: Corpus) -> None:
    counters.empty(at.mine)
    for token in tokens:
        counters.put(at.mine, token.topic)
    for token in tokens:
        old, new = token.topic, token.topic
        counters.take(at.mine, old)
        own = (token.end.count[old] - 1 + BETA) / (at.count[old] - 1 + BETA * at.words)  # without this token
        near, n = 0.0, counters.size(at.mine)
        for i in range(n):
            near += at.mine[1, i] * (own if at.mine[0, i] == old else token.end.phi[at.mine[0, i]])
            at.sums[i] = near
        while True:
            u = gridml.uniform() * (near + at.alpha * token.end.upto[TOPICS - 1])
            if u < near:
                new = at.mine[0, counters.search(at.sums, n, u)]
                break
            new = counters.search(token.end.upto, TOPICS, (u - near) / at.alpha)
            if new != old or gridml.uniform() * token.end.phi[old] < own:
                break
        counters.put(at.mine, new)
        token.topic = new
        token.end.count[old] -= 1  # in force when the mini-batch ends
        token.end.count[new] += 1
        at.count[old] -= 1
        at.count[new] += 1


def corpus() -> tuple[list[list[int]], int]:
    """The words of each chapter, as numbers, and how many words there are: those that are neither rare nor common."""
    chapters = [re.findall("[a-z]+", line.lower()) for line in gridml.datasets.king_james().lines]
    often = Counter(word for chapter in chapters for word in chapter).most_common()
    number = {word: at for at, (word, times) in enumerate(often[100:]) if times > 4}
    return [[number[word] for word in chapter if word in number] for chapter in chapters], len(number)


def graph() -> gridml.Graph:
    chapters, words = corpus()
    kept = [chapter for at, chapter in enumerate(chapters) if at % 20]
    word = np.array([each for chapter in kept for each in chapter])
    topic = np.random.default_rng(0).integers(0, TOPICS, len(word))
    count, g = np.zeros((words, TOPICS), np.int32), gridml.Graph()
    np.add.at(count, (word, topic), 1)
    g.add(Corpus, count=count.sum(0)[None], words=words, alpha=0.1)
    g.add(Word, count=count)
    g.add(Chapter, words=gridml.csr(np.cumsum([0, *map(len, kept)]), word, topic=topic))
    return g


def evaluate(words: gridml.Batch[Word]) -> dict[str, float]:
    """The perplexity of the second halves of chapters that were held out, whose first halves give the topics."""
    phi, logs = (words.count + BETA) / (words.count.sum(0) + BETA * len(words)), []
    for chapter in corpus()[0][::20]:
        theta = np.full(TOPICS, 1 / TOPICS)
        for _ in range(20):
            each = phi[chapter[::2]] * theta
            theta = (each / each.sum(1, keepdims=True)).sum(0) + 0.1
        logs.append(np.log(phi[chapter[1::2]] @ (theta / theta.sum())))
    return {"perplexity": float(np.exp(-np.concatenate(logs).mean()))}


program = gridml.Program(graph, [gridml.MiniBatch([refresh, sample], size=32)], evaluate, epochs=EPOCHS)

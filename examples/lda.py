"""Topics of the King James Bible: Gibbs sampling (Griffiths and Steyvers, PNAS 2004, equation 5), see docs/lda.md."""

import gridml
from gridml import counters

TOPICS, ALPHA, BETA, EPOCHS = 100, 0.1, 0.01, 15


class Corpus(gridml.Vertex):  # one vertex: how often each topic is used, and working memory of a worker
    count = gridml.array("int32", (TOPICS,))
    words, counted = gridml.array("float32"), gridml.array("float32")
    mine, parts = gridml.counter(TOPICS), gridml.scratch("float32", (TOPICS,))
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
        old = token.topic
        counters.take(at.mine, old)
        own = (token.end.count[old] - at.counted + BETA) / (at.count[old] - at.counted + BETA * at.words)
        near, accepted = counters.weigh(at.mine, token.end.phi, at.parts, old, own), False
        while not accepted:
            u = gridml.uniform() * (near + ALPHA * token.end.upto[TOPICS - 1])
            far = (u - near) / ALPHA
            new = counters.draw(at.mine, at.parts, u) if u < near else counters.search(token.end.upto, TOPICS, far)
            accepted = u < near or new != old or gridml.uniform() * token.end.phi[old] < own
        counters.put(at.mine, new)
        if new != old:
            token.topic = new
            token.end.count[old] -= 1  # in force when the mini-batch ends
            token.end.count[new] += 1
            at.count[old] -= 1
            at.count[new] += 1


def chapters() -> tuple[gridml.datasets.Corpus, gridml.datasets.Corpus]:
    return gridml.datasets.corpus(gridml.datasets.king_james().lines, skip=100, at_least=5).split(20)


def graph() -> gridml.Graph:
    (kept, _), g = chapters(), gridml.Graph()
    topic = kept.first_topics(TOPICS)
    count = kept.counts(topic, TOPICS)
    g.add(Corpus, count=count.sum(0)[None], words=len(count), counted=1)
    g.add(Word, ids=kept.vocabulary, count=count)
    g.add(Chapter, words=gridml.csr(kept.offsets, kept.word, topic=topic))
    return g


def evaluate(words: gridml.Batch[Word]) -> dict[str, float]:
    phi = (words.count + BETA) / (words.count.sum(0) + BETA * len(words))
    return {"perplexity": chapters()[1].perplexity(phi, ALPHA)}


program = gridml.Program(graph, [gridml.MiniBatch([refresh, sample], size=32)], evaluate, epochs=EPOCHS)

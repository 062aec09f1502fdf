"""Topics of texts in a file, as examples/lda.py, but tokens begin without one: the first pass draws it from those drawn
before. EDGES in the environment names the file, with a text and a word on each line."""

import os

import gridml
from gridml import counters

TOPICS, ALPHA, BETA = 20, 0.1, 0.01


class Corpus(gridml.Vertex):
    count = gridml.array("int32", (TOPICS,))
    words, seen, credited = gridml.array("float32"), gridml.accumulator("int64"), gridml.array("int64")
    mine, parts = gridml.counter(TOPICS), gridml.scratch("float32", (TOPICS,))
    aggregate = gridml.by_name({"*/count": gridml.add(), "*": gridml.owned()})


class Word(gridml.Vertex):
    count = gridml.array("int32", (TOPICS,))
    phi, upto = gridml.derived("float32", (TOPICS,)), gridml.derived("float32", (TOPICS,))
    aggregate = gridml.add()


class Text(gridml.Vertex):
    words = gridml.edge(Word, topic=gridml.array("int32", mutable=True))


@gridml.apply(Word, at="mirror")
def refresh(word: Word, at: Corpus) -> None:
    total = 0.0
    for k in range(TOPICS):
        word.phi[k] = (word.count[k] + BETA) / (at.count[k] + BETA * at.words)
        total += word.phi[k]
        word.upto[k] = total


@gridml.exchange(over=Text)
def sample(text: Text, tokens: gridml.Links[Word], at: Corpus) -> None:
    counters.empty(at.mine)
    for token in tokens:
        if token.topic >= 0:
            counters.put(at.mine, token.topic)
    for token in tokens:
        at.seen += 1
        old, known = token.topic, max(token.topic, 0)
        own = token.end.phi[known]
        if old >= 0:
            counters.take(at.mine, old)
            own = (token.end.count[old] - 1 + BETA) / (at.count[old] - 1 + BETA * at.words)
        near, accepted = counters.weigh(at.mine, token.end.phi, at.parts, known, own), False
        while not accepted:
            u = gridml.uniform() * (near + ALPHA * token.end.upto[TOPICS - 1])
            far = (u - near) / ALPHA
            new = counters.draw(at.mine, at.parts, u) if u < near else counters.search(token.end.upto, TOPICS, far)
            accepted = u < near or new != old or gridml.uniform() * token.end.phi[known] < own
        counters.put(at.mine, new)
        if new != old:
            token.topic = new
            token.end.count[new] += 1
            at.count[new] += 1
            if old >= 0:
                token.end.count[old] -= 1
                at.count[old] -= 1


@gridml.global_sync
def keep(corpus: Corpus) -> None:
    corpus.credited = corpus.seen


def graph() -> gridml.Graph:
    read, g = gridml.graph_from(os.environ["EDGES"]), gridml.Graph()
    g.add(Corpus, count=0, words=read.columns, credited=0)
    g.add(Word, read.columns, ids=read.column_ids, count=0)
    g.add(Text, ids=read.row_ids, words=gridml.csr(read.offsets, read.targets, topic=-1))
    return g


program = gridml.Program(graph, [gridml.MiniBatch([refresh, sample], size=256), keep], epochs=2)

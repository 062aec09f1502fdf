"""Topics of generated texts by compiled stages: counts that are added, and topics that come home with their text."""

import numpy as np

import gridml
from gridml import counters

TOPICS, WORDS, TEXTS, BETA = 8, 50, 120, 0.1


class Corpus(gridml.Vertex):
    count = gridml.array("int64", (TOPICS,))
    drawn = gridml.accumulator("int64")
    mine, sums = gridml.counter(TOPICS), gridml.scratch("float64", (TOPICS,))
    aggregate = gridml.by_name({"*/count": gridml.add(), "*": gridml.owned()})


class Word(gridml.Vertex):
    count = gridml.array("int64", (TOPICS,))
    share = gridml.derived("float64", (TOPICS,))
    aggregate = gridml.add()


class Text(gridml.Vertex):
    words = gridml.edge(Word, topic=gridml.array("int64", mutable=True), visits=gridml.array("int32", mutable=True))


@gridml.apply(Word, at="mirror")
def refresh(word: Word, at: Corpus) -> None:
    for k in range(TOPICS):
        word.share[k] = (word.count[k] + BETA) / (at.count[k] + BETA * WORDS)


@gridml.exchange(over=Text)
def sample(text: Text, tokens: gridml.Links[Word], at: Corpus) -> None:
    counters.empty(at.mine)
    for token in tokens:
        counters.put(at.mine, token.topic)
    for token in tokens:
        old = token.topic
        counters.take(at.mine, old)
        total = 0.0
        for k in range(TOPICS):
            total += BETA * token.end.share[k]
            at.sums[k] = total
        for i in range(counters.size(at.mine)):
            for k in range(at.mine[0, i], TOPICS):
                at.sums[k] += at.mine[1, i] * token.end.share[at.mine[0, i]]
        new = counters.search(at.sums, TOPICS, gridml.uniform() * at.sums[TOPICS - 1])
        counters.put(at.mine, new)
        token.topic = new
        token.visits += 1
        token.end.count[old] -= 1
        token.end.count[new] += 1
        at.count[old] -= 1
        at.count[new] += 1
        at.drawn += 1


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """(offsets (TEXTS + 1,), word (m,)) of texts of 5 to 25 words, each about a sixth of all words."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(5, 26, TEXTS)
    words = [8 * rng.integers(0, 6) + rng.integers(0, 9, n) for n in lengths]
    return np.cumsum([0, *lengths]), np.concatenate(words)


def graph() -> gridml.Graph:
    offsets, word = tokens()
    topic = np.random.default_rng(4).integers(0, TOPICS, len(word))
    count, g = np.zeros((WORDS, TOPICS), np.int64), gridml.Graph()
    np.add.at(count, (word, topic), 1)
    g.add(Corpus, count=count.sum(0)[None])
    g.add(Word, count=count)
    visits = np.zeros(len(word), np.int32)
    g.add(Text, words=gridml.csr(offsets, word, topic=topic, visits=visits))
    return g


def evaluate(words: gridml.Batch[Word], corpus: Corpus) -> dict[str, float]:
    return {"counted": int(words.count.sum()), "apart": int(np.abs(words.count.sum(0) - corpus.count).sum())}


stages = gridml.MiniBatch([refresh, sample], size=8, exact=True)
program = gridml.Program(graph, [stages], evaluate, epochs=5)

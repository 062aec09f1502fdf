"""Naive Bayes: texts add to the counts of their words. The counts are exact, whatever happens to the workers."""

import numpy as np

import gridml

TEXTS, LENGTH, WORDS, TOPICS = 4000, 30, 500, 4


class Word(gridml.Vertex):  # replicated: its count in the texts of each topic
    count = gridml.array("int64", (TOPICS,))
    aggregate = gridml.add()


class Text(gridml.Vertex):  # local
    topic = gridml.array("int64")
    words = gridml.edge(Word)


@gridml.update(batch=100)
def count(texts: gridml.Batch[Text], words: gridml.Batch[Word]) -> None:
    topic = np.repeat(texts.topic, np.diff(texts.words.offsets))
    np.add.at(words.count, (texts.words.index, topic), 1)


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """(topic (TEXTS,), word (TEXTS, LENGTH)): each topic has its own favourite words."""
    rng = np.random.default_rng(4)
    topic = rng.integers(0, TOPICS, TEXTS)
    favour = rng.dirichlet(np.full(WORDS, 0.5), TOPICS).cumsum(1)
    word = [np.searchsorted(favour[t], rng.random(LENGTH)) for t in topic]
    return topic, np.minimum(word, WORDS - 1)


def graph() -> gridml.Graph:
    topic, word = corpus()
    g = gridml.Graph()
    g.add(Word, count=np.zeros((WORDS, TOPICS), np.int64))
    g.add(Text, topic=topic, words=word)
    return g


def evaluate(words: gridml.Batch[Word]) -> dict[str, float]:
    topic, word = corpus()
    expected = np.zeros((WORDS, TOPICS), np.int64)
    np.add.at(expected, (word, topic[:, None]), 1)
    evidence = np.log(words.count + 0.5)[word].sum(1) - LENGTH * np.log(words.count.sum(0))
    return {
        "counted": words.count.sum(),
        "miscounted": np.abs(words.count - expected).sum(),
        "accuracy": (evidence.argmax(1) == topic).mean(),
    }


program = gridml.Program(graph, count, evaluate)  # one epoch: a second one would count everything again

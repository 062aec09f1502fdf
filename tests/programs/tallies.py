"""Counts without local fields: exact after any rollback, if rollbacks are complete."""

import numpy as np

import gridml

COUNT, WORDS, EPOCHS = 2000, 50, 3


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    words = gridml.edge(Word)


@gridml.update(batch=10)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:
    np.add.at(words.count, documents.words.index, 1)


def links() -> np.ndarray:
    return np.random.default_rng(3).integers(0, WORDS, (COUNT, 4))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Document, words=links())
    return g


def evaluate(words: gridml.Batch[Word]) -> dict[str, float]:
    return {"counted": int(words.count.sum())}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

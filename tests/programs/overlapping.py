"""Sums over documents without state: an epoch begins during the last chunks of the previous one."""

import numpy as np

import gridml

COUNT, WORDS, EPOCHS = 15, 4, 3


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    words = gridml.edge(Word)


@gridml.update(batch=2)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:
    np.add.at(words.count, documents.words.index, 1)


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the counts when document i was trained `trained[i]` times."""
    return {"Word/count": np.bincount(np.arange(COUNT) % WORDS, trained, WORDS).astype(np.int64)}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Document, words=np.arange(COUNT) % WORDS)
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)

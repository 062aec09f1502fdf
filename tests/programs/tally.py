"""A dozen documents that count words: counts and visits show every vertex that was trained twice or never."""

import numpy as np

import gridml
from gridml.model.graph import Edges

COUNT, WORDS, EPOCHS = 13, 5, 2


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Level(gridml.Vertex):
    value = gridml.array("float32", (2,))
    aggregate = gridml.stale_mean()


class Document(gridml.Vertex):
    visits = gridml.array("int64", mutable=True)
    mood = gridml.array("float32", mutable=True)
    words = gridml.edge(Word)
    level = gridml.edge(Level)


@gridml.update(batch=2)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word], level: gridml.Batch[Level]) -> None:
    documents.visits += 1
    documents.mood = documents.visits / 2
    np.add.at(words.count, documents.words.index, 1)
    level.value += (1 - level.value) / 4


def links() -> Edges:
    """Document i has i % 4 words, so some have none."""
    degrees = np.arange(COUNT) % 4
    return gridml.csr(np.concatenate([[0], np.cumsum(degrees)]), np.arange(degrees.sum()) % WORDS)


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected values when document i was trained `trained[i]` times."""
    edges = links()
    counts = np.bincount(edges.targets, np.repeat(trained, np.diff(edges.offsets)), WORDS).astype(np.int64)
    return {"Word/count": counts, "Document/visits": trained, "Document/mood": (trained / 2).astype(np.float32)}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Level, value=np.zeros((3, 2), np.float32))
    g.add(
        Document,
        visits=np.zeros(COUNT, np.int64),
        mood=np.zeros(COUNT, np.float32),
        words=links(),
        level=np.arange(COUNT) % 3,
    )
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)

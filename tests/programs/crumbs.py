"""Counts in batches that must not be small: a vertex records if its batch was."""

import numpy as np

import gridml

COUNT, WORDS, EPOCHS = 29, 5, 2
BATCH, LEAST = 4, 3


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    visits = gridml.array("int64", mutable=True)
    crumb = gridml.array("int64", mutable=True)
    words = gridml.edge(Word)


@gridml.update(batch=BATCH, min_batch=LEAST)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:
    documents.visits += 1
    documents.crumb += len(documents.ids) < LEAST
    np.add.at(words.count, documents.words.index, 1)


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected values when document i was trained `trained[i]` times."""
    counts = np.bincount(np.arange(COUNT) % WORDS, trained, WORDS).astype(np.int64)
    return {"Word/count": counts, "Document/visits": trained, "Document/crumb": np.zeros(COUNT, np.int64)}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Document, visits=np.zeros(COUNT, np.int64), crumb=np.zeros(COUNT, np.int64), words=np.arange(COUNT) % WORDS)
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)

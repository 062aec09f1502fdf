"""Integer counts and visits of each vertex, which show every vertex that was trained twice or never."""

import numpy as np

import gridml

COUNT, WORDS, EPOCHS = 3000, 50, 3


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    visits = gridml.array("int64", mutable=True)
    words = gridml.edge(Word)


@gridml.update(batch=10)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:
    documents.visits += 1
    np.add.at(words.count, documents.words.index, 1)


def links() -> np.ndarray:
    return np.random.default_rng(3).integers(0, WORDS, (COUNT, 4))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(WORDS, np.int64))
    g.add(Document, visits=np.zeros(COUNT, np.int64), words=links())
    return g


def evaluate(words: gridml.Batch[Word], documents: gridml.Batch[Document]) -> dict[str, float]:
    return {"counted": int(words.count.sum()), "least_visits": int(documents.visits.min())}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

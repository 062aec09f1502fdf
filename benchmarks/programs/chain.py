"""Vertices whose field is a number chain, and sums over it. A vertex that was trained twice, never, or from a wrong
value changes the final numbers, and so does one that was credited in another epoch than the one it was trained in.

The environment variable CHAIN_S is the duration of a batch in seconds.
"""

import os
import time

import numpy as np

import gridml

COUNT, WORDS, EPOCHS = 700, 40, 3
BATCH_S = float(os.environ.get("CHAIN_S", "0"))


class Word(gridml.Vertex):
    total = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    link = gridml.array("int64", mutable=True)
    seen = gridml.array("int16", (2,), mutable=True)
    words = gridml.edge(Word)


def following(link: np.ndarray) -> np.ndarray:
    """The next link of each chain, by the generator of Park and Miller, which never reaches zero."""
    return link * 48271 % 2147483647


@gridml.update(batch=10)
def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:
    time.sleep(BATCH_S)
    documents.link = following(documents.link)
    documents.seen = documents.seen + np.array([1, -2], np.int16)
    np.add.at(words.total, documents.words.index, np.repeat(documents.link % 1_000_003, 3))


def first() -> np.ndarray:
    return np.arange(1, COUNT + 1) * 7919


def words_of() -> np.ndarray:
    return np.random.default_rng(3).integers(0, WORDS, (COUNT, 3))


def expected(epochs: int) -> dict[str, np.ndarray]:
    """Return the expected values after a number of epochs, by type and field."""
    link, total = first(), np.zeros(WORDS, np.int64)
    for _ in range(epochs):
        link = following(link)
        np.add.at(total, words_of(), link[:, None] % 1_000_003)
    seen = np.full((COUNT, 2), epochs, np.int16) * np.array([1, -2], np.int16)
    return {"Document/link": link, "Document/seen": seen, "Word/total": total}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, total=np.zeros(WORDS, np.int64))
    g.add(Document, link=first(), seen=np.zeros((COUNT, 2), np.int16), words=words_of())
    return g


def evaluate(words: gridml.Batch[Word], documents: gridml.Batch[Document]) -> dict[str, float]:
    return {"total": int(words.total.sum()), "links": int(documents.link.sum()), "seen": int(documents.seen.sum())}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

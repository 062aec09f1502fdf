"""Chapters of books: components of several local vertices, of two types, that are never cut."""

import numpy as np

import gridml

SIZES, EPOCHS = (1, 3, 2, 4, 1, 2), 2
COUNT = sum(SIZES)


class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Book(gridml.Vertex):
    seen = gridml.array("int64", mutable=True)


class Chapter(gridml.Vertex):
    visits = gridml.array("int64", mutable=True)
    book = gridml.edge(Book)
    words = gridml.edge(Word)


@gridml.update(batch=3, min_batch=2)
def train(chapters: gridml.Batch[Chapter], book: gridml.Batch[Book], words: gridml.Batch[Word]) -> None:
    chapters.visits += 1
    np.add.at(book.seen, chapters.book.index, 1)
    np.add.at(words.count, chapters.words.index, 1)


def book_of() -> np.ndarray:
    return np.repeat(np.arange(len(SIZES)), SIZES)


def words_of() -> np.ndarray:
    return np.stack([np.arange(COUNT) % 3, np.full(COUNT, 3)], 1)


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected values when chapter i was trained `trained[i]` times."""
    counts = np.zeros(4, np.int64)
    np.add.at(counts, words_of(), trained[:, None])
    seen = np.zeros(len(SIZES), np.int64)
    np.add.at(seen, book_of(), trained)
    return {"Word/count": counts, "Chapter/visits": trained, "Book/seen": seen}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Word, count=np.zeros(4, np.int64))
    g.add(Book, seen=np.zeros(len(SIZES), np.int64))
    g.add(Chapter, visits=np.zeros(COUNT, np.int64), book=book_of(), words=words_of())
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)

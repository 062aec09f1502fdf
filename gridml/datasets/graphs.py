"""Public data that are graphs: edges of SNAP (Leskovec and Krevl, 2014), ratings of MovieLens, words of documents.

The home of MovieLens 100k (100,000 ratings of 1,682 films by 943 people; Harper and Konstan, ACM TiiS 5:4, 2015) offers
it for research, not to be passed on; the package that a source fetches carries a copy. A corpus has texts as the
numbers of their words: a vocabulary, and the edges from each text to its words, for topic models.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gridml.datasets.pinned import Arrays, Fetched, Pin, Report, Source, reading
from gridml.datasets.public import MAX_FILE_BYTES, PublicSet, gunzip
from gridml.errors import DataError


@dataclass(frozen=True)
class SnapGraph:
    """The edges of a graph in ascending order, read-only; vertices count from 0. Those of a graph without directions
    are there once, from the smaller end to the larger."""

    source: NDArray[np.int64]  #: (n,)
    target: NDArray[np.int64]  #: (n,)
    vertices: int


def snap(
    name: str, cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> SnapGraph:
    """Return a graph by its name.

    "facebook": 88,234 friendships of 4,039 people (McAuley and Leskovec, 2012). "enron": 183,831 pairs of 36,692
    addresses that wrote to each other (Klimt and Yang, 2004). "slashdot": 948,464 links, with directions, of 82,168
    users to friends and foes (Leskovec, Lang, Dasgupta and Mahoney, 2008).

    `cache`, `progress` and `sources` are as for `mnist`. Raises DataError for another name, or if no source has the
    graph; StorageError if the cache cannot be written.
    """
    if name not in GRAPHS:
        raise DataError(f"snap got {name!r}; expected one of {', '.join(GRAPHS)}.")
    (edges,) = GRAPHS[name].obtain(cache, progress, sources)
    source, target = (edges[:, column].astype(np.int64) for column in (0, 1))
    for column in (source, target):
        column.flags.writeable = False
    return SnapGraph(source, target, int(edges.max()) + 1)


def read_edges(name: str, file: str, directed: bool, folder: Path, report: Report) -> Arrays:
    """Read a file of a folder, as SNAP has it: two numbers a line, and remarks behind #. Where it is not, read
    `FILE.edges.gz`, in which vertices count from 1."""
    path, first = folder / f"{file}.txt.gz", 0
    if not path.is_file():
        path, first = folder / f"{_RENAMED[file]}.edges.gz", 1
    lines = (line for line in gunzip(path).splitlines() if not line.startswith(b"#"))
    edges = np.array(b" ".join(lines).split(), np.int64).reshape(-1, 2) - first
    if not directed:
        edges = np.sort(edges, axis=1)  # some files have every edge twice
    return {name: np.unique(edges, axis=0)}


_RENAMED = {
    "facebook_combined": "facebook-combined",
    "email-Enron": "email-enron",
    "soc-Slashdot0902": "soc-slashdot0902-directed",
}
_HOME = "https://snap.stanford.edu/data/"


def _graph(name: str, title: str, file: str, edges: int, sha256: str, *, directed: bool = False) -> PublicSet:
    read, address = partial(read_edges, name, file, directed), f"{_HOME}{file}.txt.gz"
    home = Source(address, reading(read, Fetched(f"{file}.txt.gz", address)))
    pin = Pin(name, (edges, 2), "<i4", sha256)
    return PublicSet(f"SNAP's {title}", "snap", (pin,), read, f"the file {file}.txt.gz", (home,), ())


GRAPHS = {
    "facebook": _graph("facebook", "Facebook", "facebook_combined", 88_234,
                       "ad600080689ef712aa394c23c79ea1554b7bc734f304a74e5da569b637248d81"),
    "enron": _graph("enron", "Enron", "email-Enron", 183_831,
                    "0ae3a682c40deabe4cbcc814982aae55ae466379e9d8f40ba94e05b0f6372dea"),
    "slashdot": _graph("slashdot", "Slashdot", "soc-Slashdot0902", 948_464,
                       "1383282ba547f96b4e81e15e74920da2c37338a67d898f04ae9062a0a7d26080", directed=True),
}  # fmt: skip


_INSIDE = "recbole/dataset_example/ml-100k/ml-100k.inter"


@dataclass(frozen=True)
class Ratings:
    """Ratings in the order of the file, read-only; people and films count from 0."""

    user: NDArray[np.int64]  #: (n,)
    item: NDArray[np.int64]  #: (n,)
    stars: NDArray[np.float32]  #: (n,) from 1 to 5
    users: int
    items: int


def movielens(
    cache: Path | None = None, *, progress: Report | None = None, sources: Sequence[Source] | None = None
) -> Ratings:
    """Return the ratings of MovieLens 100k.

    `cache`, `progress` and `sources` are as for `mnist`. Raises DataError if no source has the ratings, StorageError if
    the cache cannot be written.
    """
    (rows,) = RATINGS.obtain(cache, progress, sources)
    user, item = (_constant(rows[:, column].astype(np.int64) - 1) for column in (0, 1))
    return Ratings(user, item, _constant(rows[:, 2].astype(np.float32)), int(user.max()) + 1, int(item.max()) + 1)


def _constant(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values


def read_ratings(folder: Path, report: Report) -> Arrays:
    """Read `ml-100k.inter` of a folder: a line of names, then user, item, stars and time, separated by tabs."""
    with open(folder / "ml-100k.inter", encoding="ascii") as file:
        return {"ml-100k": _table(file.read(MAX_FILE_BYTES))}


def read_wheel(folder: Path, report: Report) -> Arrays:
    """Read the file from the wheel of a package, which is not installed."""
    with zipfile.ZipFile(folder / "recbole.whl") as archive:
        return {"ml-100k": _table(archive.read(_INSIDE).decode("ascii"))}


def _table(text: str) -> NDArray[np.int32]:
    rows = [line.split("\t")[:3] for line in text.splitlines()[1:]]
    return np.array([[int(float(each)) for each in row] for row in rows], np.int32)


_WHEEL = Fetched(
    "recbole.whl", "pip:recbole==1.2.1", "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
)
RATINGS = PublicSet(
    "MovieLens 100k",
    "recsys",
    (Pin("ml-100k", (100_000, 3), "<i4", "360a20f6a6103988bcf221e50b873335450875d7b065b3fa26f3f8a0b34b9ca2"),),
    read_ratings,
    "the file ml-100k.inter of RecBole",
    (Source("the package recbole==1.2.1, fetched by pip", reading(read_wheel, _WHEEL)),),
    ("set pip's index (pip config set global.index-url ADDRESS) to one that can be reached",),
)


_ROUNDS = 20  # of expectation and maximisation: the mixture of a text has long converged


@dataclass(frozen=True)
class Corpus:
    """Texts as numbers of words: text i has the words `word[offsets[i]:offsets[i + 1]]`, in order."""

    vocabulary: NDArray[np.str_]  #: (words,) the most frequent first
    offsets: NDArray[np.int64]  #: (texts + 1,)
    word: NDArray[np.int64]  #: (tokens,) places in the vocabulary

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> NDArray[np.int64]:
        """Return the words of a text, as numbers."""
        return self.word[self.offsets[at] : self.offsets[at + 1]]

    def only(self, texts: ArrayLike) -> Corpus:
        """Return the corpus of some texts, given by their places or by a mask (texts,), with the same vocabulary."""
        kept = np.arange(len(self))[np.asarray(texts)]
        offsets = np.concatenate([[0], np.cumsum(np.diff(self.offsets)[kept])])
        return Corpus(self.vocabulary, offsets, np.concatenate([self.word[:0], *(self[at] for at in kept.tolist())]))

    def split(self, every: int) -> tuple[Corpus, Corpus]:
        """Return (the other texts, every `every`-th text from the first on, to be held out)."""
        out = np.arange(len(self)) % every == 0
        return self.only(~out), self.only(out)

    def counts(self, topic: NDArray[Any], topics: int) -> NDArray[np.int32]:
        """Return how often each word has each topic, int32 (words, topics). `topic` (tokens,) is that of each token."""
        flat = np.bincount(self.word * topics + topic, minlength=len(self.vocabulary) * topics)
        return flat.reshape(-1, topics).astype(np.int32)

    def bag(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (offsets (texts + 1,), words, counts): the different words of each text, ascending, and how often it
        has each."""
        size = len(self.vocabulary)
        text = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        key, count = np.unique(text * size + self.word, return_counts=True)
        return np.searchsorted(key, np.arange(len(self) + 1) * size), key % size, count

    def first_topics(self, topics: int, few: int = 5, seed: int = 0) -> NDArray[np.int64]:
        """Return a topic for each token, int64 (tokens,), to begin with: each text has a `few` topics at most, drawn at
        random. Gibbs sampling needs fewer passes from these than from a topic drawn for each token."""
        rng = np.random.default_rng(seed)
        of_text = rng.integers(0, topics, (len(self), few))
        return of_text[np.repeat(np.arange(len(self)), np.diff(self.offsets)), rng.integers(0, few, len(self.word))]

    def perplexity(self, phi: NDArray[Any], alpha: float) -> float:
        """Return the perplexity of every second word of all texts, given the others: document completion (Wallach et
        al., "Evaluation methods for topic models", ICML 2009, section 5).

        `phi` (words, topics) is the probability of a word in a topic. The mixture θ of a text, with the prior `alpha`
        for each topic, is found from its other words by expectation and maximisation.
        """
        logs = []
        for at in range(len(self)):
            given, asked = self[at][::2], self[at][1::2]
            theta = np.full(phi.shape[1], 1 / phi.shape[1])
            for _ in range(_ROUNDS):
                each = phi[given] * theta
                theta = (each / each.sum(1, keepdims=True)).sum(0) + alpha
            logs.append(np.log(phi[asked] @ (theta / theta.sum())))
        return float(np.exp(-np.concatenate(logs).mean()))


def corpus(texts: Iterable[str], *, skip: int = 0, at_least: int = 1, words: str = "[a-z]+") -> Corpus:
    """Return texts as numbers of words. Words are what the regular expression `words` finds in a text in lower case.

    The `skip` most frequent words are left out, which say little of a text, and words that occur fewer than `at_least`
    times, of which little can be learnt. Raises DataError if no word is left: a vocabulary must not be empty.
    """
    split = [re.findall(words, text.lower()) for text in texts]
    often = Counter(word for text in split for word in text).most_common()
    kept = [word for word, times in often[skip:] if times >= at_least]
    if not kept:
        raise DataError(
            f"the vocabulary is empty: {len(split):,} texts have {len(often):,} different words, and none is left "
            f"without the {skip:,} most frequent and those that occur fewer than {at_least:,} times. Lower skip= and "
            f"at_least=, or check the texts and words={words!r}."
        )
    number = {word: at for at, word in enumerate(kept)}
    found = [[number[word] for word in text if word in number] for text in split]
    offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return Corpus(np.array(kept), offsets, np.array([each for text in found for each in text], np.int64))

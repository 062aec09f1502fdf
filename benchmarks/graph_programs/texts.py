"""Texts for the benchmarks of topic models, and the held-out perplexity of a model.

20 Newsgroups by date (the settings of both sides are chosen on it), reviews of films and the King James Bible (which
judge). Words that are in fewer than 5 of the texts to train on, or in more than a tenth of them, are left out. In the
smallest form texts are drawn.
"""

from __future__ import annotations

import gzip
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bag = Sequence[tuple[int | str, int]]  # words with their counts
HELD_OUT, FOLD_IN = 300, 30  # texts at most, and steps in which the topics of each are found
FEWEST, SHARE = 5, 10  # a word is in at least so many texts, and in at most one of so many
LEAST = 10  # tokens of a held-out text


class Texts(NamedTuple):
    """Words of texts as numbers below `words`."""

    words: int
    offsets: Array  #: int64 (n+1,) borders of the texts in `word`
    word: Array  #: int32 (m,) ascending in each text
    held_out: list[Array]  #: int32 arrays, shuffled

    def perplexity(self, phi: Array, alpha: Array) -> float:
        """Document completion (Wallach et al., ICML 2009): every other word of each held-out text gives its topics, by
        steps of expectation and maximisation, and the others are predicted. `phi` (words, topics) are probabilities of
        words, `alpha` (topics,) the weights of topics beforehand."""
        logs = []
        for text in self.held_out:
            known, theta = phi[text[::2]], alpha / alpha.sum()
            for _ in range(FOLD_IN):
                theta = theta * ((1 / (known @ theta)) @ known) + alpha
                theta /= theta.sum()
            logs.append(np.log(phi[text[1::2]] @ theta))
        return float(np.exp(-np.concatenate(logs).mean()))


def newsgroups() -> Texts:
    """Return a quarter of the part to train on, and texts of the part for tests."""
    train, test = (_counted(_folder() / "20news" / f"20news_{part}.svm.gz") for part in ("train", "test"))
    return _texts(train[::4], test)


def films() -> Texts:
    """Return a quarter of the reviews of films, and held-out ones of another quarter."""
    bags = _counted(_folder() / "imdb_train.svm.gz")
    return _texts(bags[::4], bags[2::4])


def bible() -> Texts:
    """Return the chapters of the King James Bible, but each tenth, which is held out."""
    with gzip.open(_folder() / "kjv.txt.gz", "rt") as lines:
        bags: list[Bag] = [list(Counter(re.findall("[a-z]+", line.lower())).items()) for line in lines]
    return _texts([bag for at, bag in enumerate(bags) if at % 10], bags[::10])


TEXTS: dict[str, Callable[[], Texts]] = {"newsgroups": newsgroups, "films": films, "Bible": bible}


def drawn(texts: int = 60, words: int = 200, topics: int = 10, seed: int = 0) -> Texts:
    """Draw texts of 20 to 60 words from hidden topics."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(words, 0.05), topics)
    made = []
    for _ in range(texts + texts // 5):
        theta = rng.dirichlet(np.full(topics, 0.1))
        made.append(rng.choice(words, rng.integers(20, 60), p=theta @ phi).astype(np.int32))
    return _numbered(words, made[:texts], made[texts:])


def are_there() -> bool:
    """Return True if the folder that GRIDML_DATA names has the texts."""
    files = ("20news/20news_train.svm.gz", "20news/20news_test.svm.gz", "imdb_train.svm.gz", "kjv.txt.gz")
    return all((_folder() / name).is_file() for name in files)


def _folder() -> Path:
    return Path(os.environ.get("GRIDML_DATA", "")) / "text"


def _counted(path: Path) -> list[Bag]:
    """Read libsvm's format: a label, then word:count."""
    with gzip.open(path, "rt") as lines:
        pairs = [[each.split(":") for each in line.split()[1:]] for line in lines]
    return [[(int(word), int(count)) for word, count in bag] for bag in pairs]


def _texts(train: Sequence[Bag], test: Sequence[Bag]) -> Texts:
    """Number the words that count, by those of `train`."""
    often = Counter(word for bag in train for word, _ in bag)
    kept = (word for word in sorted(often) if FEWEST <= often[word] <= len(train) / SHARE)
    number = {word: at for at, word in enumerate(kept)}
    tokens, held_out = ([_tokens(bag, number) for bag in bags] for bags in (train, test))
    long = [each for each in held_out if len(each) >= LEAST]
    return _numbered(len(number), [each for each in tokens if len(each)], long[:: 1 + len(long) // HELD_OUT])


def _tokens(bag: Bag, number: dict[int | str, int]) -> Array:
    """Return the words that count, each as often as it stands in the text, shuffled."""
    found = [number[word] for word, count in bag for _ in range(count) if word in number]
    return np.random.default_rng(0).permutation(np.array(found, np.int32))


def _numbered(words: int, kept: list[Array], held_out: list[Array]) -> Texts:
    offsets = np.cumsum([0, *map(len, kept)]).astype(np.int64)
    return Texts(words, offsets, np.concatenate([np.sort(each) for each in kept]).astype(np.int32), held_out)

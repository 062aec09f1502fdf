"""Texts for the benchmarks of topic models: 20 Newsgroups by date, and the held-out perplexity of a model.

Every second text is trained on; words that are in fewer than 5 of these, or in more than a twentieth of them, are left
out. Texts of the test part are held out. In the smallest form texts are drawn.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HELD_OUT, FOLD_IN = 500, 30  # texts, and steps in which the topics of each are found


class Texts(NamedTuple):
    """Words of texts as numbers below `words`."""

    words: int
    offsets: Array  #: int64 (n+1,) borders of the texts in `word`
    word: Array  #: int32 (m,)
    held_out: list[Array]  #: int32 arrays

    def perplexity(self, phi: Array, alpha: Array) -> float:
        """Document completion (Wallach et al., ICML 2009): every other word of each held-out text gives its topics, by
        steps of expectation and maximisation, and the others are predicted. `phi` (words, topics) are probabilities of
        words, `alpha` (topics,) the weights of topics beforehand."""
        logs = []
        for text in self.held_out:
            known, theta = phi[text[::2]], alpha / alpha.sum()
            for _ in range(FOLD_IN):
                each = known * theta
                theta = (each / each.sum(1, keepdims=True)).sum(0) + alpha
                theta /= theta.sum()
            logs.append(np.log(phi[text[1::2]] @ theta))
        return float(np.exp(-np.concatenate(logs).mean()))


def files() -> list[Path]:
    """Return where the parts for training and for tests are expected: in the folder that GRIDML_DATA names."""
    folder = Path(os.environ.get("GRIDML_DATA", "")) / "text" / "20news"
    return [folder / f"20news_{part}.svm.gz" for part in ("train", "test")]


def newsgroups() -> Texts:
    """Return the texts. Raises FileNotFoundError if they are not there."""
    train, test = (list(_bags(file)) for file in files())
    train = train[::2]
    often = Counter(word for bag in train for word, _ in bag)
    number = {w: at for at, w in enumerate(w for w in sorted(often) if 5 <= often[w] <= len(train) / 20)}
    kept = [tokens for bag in train if len(tokens := _tokens(bag, number))]
    held_out = [tokens for bag in test if len(tokens := _tokens(bag, number)) > 9]
    return _texts(len(number), kept, held_out[:: len(held_out) // HELD_OUT][:HELD_OUT])


def drawn(texts: int, words: int, topics: int = 10, seed: int = 0) -> Texts:
    """Draw texts of 20 to 60 words from hidden topics."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(words, 0.05), topics)
    made = []
    for _ in range(texts + texts // 5):
        theta = rng.dirichlet(np.full(topics, 0.1))
        made.append(rng.choice(words, rng.integers(20, 60), p=theta @ phi).astype(np.int32))
    return _texts(words, made[:texts], made[texts:])


def _bags(path: Path) -> list[list[tuple[int, int]]]:
    with gzip.open(path, "rt") as lines:
        pairs = [[each.split(":") for each in line.split()[1:]] for line in lines]
    return [[(int(word), int(count)) for word, count in bag] for bag in pairs]


def _tokens(bag: list[tuple[int, int]], number: dict[int, int]) -> Array:
    """Return the words that count, each as often as it stands in the text, shuffled."""
    found = [number[word] for word, count in bag for _ in range(count) if word in number]
    return np.random.default_rng(0).permutation(np.array(found, np.int32))


def _texts(words: int, kept: list[Array], held_out: list[Array]) -> Texts:
    offsets = np.cumsum([0, *map(len, kept)]).astype(np.int64)
    return Texts(words, offsets, np.concatenate(kept).astype(np.int32), held_out)

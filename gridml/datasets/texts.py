"""Texts as the numbers of their words: a vocabulary, and the edges from each text to its words, for topic models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gridml.errors import DataError

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

"""Texts as numbers of words."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gridml.datasets import corpus
from gridml.errors import DataError

TEXTS = ["The cat, the dog.", "", "A dog: the end", "cat cat"]


def test_words_are_numbered_by_how_often_they_occur() -> None:
    found = corpus(TEXTS)
    assert found.vocabulary.tolist() == ["the", "cat", "dog", "a", "end"]
    assert [found[at].tolist() for at in range(len(found))] == [[0, 1, 0, 2], [], [3, 2, 0, 4], [1, 1]]
    assert corpus(TEXTS, skip=1, at_least=2).vocabulary.tolist() == ["cat", "dog"]
    assert corpus(TEXTS, words="[a-z]{4,}|dog").vocabulary.tolist() == ["dog"]


def test_some_of_the_texts() -> None:
    found = corpus(TEXTS)
    for texts in ([2, 0], np.array([True, False, True, False]), slice(0, 3, 2)):
        kept = found.only(np.arange(4)[texts] if isinstance(texts, slice) else texts)
        assert len(kept) == 2 and kept.vocabulary is found.vocabulary
        assert sorted(kept[at].tolist() for at in range(2)) == [[0, 1, 0, 2], [3, 2, 0, 4]]
    assert len(found.only(np.zeros(4, bool)).word) == 0


def test_counts_of_words_by_topic() -> None:
    found = corpus(TEXTS)
    topic = np.arange(len(found.word)) % 3
    expected = np.zeros((5, 3), np.int32)
    np.add.at(expected, (found.word, topic), 1)
    np.testing.assert_array_equal(found.counts(topic, 3), expected)


def test_a_text_begins_with_few_topics() -> None:
    found = corpus(["a b c d e f g h i j" * 9, "", "k"] * 3)
    topic = found.first_topics(50, few=3)
    assert topic.shape == found.word.shape and topic.dtype == np.int64
    of = [set(topic[start:stop].tolist()) for start, stop in pairwise(found.offsets)]
    assert [len(each) for each in of] == [3, 0, 1] * 3 and of[0] != of[3]
    assert topic.min() >= 0 and topic.max() < 50
    assert topic.tolist() == found.first_topics(50, few=3).tolist() != found.first_topics(50, few=3, seed=1).tolist()


def test_perplexity_of_topics_that_are_certain_and_of_none() -> None:
    """A text of one topic of two words has perplexity 2 where topics are these, and 4 where all words are alike."""
    found = corpus(["a b a b a b a b" * 9, "c d d c c d d c" * 9], words="[a-z]")
    sharp = np.array([[0.5, 0], [0.5, 0], [0, 0.5], [0, 0.5]])[np.argsort(np.argsort(found.vocabulary))]
    assert found.perplexity(sharp + 1e-12, 1e-6) == pytest.approx(2, rel=1e-3)
    assert found.perplexity(np.full((4, 2), 0.25), 0.1) == pytest.approx(4)


@pytest.mark.parametrize(("options", "said"), [({"skip": 9}, "without the 9 most"), ({"at_least": 4}, "fewer than 4")])
def test_an_empty_vocabulary_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(DataError, match=rf"the vocabulary is empty: 4 texts have 5 different words, .*{said}"):
        corpus(TEXTS, **options)  # type: ignore[arg-type]

"""The perplexity by which the benchmarks of topic models judge."""

from __future__ import annotations

import numpy as np

from benchmarks.graph_programs import texts


def test_perplexity_of_probabilities_that_are_all_equal_is_the_number_of_words() -> None:
    found = texts.drawn(20, 50)
    assert np.isclose(found.perplexity(np.full((50, 4), 1 / 50), np.full(4, 0.1)), 50)


def test_perplexity_is_that_of_expectation_and_maximisation_written_out() -> None:
    found = texts.drawn(20, 50)
    rng = np.random.default_rng(0)
    phi, alpha, logs = rng.dirichlet(np.full(50, 0.1), 4).T + 1e-9, rng.random(4), []
    for text in found.held_out:
        theta = alpha / alpha.sum()
        for _ in range(texts.FOLD_IN):
            each = phi[text[::2]] * theta
            theta = (each / each.sum(1, keepdims=True)).sum(0) + alpha
            theta /= theta.sum()
        logs += [np.log(phi[text[1::2]] @ theta)]
    assert np.isclose(found.perplexity(phi, alpha), np.exp(-np.concatenate(logs).mean()))


def test_the_words_of_a_text_to_train_on_ascend() -> None:
    found = texts.drawn(20, 50)
    parts = np.split(found.word, found.offsets[1:-1])
    assert len(parts) == 20 and all((np.diff(part) >= 0).all() for part in parts)

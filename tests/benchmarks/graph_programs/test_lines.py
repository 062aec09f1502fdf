"""The programs whose lines are compared compute the same: the examples, and their peers over networkx."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gridml
from benchmarks.graph_programs.lines import EXAMPLES, code_lines
from gridml.datasets import Corpus
from tests.support.stage_programs import module_in

pytest.importorskip("networkx")
VERTICES, EDGES = 120, 260


def edges(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Edges with popular ends, and vertices that nothing leads to or from."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, VERTICES, EDGES), (VERTICES * rng.random(EDGES) ** 2).astype(np.int64)


def example(name: str) -> ModuleType:
    return module_in(EXAMPLES / f"{name}.py")


def peer(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.graph_programs.peers.{name}")


def computed(name: str, *network: Any) -> dict[str, np.ndarray]:
    made = example(name)
    return gridml.compute(replace(made.program, graph=partial(made.network, *network)), threads=1).arrays


def column(found: dict[int, Any], otherwise: float = np.inf) -> np.ndarray:
    return np.array([found.get(i, otherwise) for i in range(VERTICES)])


def test_ranks_agree() -> None:
    source, target = edges()
    ours = computed("pagerank", source, target, VERTICES)["Page.rank"]
    theirs = peer("pagerank_networkx")
    np.testing.assert_allclose(column(theirs.ranks(theirs.network(source, target, VERTICES))), ours, atol=1e-8)
    np.testing.assert_allclose(column(peer("pagerank_ready").ranks(source, target, VERTICES)), ours, atol=1e-8)


def test_components_agree() -> None:
    source, target = edges()
    ours = computed("components", source, target, VERTICES)["Node.label"]
    theirs = peer("components_networkx")
    assert column(theirs.labels(theirs.network(source, target, VERTICES))).tolist() == ours.tolist()
    sets = {frozenset(each) for each in peer("components_ready").components(source, target, VERTICES)}
    assert sets == {frozenset(np.flatnonzero(ours == each).tolist()) for each in ours}


def test_distances_agree() -> None:
    source, target = edges()
    length = np.random.default_rng(1).random(EDGES)
    ours = computed("shortest_paths", source, target, length, VERTICES)["Place.distance"]
    theirs = peer("shortest_paths_networkx")
    np.testing.assert_allclose(
        column(theirs.distances(theirs.network(source, target, length, VERTICES))), ours, rtol=1e-13
    )
    np.testing.assert_allclose(
        column(peer("shortest_paths_ready").distances(source, target, length, VERTICES)), ours, rtol=1e-13
    )
    assert np.isinf(ours).any() and np.isfinite(ours).sum() > 10
    with pytest.raises(ValueError, match="expected lengths from 0 on"):
        theirs.network(source, target, -length, VERTICES)


def test_communities_agree() -> None:
    rng = np.random.default_rng(0)
    pairs = [(30 * g + i, 30 * g + j) for g in range(4) for i in range(30) for j in range(i) if rng.random() < 0.6]
    source, target = np.array([*pairs, *((30 * g, 30 * ((g + 1) % 4)) for g in range(4))]).T
    ours = computed("label_propagation", source, target, VERTICES)["Person.label"]
    expected = {frozenset(range(30 * g, 30 * g + 30)) for g in range(4)}
    theirs = peer("label_propagation_networkx")
    label = column(theirs.labels(theirs.network(source, target, VERTICES)))
    for found in (ours, label):
        assert {frozenset(np.flatnonzero(found == each).tolist()) for each in found} == expected
    ready = peer("label_propagation_ready").communities(source, target, VERTICES)
    assert {frozenset(each) for each in ready} == expected


def test_weights_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, made, theirs = np.random.default_rng(0), example("lr"), peer("lr_networkx")
    texts, words, each = 300, 200, 6  # sparse, as the example's blocks of words need it
    word = np.concatenate([rng.choice(words, each, replace=False) for _ in range(texts)])
    offsets, x = np.arange(texts + 1) * each, rng.random(texts * each) / np.sqrt(each)
    score = np.add.reduceat(x * rng.normal(0, 5, words)[word], offsets[:-1])
    label = np.where(score + rng.normal(0, 1, texts) > 0, 1.0, -1.0)
    data = label, offsets, word, x, np.array([f"w{j}" for j in range(words)])
    monkeypatch.setattr(made, "chapters", lambda held: data)

    def objective(w: np.ndarray) -> float:
        margin = label * np.add.reduceat(x * w[word], offsets[:-1])
        return float(np.logaddexp(0, -margin).sum() + made.LAMBDA * np.abs(w).sum())

    ours = gridml.compute(made.program, threads=1).arrays["Feature.w"]
    found = theirs.fit(theirs.network(label, offsets, word, x, words), words)
    assert objective(found) == pytest.approx(objective(ours), rel=1e-3)
    assert objective(ours) < 0.9 * objective(np.zeros(words))
    assert theirs.LAMBDA == made.LAMBDA


def test_factors_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, made, theirs = np.random.default_rng(0), example("mf"), peer("mf_networkx")
    users, items, rank = 60, 40, 3
    pairs = rng.permutation(users * items)[:1500]
    user, item = pairs // items, pairs % items
    p, q = rng.normal(0, 0.6, (users, rank)), rng.normal(0, 0.6, (items, rank))
    stars = (3 + (p[user] * q[item]).sum(1) + rng.normal(0, 0.2, len(user))).astype(np.float32)
    ratings, held = gridml.datasets.Ratings(user, item, stars, users, items), rng.random(len(user)) < 0.1
    monkeypatch.setattr(made, "split", lambda: (ratings, held))
    ours = gridml.compute(made.program, threads=1).metrics["rmse"]
    rated = theirs.network(user[~held], item[~held], stars[~held], users, items)
    guess = theirs.predict(rated, theirs.fit(rated), user[held], item[held])
    assert float(np.sqrt(np.square(guess.clip(1, 5) - stars[held]).mean())) == pytest.approx(ours, rel=0.05)
    assert (theirs.RANK, theirs.RIDGE, theirs.EPOCHS) == (made.RANK, made.RIDGE, made.EPOCHS)


def test_topics_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, made, theirs = np.random.default_rng(0), example("lda"), peer("lda_networkx")
    texts, words, long, groups = 60, 40, 40, 4
    theme = rng.integers(0, groups, texts)
    word = (rng.integers(0, words // groups, (texts, long)) * groups + theme[:, None]).ravel()
    corpus = Corpus(np.array([f"w{w}" for w in range(words)]), np.arange(texts + 1) * long, word)
    kept, held = corpus.split(10)
    monkeypatch.setattr(made, "chapters", lambda: (kept, held))
    ours = gridml.compute(made.program, threads=1).metrics["perplexity"]
    topics = made.TOPICS
    count = theirs.fit(theirs.network(kept.offsets, kept.word, kept.first_topics(topics), words, topics), words)
    phi = (count + theirs.BETA) / (count.sum(0) + theirs.BETA * words)
    assert held.perplexity(phi, theirs.ALPHA) == pytest.approx(ours, rel=0.1)
    assert ours < 0.6 * words  # that of words drawn evenly is 40
    assert (theirs.TOPICS, theirs.BETA, theirs.EPOCHS) == (made.TOPICS, made.BETA, made.EPOCHS)


def test_what_counts_as_a_line() -> None:
    text = "\n".join(
        [
            *('"""A docstring', "", 'of three lines."""', "", "import os  # one", "", "def f(x):", "    # none"),
            *('    """None."""', "    return (", "        x", "    )", "", 'TEXT = """', "", 'two"""', ""),
        ]
    )
    assert code_lines(text) == 1 + 1 + 3 + 3
    assert code_lines(Path(__file__).read_text()) > 50

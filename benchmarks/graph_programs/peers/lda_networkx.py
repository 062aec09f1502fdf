"""Topics of the King James Bible over a graph of networkx: Gibbs sampling, token by token."""

from typing import Any

import networkx as nx
import numpy as np

import gridml

TOPICS, ALPHA, BETA, EPOCHS = 100, 0.1, 0.01, 15


def network(offsets: Any, word: Any, topic: Any, words: int, topics: int = TOPICS) -> Any:
    texts = nx.MultiGraph()
    texts.add_nodes_from(("word", w) for w in range(words))
    for w in range(words):
        texts.nodes["word", w]["count"] = np.zeros(topics)
    for text in range(len(offsets) - 1):
        for at in range(offsets[text], offsets[text + 1]):
            texts.add_edge(("text", text), ("word", int(word[at])), topic=int(topic[at]))
            texts.nodes["word", int(word[at])]["count"][topic[at]] += 1
    return texts


def fit(texts: Any, words: int, epochs: int = EPOCHS, seed: int = 0) -> Any:
    rng, of_word = np.random.default_rng(seed), {w: texts.nodes["word", w]["count"] for w in range(words)}
    total = sum(of_word.values())
    for _ in range(epochs):
        for text in [node for node in texts if node[0] == "text"]:
            tokens = [*texts.edges(text, data=True)]
            mine = np.bincount([token["topic"] for *_, token in tokens], minlength=len(total)).astype(float)
            for _, (_, word), token in tokens:
                for counts in (mine, of_word[word], total):
                    counts[token["topic"]] -= 1
                upto = np.cumsum((mine + ALPHA) * (of_word[word] + BETA) / (total + BETA * words))
                token["topic"] = int(np.searchsorted(upto, rng.random() * upto[-1]))
                for counts in (mine, of_word[word], total):
                    counts[token["topic"]] += 1
    return np.array([of_word[w] for w in range(words)])


def main() -> None:
    kept, held = gridml.datasets.corpus(gridml.datasets.king_james().lines, skip=100, at_least=5).split(20)
    words = len(kept.vocabulary)
    count = fit(network(kept.offsets, kept.word, kept.first_topics(TOPICS), words), words)
    print({"perplexity": held.perplexity((count + BETA) / (count.sum(0) + BETA * words), ALPHA)})

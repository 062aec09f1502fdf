"""Words that tell the New Testament from the Old, over a graph of networkx: l1 logistic regression, word by word."""

from math import exp
from typing import Any

import networkx as nx
import numpy as np

import gridml

LAMBDA, ENOUGH, OLD = 0.3, 0.03, 929


def chapters(held: bool) -> tuple[Any, ...]:
    books = gridml.datasets.corpus(gridml.datasets.king_james().lines, skip=100, at_least=2)
    kept = (np.arange(len(books)) % 10 == 0) == held
    offsets, word, count = books.only(kept).bag()
    long = np.repeat(np.diff(offsets), np.diff(offsets))
    label = np.where(np.arange(len(books)) < OLD, -1.0, 1.0)[kept]
    return label, offsets, word, np.log1p(count) / np.sqrt(long), books.vocabulary


def network(label: Any, offsets: Any, word: Any, x: Any, words: int) -> Any:
    texts = nx.Graph()
    texts.add_nodes_from((("word", j) for j in range(words)), w=0.0, reach=1.0)
    texts.add_nodes_from(((("text", i), {"label": float(y)}) for i, y in enumerate(label)), dual=1.0)
    for i in range(len(label)):
        for j in range(offsets[i], offsets[i + 1]):
            texts.add_edge(("text", i), ("word", int(word[j])), x=float(x[j]))
    return texts


def fit(texts: Any, words: int, passes: int = 100) -> Any:
    for _ in range(passes):
        worst = 0.0
        for j in range(words):
            at, g, u = texts.nodes["word", j], 0.0, 1e-10
            for text, link in texts["word", j].items():
                sample = texts.nodes[text]
                tau = 1 / (1 + sample["dual"])
                g -= sample["label"] * tau * link["x"]
                u += min(tau * (1 - tau) * exp(abs(link["x"]) * at["reach"]), 0.25) * link["x"] ** 2
            w = at["w"]
            worst = max(worst, abs(abs(g) - LAMBDA) if w != 0 else abs(g) - LAMBDA)
            stride = -(g + LAMBDA) / u if g + LAMBDA <= u * w else -(g - LAMBDA) / u if g - LAMBDA >= u * w else -w
            stride = min(max(stride, -at["reach"]), at["reach"])
            at["w"], at["reach"] = w + stride, min(5.0, 2 * abs(stride) + 0.1)
            if stride != 0:
                for text, link in texts["word", j].items():
                    texts.nodes[text]["dual"] *= exp(texts.nodes[text]["label"] * link["x"] * stride)
        if worst < ENOUGH * LAMBDA:
            break
    return np.array([texts.nodes["word", j]["w"] for j in range(words)])


def main() -> None:
    label, offsets, word, x, vocabulary = chapters(held=False)
    w = fit(network(label, offsets, word, x, len(vocabulary)), len(vocabulary))
    label, offsets, word, x, _ = chapters(held=True)
    score = np.add.reduceat(x * w[word], offsets[:-1])
    print({"accuracy": float(np.mean(score * label > 0)), "used": int(np.count_nonzero(w))})

"""A small head on a frozen embedding of 24 MB, over noise. With `EMBEDDING=outside` the embedding is not part of the
program, to measure the pushes of the head alone."""

import os
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

COUNT = int(os.environ.get("EMBEDDING_ROWS", "1024" if "GRIDML_TINY" in os.environ else "16384"))
WORDS, WIDTH, LENGTH = 50_000, 120, 16
OUTSIDE = os.environ.get("EMBEDDING") == "outside"


def embedding() -> nn.Embedding:
    return nn.Embedding(WORDS, WIDTH).requires_grad_(False)


class Headed(nn.Module):
    """The mean of the words' vectors, and a linear layer on top of it."""

    def __init__(self) -> None:
        super().__init__()
        if not OUTSIDE:
            self.embedding = embedding()
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head((ELSEWHERE if OUTSIDE else self.embedding)(words).mean(1))
        return scores


ELSEWHERE = embedding() if OUTSIDE else nn.Embedding(0, WIDTH)


class Network(gridml.Vertex):
    model = gridml.module(Headed, partial(torch.optim.SGD, lr=0.05))


class Text(gridml.Vertex):
    words = gridml.array("int64", (LENGTH,))
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=64)
def train(texts: gridml.Batch[Text], network: Network) -> None:
    network.step(F.cross_entropy(network.model(texts.words), texts.label))


def graph() -> gridml.Graph:
    rng = np.random.default_rng(0)
    g = gridml.Graph()
    words, label = rng.integers(0, WORDS, (COUNT, LENGTH)), rng.integers(0, 10, COUNT)
    g.add(Text, words=words, label=label, network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=1)

"""word2vec: skip-gram with negative samples on the King James Bible (Mikolov et al., NeurIPS 2013, equation 4)."""

import re
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH = 60_000, 5_000, 4, 128
WORDS, WIDTH, WINDOW, NEGATIVES = 3_000, 64, 5, 5
adam = partial(torch.optim.Adam, lr=0.003)


class SkipGram(nn.Module):
    """A table for words and one for their contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.context = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        nn.init.uniform_(self.word.weight, -0.5 / WIDTH, 0.5 / WIDTH)
        nn.init.zeros_(self.context.weight)

    def forward(self, word: Tensor, context: Tensor, false: Tensor) -> Tensor:
        """Loss of pairs of words int64 (n,), (n,), and of false contexts int64 (n, NEGATIVES)."""
        of_word = self.word(word)
        true = (of_word * self.context(context)).sum(1)
        wrong = (of_word[:, None] * self.context(false)).sum(2)
        return -(F.logsigmoid(true) + F.logsigmoid(-wrong).sum(1)).mean()


@cache
def data() -> tuple[Tensor, Tensor]:
    """(pairs int64 (COUNT + TESTED, 2) of a word and one near it, the words' frequencies to the power of 3/4)."""
    text = bytes(gridml.datasets.king_james().characters).decode("ascii", "replace").lower()
    words, numbers, counts = np.unique(re.findall("[a-z]+", text), return_inverse=True, return_counts=True)
    rank = np.empty(len(words), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(words))
    numbers = rank[numbers]
    numbers = numbers[numbers < WORDS]
    random = np.random.default_rng(0)
    at = random.integers(WINDOW, len(numbers) - WINDOW, COUNT + TESTED)
    near = at + random.integers(1, WINDOW + 1, len(at)) * random.choice([-1, 1], len(at))
    return torch.tensor(np.stack([numbers[at], numbers[near]], 1)), torch.tensor(np.bincount(numbers) ** 0.75)


def false_contexts(count: int) -> Tensor:
    return torch.multinomial(data()[1], count * NEGATIVES, replacement=True).view(count, NEGATIVES)


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    pairs = data()[0][COUNT:]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return {"loss": float(model(pairs[:, 0], pairs[:, 1], false_contexts(TESTED)))}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = SkipGram()
    optimiser = adam(model.parameters())
    pairs = data()[0]
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            word, context = pairs[batch].T
            optimiser.zero_grad()
            model(word, context, false_contexts(len(word))).backward()
            optimiser.step()
    return score(model)


class Tables(gridml.Vertex):
    model = gridml.module(SkipGram, adam)


class Pair(gridml.Vertex):
    words = gridml.array("int64", (2,))
    tables = gridml.edge(Tables)


@gridml.update(batch=BATCH)
def train(pairs: gridml.Batch[Pair], tables: Tables) -> None:
    word, context = pairs.words.T
    tables.step(tables.model(word, context, false_contexts(len(word))))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Pair, words=data()[0][:COUNT].numpy(), tables=g.add(Tables))
    return g


def evaluate(tables: Tables) -> dict[str, float]:
    return score(tables.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

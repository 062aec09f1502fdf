"""A GRU over sentences of differing length: it tells the Old Testament from the New one."""

import re
from collections import Counter
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import gridml

COUNT, TESTED, EPOCHS, BATCH, WORDS, LONGEST = 4_000, 1_000, 4, 32, 3_000, 30
adam = partial(torch.optim.Adam, lr=1e-3)


class Reader(nn.Module):
    """Reads words, and judges by the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS + 1, 32)
        self.gru = nn.GRU(32, 48)
        self.judge = nn.Linear(48, 2)

    def forward(self, sentences: list[Tensor]) -> Tensor:
        packed = pack_sequence(sentences, enforce_sorted=False)
        states = self.gru(packed._replace(data=self.embed(packed.data)))[1]
        scores: Tensor = self.judge(states[0])
        return scores


@cache
def data() -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """(words of each sentence, 0 for the Old and 1 for the New Testament): as many of both, in random order."""
    text = bytes(gridml.datasets.king_james().characters).decode("ascii", "replace").lower()
    halves = [[re.findall("[a-z]+", part)[:LONGEST] for part in half.split(".")] for half in testaments(text)]
    halves = [[sentence for sentence in half if len(sentence) > 4] for half in halves]
    counts = Counter(word for half in halves for sentence in half for word in sentence)
    number = {word: at for at, (word, _) in enumerate(counts.most_common(WORDS), 1)}
    random = np.random.default_rng(0)
    each = (COUNT + TESTED) // 2
    drawn = [(half[at], label) for label, half in enumerate(halves) for at in random.permutation(len(half))[:each]]
    order = random.permutation(len(drawn))
    sentences = [np.array([number.get(word, 0) for word in drawn[at][0]]) for at in order]
    return sentences, np.array([drawn[at][1] for at in order])


def testaments(text: str) -> tuple[str, str]:
    at = text.index("the book of the generation of jesus christ")
    return text[:at], text[at:]


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    sentences, labels = data()
    guessed = model([torch.tensor(words) for words in sentences[COUNT:]]).argmax(1)
    return {"accuracy": float((guessed == torch.tensor(labels[COUNT:])).float().mean())}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Reader()
    optimiser = adam(model.parameters())
    sentences, labels = [torch.tensor(words) for words in data()[0]], torch.tensor(data()[1])
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model([sentences[at] for at in batch]), labels[batch]).backward()
            optimiser.step()
    return score(model)


class Network(gridml.Vertex):
    model = gridml.module(Reader, adam)


class Sentence(gridml.Vertex):
    words = gridml.ragged("int64")
    label = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(sentences: gridml.Batch[Sentence], network: Network) -> None:
    network.step(F.cross_entropy(network.model(list(sentences.words)), sentences.label))


def graph() -> gridml.Graph:
    sentences, labels = data()
    g = gridml.Graph()
    g.add(Sentence, words=sentences[:COUNT], label=labels[:COUNT], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return score(network.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

"""A network, rows that f counts and moves, and local fields that f changes: every kind of data on a device."""

from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

COUNT, WORDS, EPOCHS = 480, 40, 2


def scorer() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


class Scorer(gridml.Vertex):
    model = gridml.module(scorer, partial(torch.optim.AdamW, lr=0.01))


class Word(gridml.Vertex):
    meaning = gridml.array("float32", (4,))
    seen = gridml.array("int64")
    aggregate = gridml.by_name({"seen": gridml.add(), "meaning": gridml.stale_mean()})


class Text(gridml.Vertex):
    mood = gridml.array("float32", mutable=True)
    goal = gridml.array("float32")
    scorer = gridml.edge(Scorer)
    words = gridml.edge(Word, weight="float32")


@gridml.update(batch=16, min_batch=16)
def train(texts: gridml.Batch[Text], words: gridml.Batch[Word], scorer: Scorer) -> None:
    links = texts.words
    meaning = words.meaning.detach().clone().requires_grad_()
    used = meaning[links.index] * links.weight.unsqueeze(1)
    sums = torch.zeros(len(texts), 4, device=used.device)
    rows = torch.repeat_interleave(torch.arange(len(texts), device=used.device), links.offsets.diff())
    sums = sums.index_add(0, rows, used)
    scores = scorer.model(sums).squeeze(1)
    scorer.step(((scores - texts.goal) ** 2).mean())
    words.meaning -= 0.05 * meaning.grad
    words.seen += 1
    texts.mood = 0.5 * texts.mood + 0.5 * scores.detach()
    texts.mood.clamp_(-1, 1)


def graph() -> gridml.Graph:
    rng = np.random.default_rng(4)
    g = gridml.Graph()
    g.add(Scorer)
    g.add(Word, meaning=rng.normal(size=(WORDS, 4)).astype(np.float32), seen=np.zeros(WORDS, np.int64))
    words = rng.integers(0, WORDS, (COUNT, 3))
    goal = np.sin(words.sum(1)).astype(np.float32)
    weight = rng.random((COUNT, 3)).astype(np.float32)
    mood = np.zeros(COUNT, np.float32)
    edges = gridml.csr(np.arange(COUNT + 1) * 3, words.reshape(-1), weight.reshape(-1))
    g.add(Text, mood=mood, goal=goal, scorer=np.zeros(COUNT, np.int64), words=edges)
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)

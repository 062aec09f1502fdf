"""A small transformer that reads the King James Bible character by character, by AdamW.

GRIDML_DATA names a folder with `text/kjv.txt.gz` (from Debian's package bible-kjv-text). A vertex is 65 characters of
it, of which 64 are predicted. With SIZE=small the network has half the width, and reads 1,500 of 4,000 passages.
"""

import gzip
import os
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

BATCH, RATE = int(os.environ.get("BATCH", "16")), float(os.environ.get("RATE", "0.003"))
COUNT, WIDTH = (1_500, 32) if os.environ.get("SIZE") == "small" else (4_000, 64)
TESTED, CONTEXT, SYMBOLS = 400, 64, 63


class Reader(nn.Module):
    """Two layers of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, WIDTH)
        nn.init.normal_(self.symbol.weight, std=0.02)
        self.place = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        layer = partial(nn.TransformerEncoderLayer, WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer(), layer()])
        self.norm = nn.LayerNorm(WIDTH)
        self.next = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.symbol(text) + self.place
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.next(self.norm(hidden))
        return scores


def loss(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    text = text.long()
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class Network(gridml.Vertex):
    aggregate = getattr(gridml, os.environ.get("RULE", "stale_mean"))()
    model = gridml.module(Reader, partial(torch.optim.AdamW, lr=RATE))


class Passage(gridml.Vertex):
    text = gridml.array("uint8", (CONTEXT + 1,))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=max(1, BATCH // 16))
def train(passages: gridml.Batch[Passage], network: Network) -> None:
    network.step(loss(network.model, passages.text))


@cache
def passages() -> np.ndarray:
    """uint8 (n, CONTEXT + 1), a random sample of the book; the last TESTED of them are not trained."""
    with gzip.open(Path(os.environ["GRIDML_DATA"]) / "text" / "kjv.txt.gz", "rt") as book:
        text = book.read()
    symbols = {symbol: number for number, symbol in enumerate(sorted(set(text)))}
    numbers = np.array([symbols[symbol] for symbol in text], np.uint8)
    rows = numbers[: len(numbers) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    return rows[np.random.default_rng(0).permutation(len(rows))[: COUNT + TESTED]]


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Passage, text=passages()[:COUNT], network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    network.model.eval()
    with torch.no_grad():
        return {"loss": float(loss(network.model, torch.tensor(passages()[COUNT:])))}


program = gridml.Program(graph, train, evaluate, epochs=4)

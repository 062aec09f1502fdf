"""A transformer of 124 million parameters, of GPT-2's small size (Radford et al. 2019), on random tokens, under
bfloat16 autocast, compiled.

COUNT is the number of sequences. STEP_TIMES names a folder in which every worker writes (time, sequences) of each step.
"""

import os
import time
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

TINY = "GRIDML_TINY" in os.environ  # for a quick check
COUNT, BATCH, EPOCHS = (64, 4, 2) if TINY else (2048, 16, 2)
COUNT = int(os.environ.get("COUNT", COUNT))
WORDS, LENGTH, WIDTH, LAYERS, HEADS = (50, 16, 24, 2, 2) if TINY else (50257, 1024, 768, 12, 12)
optimiser = partial(torch.optim.AdamW, lr=1e-4, fused=True)


class Block(nn.Module):
    """Causal attention, then two layers, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, _ = x.shape
        q, k, v = self.joint(self.first(x)).view(count, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, WIDTH))
        deeper: torch.Tensor = x + self.inner(self.second(x))
        return deeper


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        scores: torch.Tensor = self.head(self.last(self.blocks(self.words(tokens) + self.places(places))))
        return scores


def network() -> nn.Module:
    return Transformer() if TINY else torch.compile(Transformer())  # type: ignore[return-value]


def columns() -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(1).integers(0, WORDS, (COUNT, LENGTH + 1))
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def loss_of(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())


class Network(gridml.Vertex):
    model = gridml.module(network, optimiser)


class Text(gridml.Vertex):
    tokens = gridml.array("int64", (LENGTH,))
    following = gridml.array("int64", (LENGTH,))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(texts: gridml.Batch[Text], network: Network) -> None:
    if "STEP_TIMES" in os.environ:
        with open(f"{os.environ['STEP_TIMES']}/{os.getpid()}", "a") as times:
            times.write(f"{time.time()} {len(texts)}\n")
    network.step(loss_of(network.model, texts.tokens, texts.following))


def graph() -> gridml.Graph:
    tokens, following = columns()
    g = gridml.Graph()
    g.add(Text, tokens=tokens, following=following, network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=EPOCHS)

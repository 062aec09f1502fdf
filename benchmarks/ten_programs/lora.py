"""LoRA: small matrices adapt a frozen transformer from the Old Testament to the New one (Hu et al., ICLR 2022, equation
3). TRAINED names a folder for the weights of the transformer, which `prepare` makes."""

import os
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH, LENGTH, WIDTH, RANK = 2_000, 400, 4, 16, 64, 64, 4
adamw = partial(torch.optim.AdamW, lr=3e-3)


class Adapted(nn.Module):
    """A frozen linear layer, and the product of two small matrices beside it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, RANK))

    def forward(self, states: Tensor) -> Tensor:
        changed: Tensor = self.frozen(states) + states @ self.down.T @ self.up.T
        return changed


class Block(nn.Module):
    """Causal attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: Tensor) -> Tensor:
        n, length, _ = states.shape
        query, key, value = self.mix(self.first(states)).view(n, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        states = states + self.out(mixed.reshape(n, length, WIDTH))
        changed: Tensor = states + self.narrow(F.gelu(self.wide(self.second(states))))
        return changed


class Reader(nn.Module):
    """Predicts the next of 128 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(128, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks, self.next = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 128)

    def forward(self, text: Tensor) -> Tensor:
        """The loss of text uint8 (n, LENGTH + 1), in nats a character."""
        text = text.long()
        scores = self.next(self.blocks(self.symbol(text[:, :-1]) + self.place))
        return F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())


def adapted() -> nn.Module:
    model = Reader()
    if (path := Path(os.environ["TRAINED"]) / "reader.pt").exists():
        model.load_state_dict(torch.load(path, weights_only=True))
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("mix", "out", "wide", "narrow"):
            setattr(block, name, Adapted(getattr(block, name)))
    return model


@cache
def passages() -> tuple[Tensor, Tensor]:
    """uint8 (n, LENGTH + 1) of the Old and of the New Testament, in random order."""
    text = np.minimum(np.asarray(gridml.datasets.king_james().characters), 127)
    at = bytes(text).index(b"The book of the generation of Jesus Christ")
    order = torch.Generator().manual_seed(0)
    halves = [torch.tensor(half[: len(half) // 65 * 65].reshape(-1, 65)) for half in (text[:at], text[at:])]
    old, new = (half[torch.randperm(len(half), generator=order)] for half in halves)
    return old, new


def prepare() -> None:
    """Train the transformer on the Old Testament."""
    torch.manual_seed(0)
    model = Reader()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in passages()[0][:16_000].split(32):
        optimiser.zero_grad()
        model(batch).backward()
        optimiser.step()
    torch.save(model.state_dict(), Path(os.environ["TRAINED"]) / "reader.pt")


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    return {"loss": float(model(passages()[1][COUNT : COUNT + TESTED]))}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = adapted()
    optimiser = adamw([parameter for parameter in model.parameters() if parameter.requires_grad])
    text = passages()[1]
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            model(text[batch]).backward()
            optimiser.step()
    return score(model)


class Network(gridml.Vertex):
    model = gridml.module(adapted, adamw)


class Passage(gridml.Vertex):
    text = gridml.array("uint8", (LENGTH + 1,))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH)
def train(passages: gridml.Batch[Passage], network: Network) -> None:
    network.step(network.model(passages.text))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Passage, text=passages()[1][:COUNT].numpy(), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    return score(network.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

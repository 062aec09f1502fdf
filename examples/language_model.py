"""A character-level transformer (Vaswani et al., arXiv 1706.03762) on the King James Bible, with AdamW, warm-up,
clipping and an embedding that is tied to the output. In windows of 64 characters, it predicts each next one.

Loss on text from after the training text, on two cores that other programs used too, seed 0; untrained it is 4.85:

| | nats | bits per character |
|---|---|---|
| a plain loop | 1.790 | 2.583 |
| one worker | 1.786 | 2.577 |
| two workers, each half of the windows | 1.922 | 2.773 |
| the same, with lives of 50 s, 6 kills | 1.948 | 2.811 |

A push has 1.4 MB, as the tied embedding is in it only once.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import gridml

CHARACTERS, CONTEXT, WIDTH, HEADS, LAYERS = 128, 64, 96, 4, 3  # the characters are those of ASCII
WINDOWS, HELD_OUT, EPOCHS = 8_000, 500, 2
WARM_UP, RATE = 0.1, 3e-3


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.scores.weight = self.characters.weight  # tied: it travels once
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        length = characters.shape[1]
        past = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.characters(characters) + self.places(torch.arange(length))
        scores: torch.Tensor = self.scores(self.layers(hidden, mask=past, is_causal=True))
        return scores


class Network(gridml.Vertex):
    model = gridml.module(Language, partial(torch.optim.AdamW, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1))


class Window(gridml.Vertex):
    characters = gridml.array("uint8", (CONTEXT + 1,))
    network = gridml.edge(Network)


def loss_of(model: nn.Module, characters: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of each next character, in nats."""
    scores = model(characters[:, :-1].int())
    return F.cross_entropy(scores.flatten(0, 1), characters[:, 1:].long().flatten())


@gridml.update(batch=32, min_batch=16)
def train(windows: gridml.Batch[Window], network: Network) -> None:
    loss = loss_of(network.model, windows.characters)
    gridml.log(loss=loss)
    network.step(loss, clip_norm=1.0)


def windows_of(first: int, count: int) -> np.ndarray:
    """Consecutive windows of the text, uint8 (count, CONTEXT + 1)."""
    text, length = gridml.datasets.king_james().characters, CONTEXT + 1
    return text[first * length : (first + count) * length].reshape(count, length)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Window, characters=windows_of(0, WINDOWS), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    """The loss on text from after the training text, in nats and in bits per character."""
    with torch.no_grad():
        loss = float(loss_of(network.model, torch.tensor(windows_of(50_000, HELD_OUT))))
    return {"loss": loss, "bits": loss / np.log(2)}


schedule = gridml.warmup(share=WARM_UP, then=gridml.linear_decay)
program = gridml.Program(graph, train, evaluate, epochs=EPOCHS, schedule=schedule)

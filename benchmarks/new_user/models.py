"""Networks and data that the loop and the program of a task share. Their lines are not counted."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import gridml
from benchmarks.programs.adult import people

__all__ = ["Tagger", "Transformer", "Wide", "halves", "people", "resnet", "verses"]


class Block(nn.Module):
    """Two convolutions with BatchNorm and a shortcut (He et al. 2016, Figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.main(images) + self.shortcut(images))


def resnet() -> nn.Module:
    """Return a minimal ResNet: three blocks, 75,000 parameters, for 32 x 32 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(Block(16, 16, 2), Block(16, 32, 2), Block(32, 64, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


class Transformer(nn.Module):
    """Predicts the next of 128 characters: two layers of causal attention, the embedding tied to the output."""

    def __init__(self, width: int = 64, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 128, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores (b, n, 128) of each next character, from text int64 (b, n)."""
        causal = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.layers(self.embed(text) + self.place[: text.shape[1]], causal, is_causal=True)
        scores: torch.Tensor = self.out(hidden)
        return scores


class Tagger(nn.Module):
    """A small head on a frozen embedding of 24 MB: it classifies 64 characters by the half of the Bible."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(93_750, 64).requires_grad_(False)
        self.head = nn.Linear(64, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.embed(words).mean(1))
        return scores


class Wide(nn.Sequential):
    """25 million parameters, 100 MB."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 5_000), nn.ReLU(), nn.Linear(5_000, 4_215), nn.ReLU())
        self.append(nn.Linear(4_215, 10))


def verses(count: int, length: int = 65) -> NDArray[np.uint8]:
    """uint8 (count, length): the first `count` pieces of the King James Bible, as ASCII."""
    text = gridml.datasets.king_james().characters
    return np.minimum(np.asarray(text[: count * length]), 127).reshape(count, length)


def halves(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(words int64 (count, 16), half int64 (count,)): pieces of four characters, as numbers below 93,750."""
    text = np.asarray(gridml.datasets.king_james().characters)
    starts = np.linspace(0, len(text) - 64, count).astype(np.int64)
    four = text[starts[:, None] + np.arange(64)].reshape(count, 16, 4).astype(np.int64)
    return (four @ np.array([1, 131, 17161, 2248091])) % 93_750, np.arange(count) * 2 // count

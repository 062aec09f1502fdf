"""Load trained weights (--init-from), train on with early stopping, keep the best epoch."""

from functools import partial

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import Transformer, verses


class Network(gridml.Vertex):
    model = gridml.module(Transformer, partial(torch.optim.AdamW, lr=1e-3))


class Verse(gridml.Vertex):
    text = gridml.array("uint8", (65,))
    network = gridml.edge(Network)


def loss(network: Network, text: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(network.model(text[:, :-1].long()).flatten(0, 1), text[:, 1:].long().flatten())


@gridml.update(batch=32)
def train(verses: gridml.Batch[Verse], network: Network) -> None:
    network.step(loss(network, verses.text))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Verse, text=verses(1_600), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    with torch.no_grad():
        return {"loss": float(loss(network, torch.tensor(verses(2_600)[2_400:])))}


program = gridml.Program(
    graph,
    train,
    evaluate,
    epochs=100,
    schedule=gridml.constant,
    early_stopping=gridml.early_stopping("loss", 4),
    keep="best:loss",
)

"""A transformer by AdamW, with warm-up and clipping."""

from functools import partial

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import Transformer, verses


class Network(gridml.Vertex):
    model = gridml.module(Transformer, partial(torch.optim.AdamW, lr=3e-3))


class Verse(gridml.Vertex):
    text = gridml.array("uint8", (65,))
    network = gridml.edge(Network)


def loss(network: Network, text: torch.Tensor) -> torch.Tensor:
    scores = network.model(text[:, :-1].long())
    return F.cross_entropy(scores.flatten(0, 1), text[:, 1:].long().flatten())


@gridml.update(batch=32)
def train(verses: gridml.Batch[Verse], network: Network) -> None:
    network.step(loss(network, verses.text), clip_norm=1.0)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Verse, text=verses(2_400), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    with torch.no_grad():
        return {"loss": float(loss(network, torch.tensor(verses(2_600)[2_400:])))}


program = gridml.Program(graph, train, evaluate, epochs=2, schedule=gridml.warmup(share=0.1, then=gridml.constant))

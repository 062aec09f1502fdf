"""Accumulated gradients, bfloat16 by autocast, torch.compile, on the GPU if there is one."""

from functools import partial

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import Transformer, verses


def compiled() -> torch.nn.Module:
    model = Transformer()
    model.compile()
    return model


class Network(gridml.Vertex):
    model = gridml.module(compiled, partial(torch.optim.AdamW, lr=3e-3))


class Verse(gridml.Vertex):
    text = gridml.array("uint8", (65,))
    network = gridml.edge(Network)


def loss(network: Network, text: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(network.model(text[:, :-1].long()).flatten(0, 1), text[:, 1:].long().flatten())


@gridml.update(batch=16)
def train(verses: gridml.Batch[Verse], network: Network) -> None:
    with torch.autocast(verses.text.device.type, torch.bfloat16):
        value = loss(network, verses.text)
    network.step(value, accumulate=4)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Verse, text=verses(2_400), network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    with torch.no_grad():
        return {"loss": float(loss(network, torch.tensor(verses(2_600)[2_400:])))}


program = gridml.Program(graph, train, evaluate, epochs=1)

"""A small head on a frozen embedding of 24 MB."""

from functools import partial

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import Tagger, halves


class Network(gridml.Vertex):
    model = gridml.module(Tagger, partial(torch.optim.SGD, lr=1.0))


class Piece(gridml.Vertex):
    words = gridml.array("int64", (16,))
    half = gridml.array("int64")
    network = gridml.edge(Network)


@gridml.update(batch=64)
def train(pieces: gridml.Batch[Piece], network: Network) -> None:
    network.step(F.cross_entropy(network.model(pieces.words), pieces.half))


def graph() -> gridml.Graph:
    words, half = halves(8_000)
    g = gridml.Graph()
    g.add(Piece, words=words, half=half, network=g.add(Network))
    return g


def evaluate(network: Network) -> dict[str, float]:
    words, half = halves(8_000)
    with torch.no_grad():
        return {"accuracy": float((network.model(torch.tensor(words)).argmax(1).numpy() == half).mean())}


program = gridml.Program(graph, train, evaluate, epochs=3)

"""A graph network: it tells from the neighbourhood of a node which of four networks it lies in (Kipf and Welling, ICLR
2017, equation 2). GRIDML_DATA names a folder with `snap/*.edges.gz`."""

import gzip
import os
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

import gridml

COUNT, TESTED, EPOCHS, BATCH, NODES, DEGREES, WIDTH = 4_000, 2_000, 6, 32, 24, 16, 64
NETWORKS = ("as-caida20071105", "ca-condmat-cc1", "email-enron", "facebook-combined")
adam = partial(torch.optim.Adam, lr=3e-3)


class Network(nn.Module):
    """Three convolutions over a graph, and the mean of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(DEGREES, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.judge = nn.Linear(WIDTH, len(NETWORKS))

    def forward(self, adjacency: Tensor) -> Tensor:
        """Scores (n, 4) of graphs uint8 (n, NODES, NODES)."""
        own = adjacency.float() + torch.eye(NODES)
        degree = own.sum(2, keepdim=True)
        flow = own / (degree * degree.transpose(1, 2)).sqrt()
        states = F.one_hot(degree[:, :, 0].long().clamp(max=DEGREES - 1), DEGREES).float()
        for layer in self.layers:
            states = F.relu(layer(flow @ states))
        scores: Tensor = self.judge(states.mean(1))
        return scores


def neighbourhoods(name: str, count: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """uint8 (count, NODES, NODES): the nodes that a random walk meets first, and the edges between them."""
    with gzip.open(Path(os.environ["GRIDML_DATA"]) / "snap" / f"{name}.edges.gz", "rt") as lines:
        a, b = np.loadtxt(lines, dtype=np.int64, usecols=(0, 1)).T
    edges = csr_array((np.ones(2 * len(a)), (np.r_[a, b], np.r_[b, a])))
    found: list[NDArray[np.uint8]] = []
    while len(found) < count:
        at = int(random.choice(a))
        met = {at: None}
        for _ in range(20 * NODES):
            at = int(random.choice(edges.indices[edges.indptr[at] : edges.indptr[at + 1]]))
            met[at] = None
            if len(met) == NODES:
                found.append((edges[list(met)][:, list(met)].toarray() > 0).astype(np.uint8))
                break
    return np.stack(found)


@cache
def data() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(adjacency uint8 (COUNT + TESTED, NODES, NODES), number of the network int64) in random order."""
    random = np.random.default_rng(0)
    each = (COUNT + TESTED) // len(NETWORKS)
    graphs = np.concatenate([neighbourhoods(name, each, random) for name in NETWORKS])
    order = random.permutation(len(graphs))
    return graphs[order], np.arange(len(NETWORKS)).repeat(each)[order]


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    graphs, labels = (torch.tensor(part[COUNT:]) for part in data())
    return {"accuracy": float((model(graphs).argmax(1) == labels).float().mean())}


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Network()
    optimiser = adam(model.parameters())
    graphs, labels = map(torch.tensor, data())
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(graphs[batch]), labels[batch]).backward()
            optimiser.step()
    return score(model)


class Shared(gridml.Vertex):
    model = gridml.module(Network, adam)


class Neighbourhood(gridml.Vertex):
    adjacency = gridml.array("uint8", (NODES, NODES))
    label = gridml.array("int64")
    network = gridml.edge(Shared)


@gridml.update(batch=BATCH)
def train(graphs: gridml.Batch[Neighbourhood], network: Shared) -> None:
    network.step(F.cross_entropy(network.model(graphs.adjacency), graphs.label))


def graph() -> gridml.Graph:
    graphs, labels = (part[:COUNT] for part in data())
    g = gridml.Graph()
    g.add(Neighbourhood, adjacency=graphs, label=labels, network=g.add(Shared))
    return g


def evaluate(network: Shared) -> dict[str, float]:
    return score(network.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

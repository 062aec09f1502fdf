"""A stand-in for a program on a fast device: f sleeps for STEP seconds, which takes no CPU, and moves a replica of MB
megabytes. SAMPLES is the number of vertices of an epoch; a batch has 128."""

import os
import time
from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

MB, STEP = int(os.environ.get("MB", "100")), float(os.environ.get("STEP", "0.08"))
SAMPLES, BATCH, EACH = int(os.environ.get("SAMPLES", "2048")), 128, 250_000  # parameters of a tensor


class Tensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(EACH)) for _ in range(MB)])


class Network(gridml.Vertex):
    model = gridml.module(Tensors, partial(torch.optim.SGD, lr=0.01))


class Sample(gridml.Vertex):
    value = gridml.array("float32", (4,))
    network = gridml.edge(Network)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(samples: gridml.Batch[Sample], network: Network) -> None:
    until = time.perf_counter() + STEP
    with torch.no_grad():
        for tensor in network.model.parameters():
            tensor += 1e-3
    network.model = network.model.state_dict()  # marks it as changed, without an optimiser's time
    time.sleep(max(0.0, until - time.perf_counter()))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Sample, value=np.zeros((SAMPLES, 4), np.float32), network=g.add(Network))
    return g


program = gridml.Program(graph, train, epochs=int(os.environ.get("EPOCHS", "12")))

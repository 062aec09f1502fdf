"""Many small networks, two or three per chunk: a worker may hold only those of its leases."""

import weakref
from functools import partial

import numpy as np
import torch
from torch import nn

import gridml

COUNT, EXPERTS, EPOCHS = 1920, 16, 3
MAX_EXPERTS = 9  # three of the previous chunk, three of the current one and three of the next one
living: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Sign(nn.Module):
    """Learns the factor of its points. Its initial value is random, so a worker must get the master's."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Linear(1, 1)
        living.add(self)


class Tally(gridml.Vertex):
    points = gridml.array("int64")
    aggregate = gridml.add()


class Expert(gridml.Vertex):
    model = gridml.module(Sign, partial(torch.optim.Adam, lr=0.1))


class Point(gridml.Vertex):
    x = gridml.array("float32", (1,))
    visits = gridml.array("int64", mutable=True)
    expert = gridml.edge(Expert)
    tally = gridml.edge(Tally)


@gridml.update(batch=8)
def train(points: gridml.Batch[Point], expert: Expert, tally: gridml.Batch[Tally]) -> None:
    assert len(living) <= MAX_EXPERTS, f"{len(living)} experts are held; expected {MAX_EXPERTS} or fewer"
    points.visits += 1
    tally.points += len(points)
    target = points.x * (1 if expert.get_id().index % 2 else -1)
    expert.step(((expert.model.factor(points.x) - target) ** 2).mean())


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Expert, EXPERTS)
    g.add(Tally, points=np.zeros(EXPERTS, np.int64))
    which = np.arange(COUNT) * EXPERTS // COUNT
    x = np.random.default_rng(3).normal(size=(COUNT, 1)).astype(np.float32)
    g.add(Point, x=x, visits=np.zeros(COUNT, np.int64), expert=which, tally=which)
    return g


def evaluate(
    experts: gridml.Batch[Expert], tallies: gridml.Batch[Tally], points: gridml.Batch[Point]
) -> dict[str, object]:
    return {
        "factors": [expert.model.factor.weight.item() for expert in experts],
        "tallies": tallies.points.flatten().tolist(),
        "visits": [points.visits.min().item(), points.visits.max().item()],
    }


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS, shuffle="none")

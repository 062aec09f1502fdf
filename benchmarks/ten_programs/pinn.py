"""PINN: the heat equation on a rod, u_t = DIFFUSION u_xx, solved by a network (Raissi et al. 2019, equation 3)."""

import os
from functools import partial
from math import pi

import torch
from torch import Tensor, nn

import gridml

COUNT, EPOCHS, BATCH, DIFFUSION = 4_000, 1 if "GRIDML_TINY" in os.environ else 25, 100, 0.1
adam = partial(torch.optim.Adam, lr=2e-3)


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()),
        nn.Linear(32, 1),
    )


def exact(place: Tensor) -> Tensor:
    """The solution that is sin(pi x) + sin(3 pi x) / 2 at time 0, and 0 at both ends; place has x and t, (n, 2)."""
    x, t = place.T
    slow, fast = (torch.sin(n * pi * x) * torch.exp(-DIFFUSION * (n * pi) ** 2 * t) for n in (1, 3))
    solution: Tensor = slow + fast / 2
    return solution


def loss(model: nn.Module, place: Tensor) -> Tensor:
    """The equation at places inside; the ends and the beginning at places that are drawn here."""
    place = place.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(place).sum(), place, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), place, create_graph=True)
    wrong = slope[:, 1] - DIFFUSION * bend[:, 0]
    n = len(place)
    edge = torch.rand(n, 2)
    edge[: n // 2, 1] = 0
    edge[n // 2 :, 0] = torch.randint(0, 2, (n - n // 2,)).float()
    missed: Tensor = model(edge)[:, 0] - exact(edge)
    return wrong.square().mean() + 10 * missed.square().mean()


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    """Return the error relative to the solution, on a grid."""
    line = torch.linspace(0, 1, 101)
    place = torch.cartesian_prod(line, line)
    true = exact(place)
    return {"error": float((model(place)[:, 0] - true).norm() / true.norm())}


def places() -> Tensor:
    return torch.rand(COUNT, 2, generator=torch.Generator().manual_seed(0))


def loop(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = network()
    optimiser = adam(model.parameters())
    inside = places()
    for _ in range(EPOCHS):
        for batch in torch.randperm(COUNT).split(BATCH):
            optimiser.zero_grad()
            loss(model, inside[batch]).backward()
            optimiser.step()
    return score(model)


class Solution(gridml.Vertex):
    model = gridml.module(network, adam)


class Place(gridml.Vertex):
    at = gridml.array("float32", (2,))
    solution = gridml.edge(Solution)


@gridml.update(batch=BATCH)
def train(places: gridml.Batch[Place], solution: Solution) -> None:
    solution.step(loss(solution.model, places.at))


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Place, at=places().numpy(), solution=g.add(Solution))
    return g


def evaluate(solution: Solution) -> dict[str, float]:
    return score(solution.model)


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

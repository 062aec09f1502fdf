"""A Gaussian mixture by EM: row e + 1 holds the sums of epoch e, from which epoch e + 1 takes its mixture. A batch
takes 20 ms, so that tests can disturb it."""

import time

import numpy as np
from numpy.typing import NDArray

import gridml

COUNT, PARTS, SIZE, EPOCHS = 2_400, 3, 2, 5
Array = NDArray[np.float64]


class Mixture(gridml.Vertex):
    n = gridml.array("float64", (EPOCHS + 1, PARTS))
    s = gridml.array("float64", (EPOCHS + 1, PARTS, SIZE))
    q = gridml.array("float64", (EPOCHS + 1, PARTS, SIZE))
    log_likelihood = gridml.array("float64", (EPOCHS + 1,))
    aggregate = gridml.add()


class Point(gridml.Vertex):
    x = gridml.array("float64", (SIZE,))
    mixture = gridml.edge(Mixture)


def expectations(x: Array, n: Array, s: Array, q: Array) -> tuple[Array, Array]:
    """Return the log-likelihood of each point and its responsibilities, for given sums."""
    means = s / n[:, None]
    variances = np.maximum(q / n[:, None] - means**2, 1e-3)
    distances = ((x[:, None] - means) ** 2 / variances).sum(2)
    joint = np.log(n / n.sum()) - 0.5 * (np.log(2 * np.pi * variances).sum(1) + distances)
    largest = joint.max(1, keepdims=True)
    each: Array = largest[:, 0] + np.log(np.exp(joint - largest).sum(1))
    return each, np.exp(joint - each[:, None])


@gridml.update(batch=25)
def em(points: gridml.Batch[Point], mixture: Mixture, at: gridml.Progress) -> None:
    e = at.epoch
    each, belongs = expectations(points.x, mixture.n[e], mixture.s[e], mixture.q[e])
    mixture.n[e + 1] += belongs.sum(0)
    mixture.s[e + 1] += belongs.T @ points.x
    mixture.q[e + 1] += belongs.T @ points.x**2
    mixture.log_likelihood[e + 1] += each.sum()
    time.sleep(0.02)


def data() -> Array:
    rng = np.random.default_rng(1)
    return rng.normal(0, 4, (PARTS, SIZE))[rng.integers(0, PARTS, COUNT)] + rng.normal(0, 1, (COUNT, SIZE))


def first() -> dict[str, Array]:
    """Return initial sums, as if there had been an epoch before the first."""
    n, s = np.zeros((EPOCHS + 1, PARTS)), np.zeros((EPOCHS + 1, PARTS, SIZE))
    q, log_likelihood = np.zeros_like(s), np.zeros(EPOCHS + 1)
    n[0], s[0] = 1, data()[:PARTS]
    q[0] = 4 + s[0] ** 2
    return {"n": n, "s": s, "q": q, "log_likelihood": log_likelihood}


def plain() -> dict[str, Array]:
    """Return the result of a plain loop over all points."""
    sums, x = first(), data()
    for e in range(EPOCHS):
        each, belongs = expectations(x, sums["n"][e], sums["s"][e], sums["q"][e])
        sums["n"][e + 1], sums["log_likelihood"][e + 1] = belongs.sum(0), each.sum()
        sums["s"][e + 1], sums["q"][e + 1] = belongs.T @ x, belongs.T @ x**2
    return sums


def graph() -> gridml.Graph:
    g = gridml.Graph()
    mixture = g.add(Mixture, **{name: sums[None] for name, sums in first().items()})
    g.add(Point, x=data(), mixture=mixture)
    return g


program = gridml.Program(graph, em, epochs=EPOCHS, overlap=False)

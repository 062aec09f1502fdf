"""Matrix factorisation of ratings in a file, as examples/mf.py. EDGES in the environment names the file."""

import os

import numpy as np

import gridml

RANK, RIDGE = 16, 0.06


class Shared(gridml.Vertex):
    mean, rate = gridml.array("float32"), gridml.array("float32")
    loss, last = gridml.accumulator("float64"), gridml.array("float64")  # of this pass, and of the last one
    seen, credited = gridml.accumulator("int64"), gridml.array("int64")
    aggregate = gridml.owned()


class Item(gridml.Vertex):
    q = gridml.array("float32", (RANK,))
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    p = gridml.array("float32", (RANK,), mutable=True)
    rated = gridml.edge(Item, weight="float32")


@gridml.exchange(over=User)
def learn(user: User, item: Item, rating: gridml.Link, at: Shared) -> None:
    error = rating.weight - at.mean
    for f in range(RANK):
        error -= user.p[f] * item.q[f]
    at.loss += error * error
    at.seen += 1
    for f in range(RANK):
        p, q = user.p[f], item.q[f]
        user.p[f] = p + at.rate * (error * q - RIDGE * p)
        item.q[f] = q + at.rate * (error * p - RIDGE * q)


@gridml.global_sync
def keep(shared: Shared) -> None:
    shared.last, shared.credited = shared.loss, shared.seen


def graph() -> gridml.Graph:
    read, start, g = gridml.graph_from(os.environ["EDGES"]), np.random.default_rng(0), gridml.Graph()
    g.add(Shared, mean=3.0, rate=0.02, last=0.0, credited=0)
    g.add(Item, ids=read.column_ids, q=start.normal(0, 0.1, (read.columns, RANK)))
    g.add(User, ids=read.row_ids, p=start.normal(0, 0.1, (read.rows, RANK)).astype("float32"), rated=read.edges())
    return g


program = gridml.Program(graph, [gridml.MiniBatch([learn], size=64), keep], epochs=2)

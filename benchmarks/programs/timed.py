"""Vertices that only wait 2 ms each, so that any number of workers fit on one machine."""

import os
import time

import numpy as np

import gridml

VERTICES = int(os.environ.get("TIMED_VERTICES", "20000"))
VERTEX_S = 0.002
BATCH = 10


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Item(gridml.Vertex):
    total = gridml.edge(Total)


@gridml.update(batch=BATCH, min_batch=BATCH)
def train(items: gridml.Batch[Item], total: gridml.Batch[Total]) -> None:
    time.sleep(VERTEX_S * len(items))
    np.add.at(total.count, items.total.index, 1)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Total, count=np.zeros(1, np.int64))
    g.add(Item, total=np.zeros(VERTICES, np.int64))
    return g


program = gridml.Program(graph, train)

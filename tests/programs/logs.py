"""f logs whole numbers, whose sums are exact: a run must report the sum over its vertices, each once."""

import numpy as np

import gridml

COUNT, EPOCHS = 400, 3


class Total(gridml.Vertex):
    value = gridml.array("int64")
    aggregate = gridml.add()


class Item(gridml.Vertex):
    number = gridml.array("int64")
    total = gridml.edge(Total)


@gridml.update(batch=10)
def train(items: gridml.Batch[Item], totals: gridml.Batch[Total]) -> None:
    totals.value += len(items.number)
    gridml.log(number=items.number.mean(), twice=1)
    gridml.log(twice=np.float32(3))  # the second value in this call: their mean counts


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Total, value=np.zeros(1, np.int64))
    g.add(Item, number=np.arange(COUNT), total=np.zeros(COUNT, np.int64))
    return g


def evaluate(totals: gridml.Batch[Total]) -> dict[str, float]:
    return {"total": int(totals.value.sum())}


program = gridml.Program(graph, train, evaluate, epochs=EPOCHS)

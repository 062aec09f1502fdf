"""A run whose loss falls for three epochs and then rises; its count determines the epoch."""

import numpy as np

import gridml

COUNT, EPOCHS, BEST = 60, 20, 3


class Total(gridml.Vertex):
    value = gridml.array("int64")
    aggregate = gridml.add()


class Item(gridml.Vertex):
    total = gridml.edge(Total)


@gridml.update(batch=10)
def train(items: gridml.Batch[Item], totals: gridml.Batch[Total]) -> None:
    totals.value += len(items.total.index)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Total, value=np.zeros(1, np.int64))
    g.add(Item, total=np.zeros(COUNT, np.int64))
    return g


def evaluate(totals: gridml.Batch[Total]) -> dict[str, float]:
    epochs = int(totals.value[0]) / COUNT
    return {"loss": abs(epochs - BEST), "counted": int(totals.value[0])}


program = gridml.Program(
    graph, train, evaluate, epochs=EPOCHS, early_stopping=gridml.early_stopping("loss", patience=1), keep="best:loss"
)

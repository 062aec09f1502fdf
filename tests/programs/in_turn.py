"""Sums that are read an epoch later: f counts the vertices for which the previous epoch's sum is incomplete."""

import numpy as np

import gridml

COUNT, TOTALS, EPOCHS = 17, 5, 4


class Total(gridml.Vertex):
    """Column e is the sum of epoch e - 1; column 0 is initialised as if there had been an epoch before the first."""

    sums = gridml.array("int64", (EPOCHS + 1,))
    incomplete = gridml.array("int64")
    trained = gridml.array("int64")
    aggregate = gridml.add()


class Item(gridml.Vertex):
    total = gridml.edge(Total)


def complete() -> np.ndarray:
    """Return the sum that an epoch adds to each total."""
    return np.bincount(np.arange(COUNT) % TOTALS, minlength=TOTALS)


@gridml.update(batch=2)
def train(items: gridml.Batch[Item], totals: gridml.Batch[Total], at: gridml.Progress) -> None:
    rows, epoch = items.total.index, at.epoch
    of_each = complete()[totals.ids[rows]]
    wrong = (totals.sums[rows, epoch] != of_each) | totals.sums[rows, epoch + 2 :].any(axis=1)
    np.add.at(totals.incomplete, rows, wrong)
    np.add.at(totals.sums, (rows, epoch + 1), 1)
    np.add.at(totals.trained, rows, 1)


def counted(trained: np.ndarray) -> dict[str, np.ndarray]:
    """Return the expected values when item i was trained `trained[i]` times."""
    totals = np.bincount(np.arange(COUNT) % TOTALS, trained, TOTALS).astype(np.int64)
    return {"Total/incomplete": np.zeros(TOTALS, np.int64), "Total/trained": totals}


def graph() -> gridml.Graph:
    g = gridml.Graph()
    sums = np.zeros((TOTALS, EPOCHS + 1), np.int64)
    sums[:, 0] = complete()
    g.add(Total, sums=sums, incomplete=np.zeros(TOTALS, np.int64), trained=np.zeros(TOTALS, np.int64))
    g.add(Item, total=np.arange(COUNT) % TOTALS)
    return g


program = gridml.Program(graph, train, epochs=EPOCHS, overlap=False)

"""Programs written from PyTorch's habits, by people who have not read the documentation: each mistake gives one message
that names what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridml.errors import ProgramError
from gridml.protocol.foreign import described

pytest.importorskip("torch")
COMMAND = "check"

PROGRAM = """
from functools import partial
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
import gridml

def net():
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))

class Net(gridml.Vertex):
    model = gridml.module(net, partial(torch.optim.SGD, lr=0.05))

class Row(gridml.Vertex):
    x = gridml.array("float32", (20,))
    y = gridml.array("int64")
    net = gridml.edge(Net)

@gridml.update(batch=32)
def train(rows: gridml.Batch[Row], net: Net) -> None:
    loss = F.cross_entropy(net.model(rows.x), rows.y)
    net.step(loss)

def data():
    draw = np.random.default_rng(0)
    return draw.standard_normal((200, 20)).astype("float32"), draw.integers(0, 4, 200)

def graph():
    x, y = data()
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    g = gridml.Graph()
    g.add(Row, x=x, y=y, net=g.add(Net))
    return g

def evaluate(net: Net):
    return {"norm": net.model[0].weight.norm()}

program = gridml.Program(graph, train, evaluate, epochs=2)
"""
LOSS = "    loss = F.cross_entropy(net.model(rows.x), rows.y)\n"
STEP = "    net.step(loss)\n"
MODULE = "gridml.module(net, partial(torch.optim.SGD, lr=0.05))"
X, Y = 'gridml.array("float32", (20,))', 'gridml.array("int64")'
ADD = "g.add(Row, x=x, y=y, net=g.add(Net))"
METRIC = 'return {"norm": net.model[0].weight.norm()}'
END = "epochs=2)"
CALL = "program = gridml.Program(graph, train, evaluate, epochs=2)"
SCHEDULE = "schedule=gridml.torch_schedule(lambda optimiser: StepLR(optimiser, 30))"
LOADER = "g.add(Row, net=g.add(Net), **gridml.from_torch(torch.utils.data.DataLoader(dataset), Row))"
IMPORTED = "from torch import nn\n"
FIELDS = "write images.pixels, images.label"
TOP = "Write program = gridml.Program(graph, train) at the top level"
RATE = "Lower the learning rate"
COUNT = "class Count(gridml.Vertex):\n    n = gridml.array('int64')\n\nclass Net("
CLOSURE = "network.optimiser.step(closure)"
LABELS = 'declare the labels as gridml.array("int64")'
MODULE_FIELD = "write the field that holds its module, as in network.model"

HABITS = [  # (text of the program, its replacement, what the message says to write)
    # values to log
    (STEP, STEP + '    gridml.log("loss", loss)\n', "write gridml.log(loss=loss)"),
    (STEP, STEP + '    gridml.log({"loss": loss})\n', "write gridml.log(loss=loss), or gridml.log(**a_dict)"),
    (STEP, STEP + '    gridml.log_scalar("loss", loss)\n', "write gridml.log(loss=loss)"),
    (STEP, STEP + '    gridml.add_scalar("loss", loss, 0)\n', "write gridml.log(loss=loss)"),
    # schedules
    (END, "epochs=2, schedule=StepLR)", f"write {SCHEDULE}"),
    (END, "epochs=2, schedule=lambda o: StepLR(o, 1))", f"write {SCHEDULE}"),
    (END, "epochs=2, schedule=partial(StepLR, step_size=1))", f"write {SCHEDULE}"),
    (END, "epochs=2, schedule=gridml.torch_schedule(StepLR))", f"write {SCHEDULE}"),
    (END, "epochs=2, schedule=StepLR(torch.optim.SGD(net().parameters()), 1))", SCHEDULE.removeprefix("schedule=")),
    (END, "epochs=2, schedule='cosine')", SCHEDULE.removeprefix("schedule=")),
    (END, "epochs=2, scheduler=StepLR)", f"write {SCHEDULE}"),
    (END, "epochs=2, schedule=lambda epoch: 0.95**epoch)", "lambda optimiser: LambdaLR(optimiser, lambda epoch: ...)"),
    (STEP, STEP + "    net.scheduler.step()\n", "write Program(..., schedule=...)"),
    # fields
    (Y, 'gridml.array("U12")', "Declare text as gridml.string()"),
    (Y, "gridml.array(str)", "Declare text as gridml.string()"),
    (Y, "gridml.array(torch.int64)", "as in gridml.array('int64', (28, 28))"),
    (X, "gridml.array((20,))", "as in gridml.array('float32', (28, 28))"),
    (X, 'gridml.array("float32", (None, 20))', 'gridml.ragged("float32")'),
    (X, 'gridml.array("float32", (-1,))', 'gridml.ragged("float32")'),
    (X, 'gridml.array("float32", 20)', "such as (28, 28), or (28,)"),
    (X, 'gridml.array("float32", (200, 20))', 'shape of one vertex\'s value, gridml.array("float32", (20,))'),
    (X, 'gridml.array("float32", (20,), default=0)', 'write gridml.array("float32", (28, 28)), and give values to'),
    (X, "np.zeros(20)", 'Declare fields in the class, as in pixels = gridml.array("float32", (28, 28))'),
    # L-BFGS
    (MODULE, "gridml.module(net, torch.optim.LBFGS)", f"write {CLOSURE}"),
    (STEP, "    net.step(lambda: loss)\n", CLOSURE),
    # data
    (ADD, LOADER, "give its data set, loader.dataset"),
    (ADD, "g.add(Row, x=torch.utils.data.DataLoader(dataset), y=y, net=g.add(Net))", "gridml.from_torch(dataset, Row)"),
    (ADD, "g.add(Row, dataset, net=g.add(Net))", "gridml.from_torch(dataset, Row)"),
    (ADD, "g.add(Row, {'x': x, 'y': y}, net=g.add(Net))", "given by name, as in **a_dict"),
    (ADD, "g.add(Row, x, y, g.add(Net))", "as in graph.add(Image, pixels=pixels, label=label)"),
    (ADD, "g.add(Row, x=x, y=y)", "Write net=graph.add(Net)"),
    (ADD, "g.add(Row, x=x, y=y, net=Net)", "what graph.add(Net) returned"),
    (ADD, "g.add(Row, x=x, y=y, net=g.add(Net, model=net()))", "made by its factory"),
    (ADD, "g.add(Net(model=net()))", "Vertices are added with graph.add(Net, ...)"),
    (ADD, "g.add(Row, x=x, y=np.eye(4)[y], net=g.add(Net))", 'gridml.array("int64", (4,))'),
    (ADD, "g.add(Row, x=x, y=['cat'] * 200, net=g.add(Net))", "Declare gridml.string(), or give numbers: np.unique("),
    (ADD, "g.add(Row, x=[a[: k % 20] for k, a in enumerate(x)], y=y, net=g.add(Net))", 'gridml.ragged("float32")'),
    ("    return g\n", "    return dataset\n", "end it with return g"),
    (IMPORTED, f"{IMPORTED}X = np.load('x.npy')\n", "read it in graph(), use an absolute path"),
    (LOSS, "    open('classes.txt')\n", "or give gridml run --send"),
    (IMPORTED, f"{IMPORTED}from my_layers import Block\n", "your own file belongs beside the program"),
    (LOSS, "    import no_such_module\n", "pip install no_such_module"),
    # labels and dtypes
    (Y, 'gridml.array("float32")', LABELS),
    (Y, 'gridml.array("int32")', LABELS),
    (ADD, "g.add(Row, x=x, y=y.astype('float32'), net=g.add(Net))", 'or give values.astype("int64")'),
    (LOSS, LOSS.replace("rows.y", "rows.y[:, None]"), f"{LABELS} without a shape"),
    (LOSS, LOSS.replace("rows.y", "rows.y + 1"), "write images.label - 1"),
    (LOSS, "    loss = F.binary_cross_entropy_with_logits(net.model(rows.x)[:, 0], rows.y)\n", "images.label.float()"),
    (X, 'gridml.array("float64", (20,))', "write images.pixels.float()"),
    (LOSS, LOSS.replace("rows.x", "torch.from_numpy(rows.x)"), "write the field as it is"),
    (METRIC, 'return {"score": net.model(data()[0]).mean()}', "write torch.from_numpy(values)"),
    ("return nn.Sequential(", "return nn.Sequential(nn.Embedding(9, 20), ", 'gridml.array("int64"), or write .long()'),
    # f
    (", net: Net) -> None", ", net) -> None", "as in (images: gridml.Batch[Image], network: Network)"),
    ("gridml.Batch[Row], net", "Row, net", "for a batch, annotate rows: gridml.Batch[Row]"),
    ("net: Net) -> None", "net: Net, epoch: int) -> None", "gridml.Progress, which has the epoch"),
    ("(batch=32)", "", "declared @gridml.update(batch=64)"),
    ("(batch=32)", "(batch_size=32)", "write @gridml.update(batch=64) above f"),
    ("@gridml.update(batch=32)\n", "", "with @gridml.update(batch=64) above train"),
    ("    net = gridml.edge(Net)\n", "", "declare one, net = gridml.edge(Net)"),
    (STEP, "    loss.backward()\n    net.step(loss)\n", "write network.step(loss) alone"),
    (STEP, "    loss.backward()\n    net.step()\n", "write network.step(loss) alone"),
    (STEP, "    net.optimizer.zero_grad()\n", "write network.step(loss); the optimiser itself is network.optimiser"),
    (STEP, "    net.model.step(loss)\n", "write network.step(loss)"),
    (STEP, "    net.step(loss.item())\n", "without .item() or float()"),
    (STEP, "    net.step(loss, max_norm=1.0)\n", "write network.step(loss, clip_norm=1.0)"),
    (LOSS, LOSS.replace("net.model(", "net("), MODULE_FIELD),
    (LOSS, f"    net.train()\n{LOSS}", MODULE_FIELD),
    (LOSS, f"    net.zero_grad()\n{LOSS}", MODULE_FIELD),
    (LOSS, LOSS.replace("rows.x", "rows['x']"), FIELDS),
    (LOSS, f"    for x, y in torch.utils.data.DataLoader(rows, batch_size=8):\n    {LOSS}", FIELDS),
    (LOSS, "    x, y = rows\n", FIELDS),
    (LOSS, "    for x, y in rows:\n        net.model(x)\n", FIELDS),
    (LOSS, LOSS.replace("net.model", "rows.net.model"), "vertex that an edge leads to is an argument of f"),
    (LOSS, f"    rows.x = rows.x / 255\n{LOSS}", "Put a new value into a variable: x = images.pixels / 255"),
    ("lr=0.05", "lr=50000.0", RATE),
    # types
    (MODULE, "net()", "Give the class Net a line such as model = gridml.module(factory, partial(torch.optim.SGD"),
    (f"    model = {MODULE}", "    def __init__(self):\n        self.model = net()", "such as model = gridml.module("),
    (MODULE, "gridml.module(net(), partial(torch.optim.SGD, lr=0.05))", "as in gridml.module(lambda: Network(10))"),
    (MODULE, "gridml.module(net, torch.optim.SGD, lr=0.05)", "write gridml.module(factory, partial(torch.optim.SGD"),
    (MODULE, "gridml.module(net, optimizer=torch.optim.SGD)", "write gridml.module(factory, partial(torch.optim.SGD"),
    ("gridml.edge(Net)", "gridml.edge(nn.Linear)", "gridml.Vertex, which holds a torch module as a field"),
    # the program
    (CALL, CALL.replace("epochs", "max_epochs"), "write epochs=12"),
    (CALL, CALL.replace(END, "lr=0.1)"), "write gridml.module(factory, partial(torch.optim.SGD, lr=0.05))"),
    (CALL, CALL.replace(END, "batch_size=32)"), "write @gridml.update(batch=64)"),
    (CALL, CALL.replace("train", "[train, train]"), "above train, the one function that workers call"),
    (CALL, CALL.replace("graph, train", "train, graph"), "expected gridml.Program(graph, train)"),
    (CALL, CALL.replace("graph,", "graph(),"), "expected the function, without calling it"),
    (CALL, CALL.removeprefix("program = "), TOP),
    (CALL, f"if __name__ == '__main__':\n    {CALL}", TOP),
    (CALL, f"{CALL}\nprogram.fit()", "write gridml.run(program)"),
    (CALL, f"{CALL}\ngridml.run(program)", 'Put the call under if __name__ == "__main__":'),
    (CALL, "program = gridml.Trainer(graph, train)", "write gridml.run(program)"),
    (END, "epochs=2, early_stopping=gridml.EarlyStopping(monitor='norm'))", 'gridml.early_stopping("loss"'),
    (END, "epochs=2, shuffle=False)", "expected one of ('all', 'block', 'none')"),
    (END, "epochs=0)", "expected at least 1"),
    # evaluate
    (METRIC, "return 0.5", 'as in return {"accuracy": 0.98}'),
    (METRIC, "return net.model[0].weight.norm()", 'as in return {"accuracy": 0.98}'),
    (METRIC, "print('accuracy', 0.5)", 'as in return {"accuracy": 0.98}'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), HABITS)
def test_a_message_names_what_to_write(mistake: Callable[..., str], old: str, new: str, said: str) -> None:
    assert PROGRAM.count(old) == 1
    Path("program.py").write_text(PROGRAM.replace(old, new))
    mistake(["check", "program.py"], (3, 4, 5), said)  # of the program, of its code, of its data


UNTRAINED = "Call the vertex's step with the loss, as in network.step(loss)"


@pytest.mark.parametrize("new", ["    return loss\n", "    loss.backward()\n"])
def test_a_loss_that_is_not_stepped_is_a_warning(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path, new: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace(STEP, new))
    status, _, err = gridml("program.py")
    assert status == 0 and UNTRAINED in err


def test_only_a_known_error_that_is_not_gridmls_has_advice() -> None:
    assert described(AttributeError("'Net' object has no attribute 'optimizer'")).endswith("is network.optimiser)")
    for error in (KeyError("x"), ProgramError("'Net' object has no attribute 'optimizer'"), ValueError("é" * 10**7)):
        assert " (write" not in described(error)

"""`gridml check`: a correct program is tried from end to end, and a mistake gives one message with its cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
COMMAND = "check"
TESTS = Path(__file__).parents[2]
COUNTS, PERCEPTRON = ((TESTS / "programs" / name).read_text() for name in ("counts.py", "perceptron.py"))

FACTORY = "gridml.module(perceptron, partial(torch.optim.SGD, lr=0.05, momentum=0.9))"
SGD = "partial(torch.optim.SGD, lr=0.05, momentum=0.9)"
STEP = "    network.step(loss_of(network.model, points.values, points.label))\n"
LOSS = "F.cross_entropy(model(values), label)"
LAYERS = "nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))"
METRIC = 'return {"accuracy": float((found == label).mean())}'
PROGRAM = "gridml.Program(graph, train, evaluate, epochs=EPOCHS)"
BATCH = "COUNT, BATCH, EPOCHS = 1000, 32, 3"
NETWORK = f"    model = {FACTORY}\n"
G = "    def aggregate(self, replica, merge):\n"

RULE = "aggregate = gridml.add()"
OWN = "def aggregate(self, replica, merge):\n        "
VISITS = "    documents.visits += 1\n"
ADDS = "    np.add.at(words.count, documents.words.index, 1)\n"
COUNTED = '{"counted": int(words.count.sum())'

MISTAKES = [  # (program, text in it, its replacement, exit status, text of the message)
    # f
    (
        PERCEPTRON,
        LOSS,
        "F.cross_entropy(model(values[:, :19]), label)",
        4,
        "f failed on Point 0 to 31: RuntimeError: mat1",
    ),
    (PERCEPTRON, LOSS, "F.cross_entropy(model(values), label.float())", 4, "f failed on Point 0 to 31: RuntimeError"),
    (PERCEPTRON, LOSS, "F.cross_entropy(model(values), label + 9)", 4, "IndexError: Target"),
    (PERCEPTRON, LOSS, "F.cross_entropy(model(values), label) * float('nan')", 4, "the loss is nan"),
    (PERCEPTRON, LOSS, "F.cross_entropy(model(values), label, reduction='none')", 4, "f failed on Point 0 to 31"),
    (PERCEPTRON, LOSS, "F.cross_entropy(model(values), label).item()", 4, "f failed on Point 0 to 31"),
    (PERCEPTRON, STEP, "    points.nothing\n", 4, "f failed on Point 0 to 31: AttributeError"),
    (
        PERCEPTRON,
        STEP,
        f"    import no_such_module\n{STEP}",
        4,
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    (PERCEPTRON, STEP, "    raise SystemExit(0)\n", 4, "f failed on Point 0 to 31: SystemExit: 0"),
    (COUNTS, ADDS, "    words.count[documents.words.index, 0] += 1\n", 4, "IndexError: too many indices"),
    (COUNTS, VISITS, "    documents.words = 5\n", 4, "f failed on Document 0 to 9"),
    # g
    (COUNTS, RULE, f"{OWN}self.count = 1 / 0", 4, "Word.aggregate failed on"),
    (COUNTS, RULE, f"{OWN}self.count = np.zeros(3)", 4, "Word.aggregate"),
    (COUNTS, RULE, f"{OWN}merge.nothing", 4, "Word.aggregate failed on"),
    (COUNTS, RULE, "def aggregate(self, replica): pass", 3, "takes (self, replica), which is not 3 arguments"),
    (PERCEPTRON, NETWORK, f"{NETWORK}    aggregate = gridml.stale_mean\n", 3, "expected a rule such as"),
    (PERCEPTRON, NETWORK, f"{NETWORK}\n{G}        self.model.nothing()\n", 4, "Network.aggregate failed on"),
    (PERCEPTRON, NETWORK, f"{NETWORK}\n{G}        self.model[0].weight.data *= float('nan')\n", 4, "is not finite"),
    # factory and optimiser
    (
        PERCEPTRON,
        FACTORY,
        "gridml.module(perceptron(), torch.optim.SGD)",
        3,
        "gridml.module got Sequential; expected",
    ),
    (PERCEPTRON, SGD, f"{SGD}, device='gpu'", 3, "the device of gridml.module is 'gpu'; expected auto, cpu, cuda"),
    (PERCEPTRON, SGD, f"{SGD}, device='privateuseone'", 2, "Network.model asks for privateuseone, and this worker"),
    (PERCEPTRON, LAYERS, "nn.Linear(20)", 4, "the factory of Network.model failed: TypeError"),
    (PERCEPTRON, LAYERS, "None", 3, "the factory of Network.model made a NoneType"),
    (PERCEPTRON, SGD, "torch.optim.SGD(perceptron().parameters(), lr=0.1)", 3, "got SGD as its optimiser; expected"),
    (PERCEPTRON, SGD, "partial(torch.optim.SGD, rate=0.05)", 4, "the optimiser of Network.model failed: TypeError"),
    (PERCEPTRON, f", {SGD}", "", 4, "f failed on Point 0 to 31"),
    (PERCEPTRON, "lr=0.05", "lr=1e30", 4, "Lower the learning rate"),
    # schedule
    (PERCEPTRON, PROGRAM, PROGRAM.replace(")", ", schedule=lambda: 1)"), 3, "schedule(0.0) failed: TypeError"),
    (PERCEPTRON, PROGRAM, PROGRAM.replace(")", ", schedule=lambda share: 1 / (1 - share))"), 3, "schedule(1.0) failed"),
    (PERCEPTRON, PROGRAM, PROGRAM.replace(")", ", loggers=['tensorbord'])"), 2, "there is no logger 'tensorbord'"),
    # graph and types
    (PERCEPTRON, "values=values, ", "", 3, "misses ['values']"),
    (PERCEPTRON, "values=values,", "values=values[1:],", 3, "arrays of unequal length for Point"),
    (PERCEPTRON, "(20,))", "(21,))", 3, "Point.values got an array of shape (1000, 20)"),
    (PERCEPTRON, 'gridml.array("int64")', 'gridml.array("int32", (2,))', 3, "Point.label got"),
    (PERCEPTRON, "    return g\n", "", 3, "graph returned NoneType"),
    (COUNTS, "WORDS, EPOCHS = 3000", "WORDS, EPOCHS = 0", 3, "f has nothing to run on"),
    # evaluate
    (PERCEPTRON, METRIC, "return found == label", 3, "evaluate returned ndarray; expected a dict of numbers by name"),
    (PERCEPTRON, METRIC, 'return {"accuracy": "much"}', 3, "evaluate returned str"),
    (PERCEPTRON, METRIC, "return found + label.nothing", 4, "evaluate failed: AttributeError"),
    (COUNTS, COUNTED, COUNTED.replace("words.count", "words.counts"), 4, "evaluate failed: AttributeError"),
]


@pytest.mark.parametrize(("text", "old", "new", "status", "said"), MISTAKES)
def test_a_mistake_is_one_message(
    mistake: Callable[..., str], text: str, old: str, new: str, status: int, said: str
) -> None:
    assert text.count(old) >= 1
    Path("program.py").write_text(text.replace(old, new))
    err = mistake(["check", "program.py"], status, said)
    assert err.count("Traceback (most recent call last)") <= 1


@pytest.mark.parametrize("name", ["counts", "perceptron", "mixture", "slow_count"])
def test_what_is_right_is_said_to_be(gridml: Callable[..., tuple[int, str, str]], name: str) -> None:
    status, out, err = gridml(str(TESTS / "programs" / f"{name}.py"))
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"{name}.py can be run: gridml run {TESTS / 'programs' / name}.py"


def test_what_it_found_can_be_read_by_a_program(gridml: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = gridml(str(TESTS / "programs" / "perceptron.py"), "--json")
    trial = json.loads(out)
    assert status == 0
    assert trial["vertices"] == {"Network": 1, "Point": 1000}
    assert (trial["batch"], trial["tensors"], trial["odd"]) == (32, 9, [])
    assert trial["batch_s"] > 0
    assert "Network/0/model/2.running_var" in trial["moved"]
    assert 0 <= trial["metrics"]["accuracy"] <= 1


def test_an_f_that_does_nothing_is_odd(gridml: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text(COUNTS.replace(VISITS, "").replace(ADDS, "    pass\n"))
    status, out, err = gridml("idle.py")
    assert status == 0
    assert "moved nothing" in out
    assert err == "Warning: f changed nothing that is replicated, and no field of its own vertices\n"


def test_a_last_batch_that_is_too_small_for_f_is_odd(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Several workers share the last batch; a single one would fail on it."""
    crumb = PERCEPTRON.replace(BATCH, "COUNT, BATCH, EPOCHS = 1000, 37, 3")
    needs = "    if len(points.ids) < 20:\n        raise ValueError('too few')\n    network.step("
    (tmp_path / "crumb.py").write_text(crumb.replace("    network.step(", needs))
    status, _, err = gridml("crumb.py")
    assert status == 0
    assert "the last batch of an epoch has 19 vertices, and f failed on Point 0 to 18: ValueError: too few" in err
    for asked in ("min_batch=18", "drop_last=True"):
        (tmp_path / "crumb.py").write_text(crumb.replace("batch=BATCH", f"batch=BATCH, {asked}"))
        assert gridml("crumb.py")[::2] == (0, "")


def test_evaluate_sees_what_f_changed_of_local_vertices(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    ratio = COUNTS.replace("int(documents.visits.min())", "1 / int(documents.visits.max())")
    (tmp_path / "visits.py").write_text(ratio)
    status, out, err = gridml("visits.py", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["metrics"] == {"counted": 80, "least_visits": 1.0}


def test_components_are_tried_whole(gridml: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    status, _, err = gridml(str(TESTS / "programs" / "mixture.py"))
    assert (status, err) == (0, "")


def test_data_that_is_not_finite_is_odd(gridml: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    source = (
        "import gridml, numpy as np\n\n\n"
        "class Total(gridml.Vertex):\n    sum = gridml.array('float64')\n    aggregate = gridml.add()\n\n\n"
        "class Row(gridml.Vertex):\n    size = gridml.array('float64', (2,))\n    total = gridml.edge(Total)\n\n\n"
        "def graph():\n    g = gridml.Graph()\n    size = np.ones((3000, 2))\n"
        "    size[[2500, 2700], 1] = np.nan, np.inf\n"
        "    g.add(Row, size=size, total=g.add(Total, sum=np.zeros(1)))\n    return g\n\n\n"
        "@gridml.update(batch=10)\ndef f(rows: gridml.Batch[Row], total: Total) -> None:\n"
        "    total.sum += rows.size.sum()\n\n\nprogram = gridml.Program(graph, f)\n"
    )
    (tmp_path / "rows.py").write_text(source)
    status, _, err = gridml("rows.py")
    assert status == 0
    assert "Row.size holds NaN or infinity in 2 of 3,000 vertices, first in Row 2,500" in err
    (tmp_path / "rows.py").write_text(source.replace("np.ones((3000, 2))", "np.load('sizes.npy')"))
    status, _, err = gridml("rows.py")
    assert status == 4
    assert "No such file or directory: 'sizes.npy' (workers have other working directories" in err
    assert f"The working directory is {tmp_path}." in err


PAIRS = """
import gridml, numpy as np


class Total(gridml.Vertex):
    sum = gridml.array("float64")
    aggregate = gridml.add()


class Item(gridml.Vertex):
    size = gridml.array("float64")


class Pair(gridml.Vertex):
    left = gridml.edge(Item)
    right = gridml.edge(Item)
    total = gridml.edge(Total)


def graph():
    g = gridml.Graph()
    items = g.add(Item, size=np.arange(300.0))
    at = np.arange(300)
    g.add(Pair, left=items[at], right=items[(at + 1) % 300], total=g.add(Total, sum=np.zeros(1)))
    return g


@gridml.update(batch=10)
def f(pairs: gridml.Batch[Pair], left: gridml.Batch[Item], right: gridml.Batch[Item], total: Total) -> None:
    total.sum += (left.size - right.size[pairs.right.index]).sum()


program = gridml.Program(graph, f)
"""


def test_neighbours_that_are_taken_for_rows_of_the_batch_are_odd(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "pairs.py").write_text(PAIRS)
    status, _, err = gridml("pairs.py")
    assert status == 0
    assert "f has not used Pair.left.index: its Batch of Item has one row for each distinct Item" in err
    assert "Pair.right.index" not in err
    (tmp_path / "pairs.py").write_text(PAIRS.replace("left.size -", "left.size[pairs.left.index] -"))
    assert "has not used" not in gridml("pairs.py")[2]


def test_local_vertices_that_join_all_others_are_odd(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "pairs.py").write_text(PAIRS)
    joined = "300 of 300 Pair are connected with one another by edges to local vertices (Pair.left, Pair.right)"
    assert joined in gridml("pairs.py")[2]
    (tmp_path / "pairs.py").write_text(PAIRS.replace("(at + 1) % 300", "at // 3 * 3"))
    assert "connected with one another" not in gridml("pairs.py")[2]


def test_a_write_of_f_to_a_tensor_without_effect_is_reported(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    step = "    network.step("
    assert PERCEPTRON.count(step) == 1
    (tmp_path / "writes.py").write_text(PERCEPTRON.replace(step, f"    points.label[:] = 0\n{step}"))
    status, _, err = gridml("writes.py")
    assert status == 0
    assert "f wrote Point.label, which is discarded: only a field declared" in err


LOSS_OF = "loss_of(network.model, points.values, points.label)"
NO_STEP = "and changed none of the 6 trainable parameters of Network.model. Call the vertex's step"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # no step, though layers of statistics move
        (STEP, STEP.replace("network.step(", "return ("), NO_STEP),
        (STEP, STEP.replace("network.step(", "(").replace("label))", "label)).backward()"), NO_STEP),
        (
            STEP,
            STEP.replace(LOSS_OF, f"0 * {LOSS_OF}"),
            "changed none of the 6 trainable parameters of Network.model: they have no",
        ),
        # warm-up that begins at 0, and gradients that are gathered for longer than is tried
        (PROGRAM, PROGRAM.replace(")", ", schedule=lambda at: 0.0)"), ""),
        (PROGRAM, PROGRAM.replace(")", ", schedule=lambda share: share)"), ""),
        ("batch=BATCH", "batch=BATCH, accumulate=8", ""),
        # moved by hand
        (
            STEP,
            "    loss_of(network.model, points.values, points.label).backward()\n    with torch.no_grad():\n"
            "        for p in network.model.parameters():\n            p -= 0.1 * p.grad\n            p.grad = None\n",
            "",
        ),
    ],
)
def test_what_f_leaves_untrained_is_odd(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert PERCEPTRON.count(old) >= 1
    (tmp_path / "steps.py").write_text(PERCEPTRON.replace(old, new))
    status, _, err = gridml("steps.py")
    assert status == 0 and err.count("Warning") == bool(said), err
    assert said in err


HEADS = """
from functools import partial
import numpy as np
import torch
import gridml
from torch import nn
SGD = partial(torch.optim.SGD, lr=0.1)

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
    def forward(self, x):
        return self.body(x)

class Network(gridml.Vertex):
    model = gridml.module(Body, SGD)

class Head(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(3, 1), SGD)

class Teacher(gridml.Vertex):
    model = gridml.module(lambda: nn.Linear(3, 1))

class Row(gridml.Vertex):
    x = gridml.array("float32", (3,))
    network = gridml.edge(Network)
    head = gridml.edge(Head)
    teacher = gridml.edge(Teacher)

@gridml.update(batch=4)
def train(rows: gridml.Batch[Row], network: Network, head: Head, teacher: Teacher) -> None:
    loss = (head.model(network.model(rows.x)) - teacher.model(rows.x)).square().mean()
    network.step(loss, head)

def graph():
    g = gridml.Graph()
    vertices = {name: g.add(t) for name, t in (("network", Network), ("head", Head), ("teacher", Teacher))}
    g.add(Row, x=np.ones((16, 3), np.float32), **vertices)
    return g

program = gridml.Program(graph, train)
"""
SPARE = "no loss of f depended on 2 of the 4 trainable parameters of Network.model (spare.bias, spare.weight)"
ALTERNATE = """    if rows.ids[0] % 8:
        network.step(loss)
    else:
        head.step(loss)
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", [SPARE]),
        ("self.body(x)", "self.spare(self.body(x))", []),
        ("self.body(x)", "self.spare(self.body(x)) if self.body.weight.sum() > 99 else self.body(x)", [SPARE]),
        ("step(loss, head)", "step(loss)", [SPARE, "depends on Head.model, but none of its 2 trainable parameters"]),
        ("    network.step(loss, head)\n", ALTERNATE, [SPARE]),  # as the two networks of a GAN
    ],
)
def test_what_a_step_leaves_out_is_odd(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path, old: str, new: str, said: list[str]
) -> None:
    (tmp_path / "heads.py").write_text(HEADS.replace(old, new))
    status, _, err = gridml("heads.py")
    assert status == 0 and err.count("Warning") == len(said), err
    assert all(each in err for each in said)


COUNTED_WORDS = """
import numpy as np
import gridml

class Word(gridml.Vertex):
    count = gridml.array("float64")
    aggregate = gridml.add()

class Topic(gridml.Vertex):
    size = gridml.array("float64")
    aggregate = gridml.add()

class Text(gridml.Vertex):
    words = gridml.edge(Word, weight="float32")
    topic = gridml.edge(Topic)

@gridml.update(batch=4)
def train(texts: gridml.Batch[Text], words: gridml.Batch[Word], topic: Topic) -> None:
    topic.size += len(texts)
    words.count[:] = words.count + 1
    got = texts.words.weight.sum()

def graph():
    g = gridml.Graph()
    g.add(Word, count=np.zeros(5))
    g.add(Topic, size=np.zeros(2))
    words = gridml.csr(np.arange(17), np.arange(16) % 5, np.ones(16, np.float32))
    g.add(Text, words=words, topic=np.arange(16) % TOPICS)
    return g

program = gridml.Program(graph, train)
"""
READ = "got = texts.words.weight.sum()"


@pytest.mark.parametrize("topics", [1, 2])  # f gets the rows themselves, or copies of some
@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize(
    ("write", "odd"),
    [
        (READ, False),
        ("got = texts.words.weight * 2", False),
        ("texts.words.weight[:] = 2", True),
        ("texts.words.weight = texts.words.weight * 2", True),
        ("texts.words.weight *= 2", True),
        ("weight = texts.words.weight; weight[0] = 3", True),
    ],
)
def test_writes_of_f_to_edge_weights_are_reported(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path, topics: int, torch: bool, write: str, odd: bool
) -> None:
    text = COUNTED_WORDS.replace(READ, write).replace("TOPICS", str(topics))
    if torch:
        array = 'size = gridml.array("float64")\n    aggregate = gridml.add()\n\nclass Text'
        module = "model = gridml.module(lambda: torch.nn.Linear(1, 1))\n\nclass Text"
        text = f"import torch{text}".replace(array, module).replace("    topic.size += len(texts)\n", "")
        text = text.replace("Topic, size=np.zeros(2)", "Topic, 2")
    (tmp_path / "weights.py").write_text(text)
    status, _, err = gridml("weights.py")
    assert status == 0, err
    assert ("f wrote the weights of Text.words, which has no effect" in err) is odd, err


def test_files_that_are_hidden_are_named(gridml: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    for name in ("time.py", "master.py", "both.py", "both/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("MINE = 1\n")
    (tmp_path / "imports.py").write_text(f"import time, both, master\nassert master.MINE\n{COUNTS}")
    status, _, err = gridml("imports.py")
    assert status == 0
    assert err.splitlines() == [
        "Warning: time.py next to imports.py is hidden by Python's own module time, which is loaded before any "
        "program, so an import gets that instead: rename it",
        "Warning: both.py next to imports.py is hidden by the package both/ next to it, so an import gets that "
        "instead: rename it",
        "Warning: master next to imports.py has the name of an installed package. Imports in the program get yours; "
        "pickle, spawned processes and imports by a string get the other one: rename it if the program uses any of "
        "these",
    ]


def test_a_rule_of_ones_own_that_only_returns_is_odd(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "rule.py").write_text(PERCEPTRON.replace(NETWORK, f"{NETWORK}\n{G}        return replica\n"))
    status, _, err = gridml("rule.py")
    assert status == 0
    assert "Network.aggregate left its vertex unchanged: it must change self" in err
    kept = f"{NETWORK}\n{G}        self.model.average_with(replica.model, merge.weight)\n"
    (tmp_path / "rule.py").write_text(PERCEPTRON.replace(NETWORK, kept))
    assert "left its vertex unchanged" not in gridml("rule.py")[2]


def test_a_pattern_that_fits_no_tensor_is_odd(gridml: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    assert COUNTS.count(RULE) == 1
    for pattern, is_odd in (("count", True), ("*/count", False)):
        rule = f'aggregate = gridml.by_name({{"{pattern}": gridml.add()}})'
        (tmp_path / "patterns.py").write_text(COUNTS.replace(RULE, rule))
        _, _, err = gridml("patterns.py")
        said = "the pattern 'count' of Word's by_name matches no tensor, so Add(bound=inf) merges nothing. Names are"
        assert (said in err) == is_odd


def test_modules_with_the_name_of_another_package_are_named(
    gridml: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "master.py").write_text("SCALE = 1")
    (tmp_path / "own_helper.py").write_text("SCALE = 1")
    (tmp_path / "names.py").write_text(f"import master, own_helper\n{COUNTS}")
    status, _, err = gridml("names.py")
    assert status == 0
    assert "master next to names.py has the name of an installed package" in err
    assert "own_helper next to" not in err

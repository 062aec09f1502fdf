"""Finding the program in a user's file, and error messages before anything starts."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gridml
from gridml.errors import DataError, ProgramError, UsageError, UserCodeError
from gridml.model.loading import load
from gridml.model.program import Program, user_traceback
from gridml.model.schedule import constant, linear_decay
from gridml.model.update import Update

HEAD = """\
import gridml

class Word(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()

class Text(gridml.Vertex):
    length = gridml.array("int64")
    words = gridml.edge(Word)

@gridml.update(batch=8)
def count(texts: gridml.Batch[Text], words: gridml.Batch[Word]) -> None:
    words.count += 1

def graph() -> gridml.Graph:
    return gridml.Graph()

"""
GOOD = HEAD + "program = gridml.Program(graph, count)\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """A function that writes a user's file; changes of this process by loading it are undone."""
    modules, paths = set(sys.modules), list(sys.path)

    def make(source: str, name: str = "words.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    yield make
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):  # torch, for one, can be imported only once
            del sys.modules[name]
    sys.path[:] = paths


def test_the_one_program_of_a_file_is_found(write: Write) -> None:
    program = load(write(GOOD))
    assert program.shape.driver.__name__ == "Text"
    assert isinstance(program.shape, Update)
    assert [(p.edge, p.type.name, p.is_single) for p in program.shape.parameters] == [("words", "Word", False)]
    assert list(program.types()) == ["Text", "Word"]
    assert (program.uses_torch, program.consistency.is_bsp, program.epochs) == (False, False, 1)


def test_two_names_of_one_program_are_one(write: Write) -> None:
    assert load(write(GOOD + "main = program\n")).update.batch == 8


def test_a_file_may_import_the_modules_beside_it(write: Write) -> None:
    write("LENGTH = 3\n", "beside_words.py")
    load(write("import beside_words\nassert beside_words.LENGTH == 3\n" + GOOD))


def test_string_annotations_are_understood(write: Write) -> None:
    assert load(write("from __future__ import annotations\n" + GOOD)).update.driver.__name__ == "Text"


def test_no_such_file(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "missing.py", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=said):
            load(path)


def test_not_a_python_file(write: Write) -> None:
    with pytest.raises(UsageError, match=r"words\.txt is not a Python file"):
        load(write(GOOD, "words.txt"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HEAD, "exactly one gridml.Program; found none"),
        (GOOD + "other = gridml.Program(graph, count)\n", r"found 2 \(program, other\)"),
        ("import gridml\ndef f(:\n", "SyntaxError"),
        ("import gridml\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("1 / 0\n", r'File ".*words\.py", line 1, in <module>\n *1 / 0'),
    ],
    ids=["none", "two", "syntax", "import", "exit", "error"],
)
def test_files_that_hold_no_runnable_program(write: Write, source: str, message: str) -> None:
    path = write(source)
    with pytest.raises(ProgramError) as caught:
        load(path)
    assert re.search(message, str(caught.value))
    assert str(path) in str(caught.value)
    assert "importlib" not in str(caught.value)  # frames of the user's file only


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("texts, words: gridml.Batch[Word]", "argument texts of f has no annotation"),
        ("texts: gridml.Batch[Text], words", "argument words of f has no annotation"),
        ("*texts", "argument texts of f has no annotation"),
        ("", "f takes no argument"),
        ("texts: int", "argument texts of f is annotated <class 'int'>"),
        ("texts: gridml.Batch[int]", "argument texts of f is annotated"),
        ("texts: 'gridml.Batch[Txet]'", "annotations of f cannot be read: name 'Txet'"),
        ("texts: 'gridml.Btach[Text]'", "annotations of f cannot be read: module 'gridml' has no attribute 'Btach'"),
        ("texts: Text", r"f takes one vertex, so it is declared @gridml\.update"),
        ("words: gridml.Batch[Word]", "first argument of f is Word, which is replicated"),
        ("texts: gridml.Batch[Text], other: gridml.Batch[Text]", "Text has no edge to that type"),
        ("texts: gridml.Batch[Text], network: gridml.Batch[Network]", "Network, which holds modules"),
        ("pairs: gridml.Batch[Pair], word: Word", "several edges to that type; call the argument .* first, second"),
        ("lost: gridml.Batch[Lost]", "leads to 'Nowhere'; no vertex type of that name"),
        ("loose: gridml.Batch[Loose]", r"f can change nothing: .*Loose has no edge.* field of Loose as .*mutable=True"),
        (
            "vans: gridml.Batch[Van], loose: gridml.Batch[Loose]",
            r"Loose has no module and no aggregate\), and Van has no field that is mutable",
        ),
    ],
)
def test_signatures_of_f_that_fit_nothing(write: Write, signature: str, message: str) -> None:
    source = HEAD + textwrap.dedent(f"""
        class Network(gridml.Vertex):
            model = gridml.module(lambda: None)

        class Pair(gridml.Vertex):
            first = gridml.edge(Word)
            second = gridml.edge(Word)

        class Lost(gridml.Vertex):
            nowhere = gridml.edge("Nowhere")

        class Loose(gridml.Vertex):
            size = gridml.array("int64")

        class Van(gridml.Vertex):
            loose = gridml.edge(Loose)

        Text.network = gridml.edge(Network)
        Text.network.__set_name__(Text, "network")

        @gridml.update(batch=8)
        def f({signature}) -> None: ...

        program = gridml.Program(graph, f)
    """)
    with pytest.raises(ProgramError, match=message):
        load(write(source))


def test_one_of_several_edges_is_chosen_by_the_name_of_the_argument(write: Write) -> None:
    source = HEAD + textwrap.dedent("""
        class Pair(gridml.Vertex):
            first = gridml.edge(Word)
            second = gridml.edge(Word)

        @gridml.update
        def f(pair: Pair, second: Word) -> None: ...

        program = gridml.Program(graph, f)
    """)
    (parameter,) = load(write(source)).update.parameters
    assert (parameter.edge, parameter.is_single) == ("second", True)


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("words", "argument words of evaluate has no annotation"),
        ("words: int", "argument words of evaluate is annotated <class 'int'>"),
        ("words: 'Wrod'", "annotations of evaluate cannot be read"),
    ],
)
def test_what_evaluate_asks_for_is_checked_before_the_first_epoch(write: Write, signature: str, message: str) -> None:
    source = HEAD + f"def evaluate({signature}): return {{}}\nprogram = gridml.Program(graph, count, evaluate)\n"
    with pytest.raises(ProgramError, match=message):
        load(write(source))


@gridml.update
def nothing() -> None: ...


def graph() -> gridml.Graph:
    return gridml.Graph()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update": lambda: None}, r"as its update; expected gridml\.Program\(graph, train\), with @gridml\.update"),
        ({"graph": gridml.Graph()}, "as its graph; expected the function, without calling it"),
        ({"evaluate": {}}, "as its evaluate; expected the function"),
        ({"epochs": 0}, "epochs=0; expected at least 1"),
        ({"shuffle": "blocks"}, "shuffle='blocks'; expected one of"),
        ({"overlap": None}, "overlap=None; expected True, or False for epochs that open in turn"),
        ({"placement": None}, "placement=None; expected 'auto', 'none' or a method's name"),
    ],
)
def test_programs_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        Program(**{"graph": graph, "update": nothing, **arguments})


@pytest.mark.parametrize("sizes", [{}, {"batch": 0}, {"batch": 8, "min_batch": 9}, {"batch": 8, "min_batch": 0}])
def test_batch_sizes_that_make_no_sense(sizes: dict[str, int]) -> None:
    with pytest.raises(ProgramError, match="expected 1 <= min_batch <= batch"):
        gridml.update(**sizes)  # type: ignore[call-overload]


def test_learning_rates_are_scaled_or_fixed() -> None:
    with pytest.raises(ProgramError, match="rate='kept'; expected 'scaled' or 'fixed'"):
        gridml.update(batch=8, rate="kept")


@pytest.mark.parametrize(
    ("made", "expected"),
    [("nn.Linear(1, 1)", 8), ("nn.Linear(1, 1), SGD", 2), ("nn.Sequential(nn.BatchNorm1d(1)), SGD", 8)],
)
def test_batches_are_shared_only_where_that_does_no_harm(write: Write, made: str, expected: int) -> None:
    """Batches are not reduced for an f that moves vertices by its own rate, because smaller batches would move them
    further, and the variance of a small batch may be zero."""
    declared = textwrap.dedent(
        f"""\
        from torch import nn
        from torch.optim import SGD

        class Net(gridml.Vertex):
            layer = gridml.module(lambda: {made})

        class Row(gridml.Vertex):
            value = gridml.array("float32")
            net = gridml.edge(Net)

        @gridml.update(batch=8, min_batch=2)
        def train(rows: gridml.Batch[Row], net: Net) -> None: ...

        program = gridml.Program(graph, train)
        """
    )
    program = load(write(HEAD + declared))
    assert program.min_target_batch == expected
    assert program.min_actual_batch == 2, "as it says"
    alone = load(write(HEAD + declared.replace("batch=8, min_batch=2", "batch=8")))
    assert alone.min_actual_batch == (2 if "BatchNorm" in made else 1), "of a single row it has no statistics"
    assert load(write(GOOD)).min_target_batch == 8


def test_an_update_can_still_be_called() -> None:
    called = []
    gridml.update(batch=2)(called.append)(3)
    assert called == [3]


def test_the_default_schedule_falls_at_the_end() -> None:
    assert [linear_decay(share) for share in (0.0, 0.6, 1.0)] == [1.0, 1.0, 0.0]
    assert linear_decay(0.8) == pytest.approx(0.5)
    assert constant(0.9) == 1.0


# --- graph()


def built(make: Callable[[], Any]) -> gridml.Graph:
    return Program(make, nothing).build(Path(__file__))


def test_a_graph_is_built_and_checked() -> None:
    class Hub(gridml.Vertex):
        total = gridml.array("float64")
        aggregate = gridml.add()

    class Node(gridml.Vertex):
        hub = gridml.edge(Hub)

    def make(hub: int) -> gridml.Graph:
        g = gridml.Graph()
        g.add(Hub, total=[0.0])
        g.add(Node, hub=[hub])
        return g

    assert built(lambda: make(0)).tables["Node"].count == 1
    with pytest.raises(ProgramError, match="Hub 1, but there are 1"):
        built(lambda: make(1))


def test_a_graph_function_that_returns_something_else() -> None:
    with pytest.raises(ProgramError, match=r"graph returned NoneType; expected the gridml\.Graph"):
        built(lambda: None)


def test_a_graph_function_that_fails_shows_the_users_traceback() -> None:
    def make() -> gridml.Graph:
        raise KeyError("digits")

    with pytest.raises(UserCodeError, match="graph failed: KeyError: 'digits'") as caught:
        built(make)
    assert 'raise KeyError("digits")' in caught.value.traceback_text
    assert "in build" not in caught.value.traceback_text


def test_errors_for_a_person_pass_through() -> None:
    def make() -> gridml.Graph:
        raise DataError("no mirror can be reached")

    with pytest.raises(DataError, match="no mirror"):
        built(make)


# --- tracebacks


def test_a_traceback_begins_in_the_users_file(write: Write) -> None:
    path = write("def f(x):\n    return inner(x)\n\ndef inner(x):\n    return [][x]\n")
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)

    def engine(x: int) -> None:
        scope["f"](x)

    with pytest.raises(IndexError) as caught:
        engine(3)
    lines = user_traceback(caught.value, path).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].strip() == f'File "{path}", line 2, in f'
    assert lines[-1] == "IndexError: list index out of range"
    assert not any("engine" in line for line in lines)


def test_an_error_outside_of_the_users_code_is_reported_without_frames(write: Write) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    assert user_traceback(caught.value, write("")) == "ZeroDivisionError: division by zero"


def test_a_scheduler_of_torchs_that_cannot_be_made_is_refused_before_a_run(write: Write) -> None:
    declared = textwrap.dedent(
        """\
        from torch import nn
        from torch.optim import SGD
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        class Net(gridml.Vertex):
            layer = gridml.module(lambda: nn.Linear(1, 1), lambda parameters: SGD(parameters, lr=0.1))

        class Row(gridml.Vertex):
            net = gridml.edge(Net)

        @gridml.update(batch=8)
        def train(rows: gridml.Batch[Row], net: Net, at: gridml.Progress) -> None: ...

        program = gridml.Program(graph, train, schedule=gridml.torch_schedule(ReduceLROnPlateau))
        """
    )
    with pytest.raises(ProgramError, match="follows a metric"):
        load(write(HEAD + declared))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("at: gridml.Progress, rows: gridml.Batch[Text]", "takes a gridml.Progress first"),
        (
            "rows: gridml.Batch[Text], at: gridml.Progress, then: gridml.Progress",
            "takes 2 arguments of gridml.Progress",
        ),
    ],
    ids=["first", "twice"],
)
def test_f_takes_one_progress_after_its_vertices(write: Write, arguments: str, said: str) -> None:
    source = f"@gridml.update(batch=8)\ndef f({arguments}) -> None: ...\n\nprogram = gridml.Program(graph, f)\n"
    with pytest.raises(ProgramError, match=said):
        load(write(HEAD + source))

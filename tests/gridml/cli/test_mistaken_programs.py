"""Invalid programs: detectable mistakes are rejected before the run starts, with a message about the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "programs"
COUNTS, PERCEPTRON = ((PROGRAMS / name).read_text() for name in ("counts.py", "perceptron.py"))
FIELD = 'count = gridml.array("int64")'
EDGE = "words = gridml.edge(Word)"
RULE = "aggregate = gridml.add()"
UPDATE = "@gridml.update(batch=10)"
F = "def train(documents: gridml.Batch[Document], words: gridml.Batch[Word]) -> None:"
TRAINS = "    documents.visits += 1\n"
GRAPH = "def graph() -> gridml.Graph:\n"
COLUMN = "visits=np.zeros(COUNT, np.int64)"
LINKS = "words=links()"
WORDS = "count=np.zeros(WORDS, np.int64)"
RETURNS = 'return {"counted": int(words.count.sum()), "least_visits": int(documents.visits.min())}'
EVALUATE = "documents: gridml.Batch[Document]) -> dict[str, float]:"
PROGRAM = "gridml.Program(graph, train, evaluate, epochs=EPOCHS)"
IMPORT = "import numpy as np\n"

DECLARED = [  # (text in the program, its replacement, text of the message)
    (FIELD, "count = gridml.array(object)", "gridml.array got dtype object; expected bool, an integer"),
    (FIELD, "count = gridml.array('bogus')", "got 'bogus' for a dtype"),
    (FIELD, "count = gridml.array(None)", "got None for a dtype"),
    (FIELD, "count = gridml.array(5)", "got 5 for a dtype"),
    (FIELD, "count = gridml.array(complex)", "got dtype complex128"),
    (FIELD, "count = gridml.array('int64', (-1,))", "got shape (-1,); expected whole numbers from 1"),
    (FIELD, "count = gridml.array('int64', 5)", "got shape 5; expected whole numbers from 1"),
    (FIELD, "count = gridml.array('int64', None)", "got shape None"),
    (FIELD, "count = gridml.array('int64', (1.5,))", "got shape (1.5,)"),
    (EDGE, "words = gridml.edge('Nope')", "Document.words leads to 'Nope'"),
    (EDGE, "words = gridml.edge(5)", "gridml.edge got 5; expected the vertex type"),
    (EDGE, "words = gridml.edge(int)", "gridml.edge got <class 'int'>"),
    (EDGE, "words = gridml.edge(Word, weight=object)", "gridml.edge got weight object"),
    (RULE, "aggregate = 5", "Word.aggregate is 5; expected a rule"),
    (RULE, "aggregate = gridml.add", "expected a rule such as"),
    (RULE, "def aggregate(self): pass", "Word.aggregate takes (self), which is not 3 arguments"),
    (RULE, "def aggregate(self, replica, merge): yield", "is a generator or a coroutine"),
    (RULE, "aggregate = gridml.by_name({'*': 5})", "by_name got 5 for pattern '*'"),
    (UPDATE, f"Word.__name__ = '../../etc/x'\n{UPDATE}", "'../../etc/x'; expected an identifier of at most 100 bytes"),
    (UPDATE, f"Document.__name__ = 'a\\x1b[31m'\n{UPDATE}", r"'a\x1b[31m'; expected an identifier"),
    ("visits", "v" * 300, "expected an identifier of at most 100 bytes"),
    ("Document", "D" * 300, "expected an identifier of at most 100 bytes"),
    *(
        (UPDATE, f"@gridml.update(batch={batch})", f"update got batch={batch}, min_batch=1; expected 1 <= min_batch")
        for batch in ("0", "-1", "1.5", "'x'", "True", "nan")
    ),
    (UPDATE, "@gridml.update(batch=10**30)", "<= 1,000,000,000, whole numbers"),
    (UPDATE, "@gridml.update(batch=10, min_batch=1.5)", "min_batch=1.5; expected"),
    (F, "async " + F, "train is a generator or a coroutine, so a call would do nothing"),
    (TRAINS, TRAINS + "    yield\n", "train is a generator or a coroutine, so a call would do nothing"),
    (F, F.replace("(", "(*", 1).replace(", words: gridml.Batch[Word]", ""), "expected arguments by position"),
    (F, F.replace("(", "(*, ", 1), "expected arguments by position"),
    (F, "def train() -> None:", "train takes no argument"),
    (F, F.replace(")", ", x: int = 3)", 1), "argument x of train is annotated <class 'int'>"),
    (F, F.replace("documents: gridml.Batch[Document]", "documents: 'Nope'"), "the annotations of train cannot be read"),
    (PROGRAM, PROGRAM.replace("train", "gridml.update(5)"), "the annotations of update cannot be read"),
    (PROGRAM, PROGRAM.replace("train", "lambda x: 1"), "with @gridml.update(batch=64) above train"),
    *(
        (PROGRAM, PROGRAM.replace("EPOCHS", epochs), f"Program got epochs={epochs}; expected at least 1")
        for epochs in ("0", "-1", "1.5", "'3'", "None", "True")
    ),
    (PROGRAM, PROGRAM.replace("EPOCHS", "10**30"), "expected at most 1,000,000,000"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, schedule=5"), "Program got 5 as its schedule; expected the function"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, schedule=lambda s: 1 / 0"), "schedule(0.0) failed: ZeroDivisionError"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, schedule=lambda s: None"), "schedule(0.0) failed: TypeError"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, schedule=lambda s: float('nan')"), "schedule(0.0) returned nan"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, schedule=lambda s: -s"), "schedule(0.5) returned -0.5"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, placement=5"), "Program got placement=5; expected 'auto', 'none' or"),
    (PROGRAM, PROGRAM.replace("EPOCHS", "1, placement='best'"), "is 'best'; expected none, or one of random"),
    (PROGRAM, PROGRAM.replace("evaluate", "5"), "Program got 5 as its evaluate"),
    (PROGRAM, PROGRAM.replace("graph,", "graph(),"), "as its graph; expected the function, without calling it"),
    (EVALUATE, EVALUATE.replace("gridml.Batch[Document]", "int"), "argument documents of evaluate is annotated"),
    (COLUMN, "visits=None", "Document.visits got NoneType, which is no array; expected (count,)"),
    (COLUMN, "visits={1, 2}", "got set, which is no array"),
    (COLUMN, "visits=[[1], [2, 3]]", "Document.visits got list, expected an array: ValueError"),
    (COLUMN, "visits=np.zeros(COUNT, object)", "got dtype object; declared is int64"),
    (COLUMN, "visits=np.full(COUNT, np.nan)", "got dtype float64; declared is int64"),
    (COLUMN, "visits=np.ma.masked_array(np.zeros(COUNT, int), True)", "got a masked array, whose mask would be lost"),
    (COLUMN, "visits=np.full(COUNT, 2**63, np.uint64)", "which int64 cannot hold"),
    (COLUMN, "visits=np.zeros((COUNT, 2), int)", "got an array of shape (3000, 2); expected (count,)"),
    (LINKS, "words=-links() - 1", "has an edge to Word -50, but there are 50 Word vertices (0 to 49)"),
    (LINKS, "words=links() + 2**62", "has an edge to Word 46116860184273879"),
    (LINKS, "words=links().astype(float)", "got float64 targets of shape (3000, 4); expected integers"),
    (LINKS, "words=None", "got object targets of shape (); expected integers"),
    (LINKS, "words=[[1], [2, 3]]", "Document.words got list, expected an array"),
    (LINKS, "words=gridml.csr('x', 'y')", "csr got <U1 offsets"),
    (LINKS, "words=gridml.csr(None, None)", "csr got object offsets"),
    (LINKS, "words=gridml.csr([1, 0], [0])", "offsets that do not describe 1 targets"),
    (WORDS, "count=np.zeros(0, np.int64)", "but there are 0 Word vertices. Add the missing vertices"),
    ("g.add(Document,", "g.add(int,", "graph.add got <class 'int'>; expected a vertex type"),
    ("g.add(Document,", "g.add(5,", "graph.add got 5; expected a vertex type"),
    ("g.add(Document,", "g.add(Document, 'x',", "got count=str; expected a whole number"),
    ("g.add(Document,", "g.add(Document, 1.5,", "got count=1.5; expected a whole number"),
    ("    return g\n", "    return None\n", "graph returned NoneType; expected the gridml.Graph"),
    (IMPORT, IMPORT + "import sys; sys.exit(0)\n", "cannot be loaded"),
    (IMPORT, IMPORT + "raise GeneratorExit\n", "cannot be loaded"),
    (IMPORT, IMPORT + "x = " + "(" * 100_000 + ")" * 100_000 + "\n", "too many nested parentheses"),
    (IMPORT, "\0" + IMPORT, "null bytes"),
    (IMPORT, IMPORT + "raise ValueError('\\x1b[31m' + chr(0xdcff))\n", r"ValueError: \x1b[31m\udcff"),
]


def write(text: str, old: str, new: str) -> None:
    assert old in text
    Path("program.py").write_text(text.replace(old, new))


@pytest.mark.parametrize(("old", "new", "said"), DECLARED)
def test_what_makes_no_sense_is_refused(mistake: Callable[..., str], old: str, new: str, said: str) -> None:
    write(COUNTS.replace("import gridml\n", "from math import nan\n\nimport gridml\n", 1), old, new)
    mistake(["run", "program.py", "--run-dir", "r"], 3, said)
    assert not Path("r").exists()


def test_what_begins_without_being_finite_is_refused(mistake: Callable[..., str]) -> None:
    """If such an initial value were accepted, every push of it would be refused."""
    text = COUNTS.replace(FIELD, FIELD.replace("int64", "float64"))
    write(text, WORDS, "count=np.full(WORDS, np.nan)")
    mistake(["run", "program.py", "--run-dir", "r"], 3, "Word/count begins with NaN or infinity")


def test_a_graph_with_nothing_to_train(mistake: Callable[..., str]) -> None:
    write(COUNTS, "COUNT, WORDS, EPOCHS = 3000", "COUNT, WORDS, EPOCHS = 0")
    mistake(["run", "program.py", "--run-dir", "r"], 3, "the graph has no Document vertices; f has nothing to run on")


def test_evaluate_wants_vertices_that_are_not_there(mistake: Callable[..., str]) -> None:
    other = 'class Other(gridml.Vertex):\n    a = gridml.array("int64")\n\n\ndef evaluate('
    write(COUNTS.replace("def evaluate(", other), EVALUATE, EVALUATE.replace(")", ", more: gridml.Batch[Other])", 1))
    mistake(["run", "program.py", "--run-dir", "r"], 3, "evaluate is Other, but the graph has no such vertices")


ENDING = ["raise BaseException('x')", "raise KeyboardInterrupt", "import sys; sys.exit(0)", "raise GeneratorExit('x')"]


@pytest.mark.parametrize("line", ENDING)
def test_a_program_that_ends_where_it_is_imported(mistake: Callable[..., str], line: str) -> None:
    write(COUNTS, IMPORT, f"{IMPORT}{line}\n")
    error = mistake(["run", "program.py", "--run-dir", "r"], 3, "program.py cannot be loaded", line)
    assert error.count("Traceback (most recent call last)") == 1 and not Path("r").exists()


@pytest.mark.parametrize(
    ("line", "command"),
    [
        # The error of an environment without torch; here it is installed.
        ("raise ModuleNotFoundError('No module named', name='torch')", "pip install torch; workers"),
        ("import no_such.part", "pip install no_such, if it is called that"),
    ],
)
def test_a_package_that_is_not_installed(mistake: Callable[..., str], line: str, command: str) -> None:
    write(COUNTS, IMPORT, f"{IMPORT}{line}\n")
    mistake(["run", "program.py", "--run-dir", "r"], 3, "program.py cannot be loaded", line, command)
    assert not Path("r").exists()


FAILING = [
    (GRAPH, GRAPH + "    raise BaseException('x')\n", "graph failed: BaseException: x"),
    (GRAPH, GRAPH + "    raise KeyboardInterrupt\n", "graph failed: KeyboardInterrupt"),
    (GRAPH, GRAPH + "    import sys; sys.exit(0)\n", "graph failed: SystemExit: 0"),
    (GRAPH, GRAPH + "    raise ValueError('\\x1b[31m' + chr(0xdcff))\n", r"graph failed: ValueError: \x1b[31m\udcff"),
    (GRAPH, GRAPH + "    raise ValueError('x' * 30_000_000)\n", "characters left out"),
]


@pytest.mark.parametrize(("old", "new", "said"), FAILING)
def test_a_graph_that_fails(mistake: Callable[..., str], old: str, new: str, said: str) -> None:
    write(COUNTS, old, new)
    mistake(["run", "program.py", "--run-dir", "r"], 4, said)


MODULES = [
    ("gridml.module(lambda: None)", 3, "made a NoneType; expected a torch.nn.Module"),
    ("gridml.module(lambda: 1 / 0)", 4, "the factory of Network.model failed: ZeroDivisionError"),
    ("gridml.module(lambda: __import__('sys').exit(0))", 4, "the factory of Network.model failed: SystemExit: 0"),
    ("gridml.module(lambda: torch.nn.Linear(2, 2), 5)", 3, "gridml.module got int as its optimiser"),
    ("gridml.module(lambda: torch.nn.Linear(2, 2), lambda p: None)", 3, "got None as its optimiser"),
    (
        "gridml.module(lambda: torch.nn.ParameterList([torch.full((2,), float('nan'))]))",
        3,
        "begins with NaN or infinity",
    ),
]


@pytest.mark.parametrize(("made", "status", "said"), MODULES)
def test_a_module_that_cannot_be_made(mistake: Callable[..., str], made: str, status: int, said: str) -> None:
    line = next(line for line in PERCEPTRON.splitlines() if "gridml.module(" in line)
    write(PERCEPTRON, line, f"    model = {made}")
    mistake(["run", "program.py", "--run-dir", "r"], status, said)

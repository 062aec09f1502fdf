"""Mistakes in programs of stages: `gridml check` has one message for each, which says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.errors import GridmlError, NotFiniteError, ProgramError, UserCodeError
from master.planning.trial import try_out

PROGRAMS = Path(__file__).parents[2] / "programs"
FACTORS, TOPICS = "factors.py", "topics.py"
CYCLE = [
    ("class User(", 'class Group(gridml.Vertex):\n    members = gridml.edge("User")\n\n\nclass User('),
    ("    rated = gridml.edge(", "    groups = gridml.edge(Group)\n    rated = gridml.edge("),
    ("    g.add(User, ", "    g.add(Group, 3, members=np.arange(3))\n    g.add(User, groups=np.zeros(USERS, int), "),
]
NO_TEXTS = ("csr(offsets, word, topic=topic, visits=visits)", "csr(0 * offsets, [], topic=0, visits=0)")
TOLD = (
    "    for k in range(TOPICS):\n        word.share",
    "    at.drawn += 1\n    for k in range(TOPICS):\n        word.share",
)
MEAN = ("    aggregate = gridml.stale_mean()\n", "    aggregate = gridml.stale_mean()\n    by = gridml.edge('User')\n")
LOCAL = [
    ("    aggregate = gridml.stale_mean()\n", ""),
    ('q = gridml.array("float32", (RANK,))', 'q = gridml.array("float32", (RANK,), mutable=True)'),
]
VISITS = 'visits=gridml.array("int32", mutable=True)'
Edits = list[tuple[str, str]]

WRONG: dict[str, tuple[str, Edits, type[GridmlError], str]] = {
    "a type that is not in the file": (
        FACTORS, [("over=User", "over=Usr")], ProgramError,
        "program.py\", line 36, in <module>\n .*'Usr' is not defined"),
    "an edge to a type that is not in the file": (
        FACTORS, [("gridml.edge(Item", 'gridml.edge("Itm"')], ProgramError,
        "User.rated leads to 'Itm'; no vertex type of that name is in the file"),
    "a type that is not in the graph": (
        FACTORS, [("    g.add(Item", "    0 and g.add(Item")], ProgramError,
        r"User.rated leads to Item, but no Item vertices were added. Add them with graph.add\(Item"),
    "a context that is not in the graph": (
        FACTORS, [("    g.add(Shared", "    0 and g.add(Shared")], ProgramError,
        "the graph has 0 Shared vertices, and a stage takes Shared as its context; expected one"),
    "a cycle of types": (FACTORS, CYCLE, ProgramError, r"User and Group lead to each other \(User.groups, and back"),
    "a cycle through a replicated type": (
        FACTORS, [MEAN], ProgramError, r"Item is replicated and has edges \(by\); edges start at local vertices"),
    "a call that cannot be compiled": (
        FACTORS, [("user.visits += 1", "print(user.visits)")], ProgramError, "program.py:48: print is not compiled; a"),
    "negative slack": (FACTORS, [("size=16", "size=16, slack=-1")], ProgramError, "MiniBatch got slack=-1; expected"),
    "a rating that is NaN": (
        FACTORS, [("    rated = gridml.csr(", "    rating[0, 0] = np.nan\n    rated = gridml.csr(")], NotFiniteError,
        "Item.q is not finite .* User.rated has NaN or infinity as the weight of 1 of 4,800 edges, first of edge 0"),
    "an empty vocabulary": (
        TOPICS, [("count=count)\n", "count=count[:0])\n"), NO_TEXTS], ProgramError,
        "the graph has no Word vertices, and Text needs some: an empty vocabulary"),
    "words beyond the vocabulary": (
        TOPICS, [("count=count)\n", "count=count[:0])\n")], ProgramError,
        "Text.words has an edge to Word 48, but there are 0 Word vertices"),
    "no vertices to look at": (
        TOPICS, [("csr(offsets, word, topic=topic, visits=visits)", "csr([0], [], topic=0, visits=0)")], ProgramError,
        "the graph has no Text vertices; f has nothing to run on"),
    "an accumulator that an apply writes": (
        TOPICS, [TOLD], ProgramError, "program.py:30: at.drawn is an accumulator"),
    "an accumulator that an exchange reads": (
        FACTORS, [("user.visits += 1", "user.p[0] = at.loss")], ProgramError,
        "at.loss was read before the pass has ended"),
    "a local field of another vertex": (
        FACTORS, LOCAL, ProgramError,
        "learn looks at edges from User to Item, which is local, too; expected edges to a replicated type"),
    "a local field that is not mutable": (
        FACTORS, [('p = gridml.array("float32", (RANK,), mutable=True)', 'p = gridml.array("float32", (RANK,))')],
        ProgramError, r"program.py:46: user.p was written; declare p = gridml.array\('float32', \(8,\), mutable=True"),
    "a shape that a stage changes": (
        FACTORS, [("user.visits += 1", "user.visits = user.p")], ProgramError,
        r"program.py:48: user.p is an array of shape \(8,\); use its elements, user.p\[i\]"),
    "a shape that a global_sync changes": (
        FACTORS, [("shared.rate *= 0.95", "shared.rate = np.ones(3)")], UserCodeError,
        r"cool failed after a pass: .* Shared.rate got ndarray of shape \(3,\); declared is float32 of shape \(\)"),
    "a shape that graph() changes": (
        FACTORS, [("(0, 0.3, (USERS, RANK))", "(0, 0.3, (USERS, 3))")], ProgramError,
        r"User.p got an array of shape \(240, 3\); expected \(count, 8\) as declared"),
    "an index out of range": (
        FACTORS, [("user.visits += 1", "user.visits += int(user.p[RANK])")], UserCodeError,
        "f failed on User 0 to 15: IndexError: index 8 is out of bounds"),
    "a rate that is infinite": (
        FACTORS, [("rate=0.05", "rate=np.inf")], ProgramError, "Shared/rate begins with NaN or infinity"),
}  # fmt: skip


def write(tmp_path: Path, program: str, edits: Edits) -> Path:
    text = (PROGRAMS / program).read_text()
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "program.py").write_text(text)
    return tmp_path / "program.py"


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_has_one_message(tmp_path: Path, name: str) -> None:
    program, edits, error, said = WRONG[name]
    with pytest.raises(error, match=rf"(?s){said}"):
        try_out(write(tmp_path, program, edits))


def test_a_rating_that_is_nan_is_told_wherever_it_is(tmp_path: Path) -> None:
    last = [("    rated = gridml.csr(", "    rating[-1, -1] = np.nan\n    rated = gridml.csr(")]
    (said,) = try_out(write(tmp_path, FACTORS, last)).odd
    assert said.startswith("User.rated has NaN or infinity as the weight of 1 of 4,800 edges, first of edge 4,799")


def test_a_field_of_edges_that_is_nan_is_told(tmp_path: Path) -> None:
    edits = [
        (VISITS, f'{VISITS}, x=gridml.array("float32")'),
        ("visits=visits)", "visits=visits, x=np.where(np.arange(len(word)) == 7, np.inf, 0))"),
    ]
    (said,) = try_out(write(tmp_path, TOPICS, edits)).odd
    assert said.startswith("Text.words has NaN or infinity as x of 1 of 1,789 edges, first of edge 7")

"""Mistakes in programs of stages: `gridml check` has one message for each, which says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.errors import GridmlError, NotFiniteError, ProgramError, UserCodeError
from master.planning.trial import try_out

PROGRAMS = Path(__file__).parents[2] / "programs"
FACTORS, TOPICS = "factors.py", "topics.py"
PHASES, RANKS, BLOCKS, HUBS = "phases.py", "ranks.py", "blocks.py", "hubs.py"
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
NO_SUMS = [
    ("size=30", "size=30, slack=float('inf')"),
    ("[slope, move, carry]", "[carry]"),
    ("    g, u = gridml.accumulator(\"float64\"), gridml.accumulator(\"float64\")\n", ""),
    ("    feature.g -= sample.label * tau * x.weight\n", ""),
    ("    feature.u += min(tau * (1 - tau) * exp(abs(x.weight) * feature.reach), 0.25) * x.weight**2\n", "    pass\n"),
    ("g, w, u = feature.g, feature.w, feature.u / ETA + 1e-10", "g, w, u = 0.0, feature.w, 1.0"),
]  # fmt: skip
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
    "a field at the end of an edge between local vertices": (
        RANKS, [("    linked.visits += 1\n", "    linked.below = page.rank\n")], ProgramError,
        r"program.py:\d+: linked.below was written at the end of an edge; declare a gridml.accumulator, and"),
    "a field where an edge between local vertices starts": (
        RANKS, [("    linked.visits += 1\n", "    page.below = 0.0\n")], ProgramError,
        r"page.below was written, a field of the vertex at which an edge starts, .* take the edges as gridml.Links"),
    "an accumulator where an edge between local vertices starts": (
        RANKS, [("    linked.visits += 1\n", "    page.visits += 1\n")], ProgramError,
        r"page.visits is an accumulator of the vertex at which an edge starts, and send is computed at its end"),
    "an accumulator of a local vertex that its stage reads": (
        RANKS, [("linked.visits += 1", "linked.visits += 1 if linked.flow > 0.0 else 0")], ProgramError,
        r"linked.flow was read before the tick has ended; a gridml.apply\(Page\) reads accumulators"),
    "a minimum that is added to": (
        RANKS, [("    linked.visits += 1\n", "    linked.least += 1.0\n")], ProgramError,
        r"linked.least is an accumulator, and is written as another; write linked.least = min\(linked.least, x\)"),
    "local vertices that are linked, with slack": (
        RANKS, [("parts=4, exact", "slack=2, parts=4, exact")], ProgramError,
        "MiniBatch got slack=2, and Page vertices are linked with one another: they read what the last pass left"),
    "sums of local vertices that are read in the next phase": (
        RANKS, [("[send, settle, enough]", "[send, enough, settle]")], ProgramError,
        "settle reads Page.flow, Page.least, Page.visits, and nothing has added to it since all parts waited"),
    "a field of edges that changes, read at their ends": (
        HUBS, [("send(page: Page, linked: Page)", "send(page: Page, linked: Page, link: gridml.Link)"),
               ("linked.praise += page.hub", "linked.praise += page.hub * link.seen")], ProgramError,
        r"link.seen changes, and send walks edges from their ends, .* take the edges as gridml.Links\[Page\]"),
    "local vertices that are linked, in phases of mini-batches": (
        HUBS, [("parts=4", "parts=4, size=20")], ProgramError,
        "MiniBatch got size=20, and add_up, at which all parts wait, with Page vertices that are linked"),
    "random numbers along edges between local vertices": (
        RANKS, [("    linked.visits += 1\n", "    linked.flow += gridml.uniform()\n")], ProgramError,
        r"gridml.uniform\(\) is drawn along edges that are walked from their ends; .* over Page with gridml.Links"),
    "a global_sync that returns a number": (
        RANKS, [("return bool(shared.moved < ENOUGH)", "return shared.passes")], UserCodeError,
        "enough returned .*; a global_sync changes the context, and returns nothing, or True to end the run"),
    "mini-batches of a replicated type by edges": (
        BLOCKS, [("size=30", "edges=30")], ProgramError,
        "MiniBatch got edges=30, and slope looks at Feature, which is replicated; expected size=, how many of them"),
    "mini-batches of a replicated type that wait for nothing": (
        BLOCKS, NO_SUMS, ProgramError,
        "MiniBatch got slack=inf, and carry looks at Feature, of which all parts take the same ones"),
    "a stage that is owned by the master alone": (
        BLOCKS, [("    feature.g -= sample.label", "    feature.w -= sample.label")], ProgramError,
        r"feature.w is owned by the master; change it in a gridml.apply\(Feature\)"),
    "exchanges over two types": (
        BLOCKS, [('@gridml.exchange(over=Feature, when="stride")', "@gridml.exchange(over=Sample)")], ProgramError,
        "the exchanges of a MiniBatch look at Feature, Sample; expected one type, over= of them all"),
    "an accumulator that the first phase reads": (
        PHASES, [("    feature.samples += 1\n", "    feature.samples += int(feature.slope)\n")], ProgramError,
        r"feature.slope was read before the tick has ended; a gridml.apply\(Feature\) reads accumulators"),
    "an accumulator that no apply reads": (
        PHASES, [("[score, slope, aim, bend, move, look]", "[score, slope, bend, look]")], ProgramError,
        r"Feature.slope is an accumulator that nothing reads; expected a stage under @gridml.apply\(Feature\)"),
    "a local stage after the pass": (
        PHASES, [("exact=True), count]", "exact=True), gridml.apply(Sample)(aim.function)]")], ProgramError,
        "aim is applied to Sample"),
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

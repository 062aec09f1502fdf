"""`gridml.compute` ends as a run of one worker does, bit for bit, and is not wrong in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gridml
from gridml.api.computing import ComputedPass
from gridml.engine import stage_jobs
from gridml.engine.stage_runner import stages_of
from gridml.errors import NotFiniteError, ProgramError, UnguardedError, UsageError, UserCodeError
from gridml.model.loading import load as load_program
from gridml.model.phases import Stages
from tests.support.stage_programs import module_in

PROGRAMS = Path(__file__).parents[2] / "programs"


def written(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Write a program of the tests with changes to its text."""
    text = (PROGRAMS / f"{name}.py").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["ranks", "hubs", "phases", "slopes", "blocks", "factors", "topics"])
def test_it_ends_with_the_bits_of_a_run_of_one_worker_on_one_part(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, name, *([("parts=4", "parts=1")] * (name not in ("factors", "topics"))))
    run = gridml.simulate(file, workers=1, cost="t_x=0.01,t_s=1,push=0.1", run_dir=tmp_path / "run", seed=3)
    expected, found = gridml.load(run), gridml.compute(file, seed=3, threads=1)
    assert found.arrays.keys() == expected.keys()
    for field, values in expected.items():
        assert found.arrays[field].dtype == values.dtype
        assert found.arrays[field].tobytes() == values.tobytes(), field
    assert found.metrics == {k: v for k, v in run.metrics()[-1].items() if k != "epoch"}
    assert found.passes == run.metrics()[-1]["epoch"]


def test_one_number_stands_for_all_weights(tmp_path: Path) -> None:
    text = """
import numpy as np
import gridml
class Node(gridml.Vertex):
    total = gridml.array("float32")
    aggregate = gridml.add()
class Row(gridml.Vertex):
    seen = gridml.array("float32", mutable=True)
    nodes = gridml.edge(Node, weight="float32", times=gridml.array("float32", mutable=True))
@gridml.exchange(over=Row)
def step(row: Row, node: Node, link: gridml.Link) -> None:
    link.times += 1.0
    row.seen += link.weight * link.times
def graph() -> gridml.Graph:
    g = gridml.Graph()
    g.add(Node, 3, total=0)
    g.add(Row, seen=0, nodes=gridml.csr([0, 2, 3], [0, 1, 2], WEIGHT, times=TIMES))
    return g
program = gridml.Program(graph, [gridml.MiniBatch([step], size=1)], epochs=2, shuffle="none")
"""
    found = []
    for name, weight, times in (("numbers", "2", "1"), ("arrays", "np.full(3, 2)", "np.ones(3)")):
        (tmp_path / f"{name}.py").write_text(text.replace("WEIGHT", weight).replace("TIMES", times))
        found.append(gridml.compute(tmp_path / f"{name}.py").arrays)
    assert found[0]["Row.seen"].tolist() == found[1]["Row.seen"].tolist() == [20, 10]
    assert found[0]["Row.nodes.times"].tolist() == found[1]["Row.nodes.times"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("name", ["ranks", "hubs", "phases", "blocks"])
def test_parts_go_in_step_up_to_the_rounding_of_sums(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, name)
    run = gridml.simulate(file, workers=2, cost="t_x=0.01,t_s=1,push=0.1", run_dir=tmp_path / "run")
    found = gridml.compute(file)
    for field, values in gridml.load(run).items():
        np.testing.assert_allclose(found.arrays[field], values, atol=1e-12)


def test_it_says_what_ended_it_and_what_a_pass_summed(tmp_path: Path) -> None:
    passes: list[ComputedPass] = []
    found = gridml.compute(PROGRAMS / "ranks.py", progress=passes.append)
    module = module_in(PROGRAMS / "ranks.py")
    assert (found.ended_by, found.passes) == ("enough", len(passes))
    assert [each.number for each in passes] == list(range(1, found.passes + 1))
    assert passes[-1].totals["Shared.moved"] < module.ENOUGH < passes[-2].totals["Shared.moved"]
    assert found.totals == passes[-1].totals
    assert found.arrays["Shared.passes"] == [found.passes]
    short = gridml.compute(PROGRAMS / "ranks.py", epochs=3)
    assert (short.ended_by, short.passes) == (None, 3)


def test_threads_do_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_jobs, "MIN_RUN_EDGES", 1 << 6)
    monkeypatch.setattr(stage_jobs, "MIN_RUN_ELEMENTS", 1 << 4)
    one, many = (gridml.compute(PROGRAMS / "ranks.py", threads=threads) for threads in (1, 3))
    assert {n: v.tobytes() for n, v in one.arrays.items()} == {n: v.tobytes() for n, v in many.arrays.items()}


def test_a_program_of_this_process_leaves_the_arrays_that_it_was_given(tmp_path: Path) -> None:
    program = load_program(PROGRAMS / "ranks.py")
    graph = program.graph()
    given = graph.tables["Page"].columns["rank"]
    before = given.copy()
    first = gridml.compute(program)
    object.__setattr__(program, "graph", lambda: graph)
    for _ in range(2):
        assert gridml.compute(program).arrays["Page.rank"].tobytes() == first.arrays["Page.rank"].tobytes()
    np.testing.assert_array_equal(given, before)


def test_a_graph_without_edges(tmp_path: Path) -> None:
    file = written(tmp_path, "ranks", ("return np.concatenate", "degree[:] = 0; return np.concatenate"))
    found = gridml.compute(file)
    assert found.ended_by == "enough"
    np.testing.assert_allclose(found.arrays["Page.rank"], 1 / 300)
    assert set(found.arrays["Page.below"].tolist()) == {-1.0}


def test_nan_names_the_vertex_and_the_pass(tmp_path: Path) -> None:
    file = written(tmp_path, "ranks", ("page.rank = rank", "page.rank = rank / (page.degree - 3.0)"))
    with pytest.raises(NotFiniteError, match=r"Page\.rank of vertex \d+ is (nan|-?inf) after pass 1, and was finite"):
        gridml.compute(file)
    file = written(tmp_path, "ranks", ("at.moved += abs(rank - page.rank)", "at.moved += rank / (page.degree - 3.0)"))
    with pytest.raises(NotFiniteError, match=r"Shared\.\w+ is not finite"):
        gridml.compute(file)


def test_values_that_may_be_infinite_and_those_that_may_not(tmp_path: Path) -> None:
    far = written(tmp_path, "ranks", ("below=0", "below=np.inf"))
    assert np.isfinite(gridml.compute(far).arrays["Page.below"]).all()
    for change in (("below=0", "below=np.nan"), ("weight=1.0", "weight=np.inf")):
        with pytest.raises(ProgramError, match=r"Page\.\w+(\.\w+)? has NaN or infinity in"):
            gridml.compute(written(tmp_path, "ranks", change))


def test_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"gridml\.compute runs compiled stages, and the program has walk, an f"):
        gridml.compute(PROGRAMS / "supersteps.py")
    for wrong in ({"threads": 0}, {"epochs": 1.5}, {"seed": -1}):
        with pytest.raises(UsageError):
            gridml.compute(PROGRAMS / "ranks.py", **wrong)
    with pytest.raises(UserCodeError, match="enough failed after a pass: ZeroDivisionError"):
        gridml.compute(written(tmp_path, "ranks", ("shared.passes += 1", "shared.passes += 1 // 0")))
    stopping = ("evaluate, epochs=100", "evaluate, epochs=100, early_stopping=gridml.early_stopping('min:moved')")
    with pytest.raises(ProgramError, match="early_stopping"):
        gridml.compute(written(tmp_path, "ranks", stopping))
    calls = written(tmp_path, "ranks", ("program =", "gridml.compute(__file__)\nprogram ="))
    with pytest.raises(UnguardedError):
        gridml.compute(calls)


PUSHES = '''"""Few vertices send along their edges, in sums whose order does not matter."""

import numpy as np

import gridml

NODES = 500


class Shared(gridml.Vertex):
    sent, worst = gridml.accumulator("int64"), gridml.accumulator("float64", by="max")
    passes = gridml.array("int64")
    aggregate = gridml.owned()


class Node(gridml.Vertex):
    value, active = gridml.array("float64", mutable=True), gridml.array("bool", mutable=True)
    least, most = gridml.accumulator("float64", by="min"), gridml.accumulator("float32", by="max")
    came = gridml.accumulator("int32")
    seen = gridml.array("int64", mutable=True)
    links = gridml.edge("Node", weight="float64")


@gridml.exchange(over=Node, when="active")
def send(node: Node, linked: Node, link: gridml.Link, at: Shared) -> None:
    if link.weight > 0.9:
        return
    linked.least = min(linked.least, node.value + link.weight)
    linked.most = max(linked.most, node.value * link.weight)
    linked.came += 1
    at.sent += 1
    at.worst = max(at.worst, node.value - linked.seen)


@gridml.apply(Node)
def settle(node: Node, at: Shared) -> None:
    node.seen += node.came
    node.active = node.came > 0 and (7 * node.seen) % 10 < 4
    if node.came > 0:
        node.value = 0.5 * node.least + 0.4 * node.most


@gridml.global_sync
def count(shared: Shared) -> None:
    shared.passes += shared.sent


def graph() -> gridml.Graph:
    rng, g = np.random.default_rng(2), gridml.Graph()
    source, target, weight = rng.integers(0, NODES, 4000), rng.integers(0, NODES, 4000), rng.random(4000)
    g.add(Shared, passes=0)
    links = gridml.edge_list(source, target, NODES, weight)
    g.add(Node, value=rng.random(NODES), active=rng.random(NODES) < 0.2, seen=0, links=links)
    return g


program = gridml.Program(graph, [gridml.MiniBatch([send, settle]), count], epochs=9)
'''


def test_few_vertices_that_push_leave_the_bits_of_all_ends_that_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pushes.py").write_text(PUSHES)
    monkeypatch.setattr(stage_jobs, "MIN_RUN_EDGES", 1 << 4)
    pushed = [gridml.compute(tmp_path / "pushes.py", threads=threads).arrays for threads in (1, 2)]
    assert pushed[0]["Shared.passes"] > 1000
    with monkeypatch.context() as patched:
        patched.setattr(stage_jobs, "may_push", lambda stage, kernel: (False, "of this test"))
        pulled = gridml.compute(tmp_path / "pushes.py", threads=1).arrays
    for each in pushed:
        assert {n: v.tobytes() for n, v in each.items()} == {n: v.tobytes() for n, v in pulled.items()}


def test_only_sums_without_an_order_are_pushed(tmp_path: Path) -> None:
    (tmp_path / "pushes.py").write_text(PUSHES)
    for file, reason in ((tmp_path / "pushes.py", "only vertices whose active"), (PROGRAMS / "ranks.py", "rounded")):
        shape = load_program(file).shape
        assert isinstance(shape, Stages)
        send, settle = stages_of(shape)
        decision, said = stage_jobs.may_push(send.stage, send.kernel)
        assert reason in said
        assert (send.push is not None) == decision == (file.name == "pushes.py")
        assert not stage_jobs.may_push(settle.stage, settle.kernel)[0]

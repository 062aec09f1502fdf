"""Finite slack: no mini-batch begins before all parts are as far as its slack asks, and with slack 0 the result is the
same, bit for bit, for any number of workers, whatever happens to machines, messages and masters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.errors import ProgramError
from gridml.model.loading import load
from gridml.model.order import EpochOrder
from gridml.model.ticks import Ticks
from gridml.protocol import bundle
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.launch import resume, start
from master.ports.environment import Environment
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_ticks
from master.simulation.scenario import Absent, MachineSpeeds, Scenario, Storms
from master.simulation.world import World, play_scenario
from master.store.credits import rollback_points
from master.store.reader import opened
from master.store.settings import Settings
from master.store.spec import RunSpec, differences, identity
from master.takeover import rollback
from master.views.report import report
from remote.stepped import Trainer
from tests.support.effort import first

PROGRAMS = Path(__file__).parents[1] / "programs"
COSTS = Costs(exec_s=0.3, start_s=1.0, push_s=0.1, boot_s=1.0)
FAULTS = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=3.0)
SLOW = MachineSpeeds(0.2, 4.0, 0.4)
ENDINGS = {
    "factors": ("size=16, exact=True", "size=16, exact=True, slack={}, parts=4"),
    "slopes": ("slack=0, parts=4", "slack={}, parts=4"),
    "topics": ("size=", "slack={}, parts=4, size="),
    "ranks": ("parts=4", "slack={}, parts=4"),
    "hubs": ("parts=4", "slack={}, parts=4"),
    "blocks": ("parts=4", "slack={}, parts=4"),
    "phases": ("slack=0, parts=4", "slack={}, parts=4"),
    "topics by edges": ("size=8", "slack={}, parts=4, edges=90"),
}


def written(folder: Path, name: str, slack: float) -> Path:
    """Write a program of the tests with this slack, on 4 parts."""
    before, after = ENDINGS[name]
    file = f"{name.split()[0]}.py"
    text = (PROGRAMS / file).read_text()
    assert before in text
    path = folder / file
    path.write_text(text.replace(before, after.format("float('inf')" if slack == np.inf else slack)))
    return path


def troubled(workers: int, seed: int) -> Scenario:
    """Machines that die, are slow or never come, a network that loses and damages messages, masters that die."""
    lives = ScriptedLives(workers, Exponential(30.0), seed=seed, gap_s=2.0, grace_s=5.0)
    script: Script = Storms(Absent(lives, 0.1, seed), 60.0, 0.5, seed)
    return Scenario(script, COSTS, SLOW, FAULTS, crash_every_s=45.0, turn_s=0.5, limit_s=1e5, seed=seed)


def play(file: Path, root: Path, scenario: Scenario, workers: int, spot_checks: float = 0.0) -> World:
    settings = Settings(file, "simulated", workers, seed=1, spot_checks=spot_checks)
    return play_scenario(settings, scenario, root, trainer=Trainer(file, COSTS, 1))


def state(root: Path, *fields: str) -> dict[str, bytes]:
    """Return the bytes of everything that a run has trained: the replica, and fields that came home."""
    _, tensors = bundle.decode((root / "final.safetensors").read_bytes())
    home = {name: np.load(root / "fields" / f"{name}.npy") for name in fields}
    return {name: each.tobytes() for name, each in {**tensors, **home}.items()}


HOME = {"factors": ["User.p"], "slopes": ["Sample.score"], "topics": ["Text:words.topic"]}
HOME["blocks"] = ["Sample.dual"]
HOME["ranks"] = ["Page.rank", "Page.below"]
HOME["hubs"] = ["Page.hub", "Page.authority", "Page.steps", "Page:links.seen"]
HOME["phases"] = ["Sample.score", "Sample.along"]
HOME["topics by edges"] = HOME["topics"]


@cache
def quiet(folder: Path, name: str) -> dict[str, bytes]:
    """Return the result of one worker that nothing happens to, with slack 0."""
    own = folder / f"quiet-{name}"
    own.mkdir()
    file = written(own, name, 0)
    play(file, own / "run", Scenario(Steady(1), COSTS), 1)
    return state(own / "run", *HOME[name])


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slack")


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("workers", first(1, [4, 2]))
def test_the_same_bits_for_any_number_of_workers(name: str, workers: int, shared: Path, tmp_path: Path) -> None:
    play(written(tmp_path, name, 0), tmp_path / "run", Scenario(Steady(workers), COSTS, SLOW), workers)
    assert state(tmp_path / "run", *HOME[name]) == quiet(shared, name)


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("seed", first(1, [1, 2, 3]))
def test_the_same_bits_whatever_dies(name: str, seed: int, shared: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    world = play(written(tmp_path, name, 0), root, troubled(5, seed), 5, spot_checks=0.2 * (seed % 2))
    assert world.pool.tally.kills > 3 and world.masters > 1 and world.workers.traffic.lost > 0
    assert state(root, *HOME[name]) == quiet(shared, name)
    verify_ticks(root, 0)


@pytest.mark.real
def test_real_workers_that_are_killed_end_with_the_bits_of_simulated_ones(
    shared: Path, tmp_path: Path, pool: Callable[[Script | None], Environment]
) -> None:
    settings = Settings(written(tmp_path, "factors", 0), workers=2, seed=1)
    script = ScriptedLives(2, Exponential(2.0), seed=3, grace_s=1.0)
    with start(settings, tmp_path / "run", pool(script)) as run:
        run.finish()
    assert report(tmp_path / "run").kills
    assert state(tmp_path / "run", *HOME["factors"]) == quiet(shared, "factors")
    verify_ticks(tmp_path / "run", 0)


@pytest.mark.parametrize(
    ("name", "slack"), [("factors", 2), ("topics by edges", 1), ("slopes", 1), ("phases", 1), ("blocks", 1)]
)
def test_the_bound_holds_whatever_dies(name: str, slack: int, tmp_path: Path) -> None:
    root = tmp_path / "run"
    world = play(written(tmp_path, name, slack), root, troubled(5, 3), 5)
    assert world.pool.tally.kills > 3 and world.masters > 1
    assert verify_ticks(root, slack).ahead == slack  # the bound is reached, so it is the bound that holds
    for epoch in report(root).epochs:
        assert (epoch.duplicated, epoch.lost) == (0, 0)


@pytest.mark.parametrize("slack", [0, 2])
def test_the_bound_holds_where_vertices_are_placed(slack: int, tmp_path: Path) -> None:
    file, root = written(tmp_path, "factors", slack), tmp_path / "run"
    settings = Settings(file, "simulated", 3, seed=1, placement="multilevel")
    play_scenario(settings, Scenario(Steady(3), COSTS, SLOW), root, trainer=Trainer(file, COSTS, 1))
    with opened(root) as ledger:
        assert ledger.execute("SELECT 1 FROM events WHERE topic = 'placement'").fetchone()
        (parts,) = ledger.execute("SELECT 1 + max(part) FROM ticks").fetchone()
    assert verify_ticks(root, slack).ahead == slack and parts == 4  # three workers are three parts of a placement


def test_mini_batches_of_as_many_edges_are_no_matter_of_leases_without_slack(tmp_path: Path) -> None:
    file = written(tmp_path, "topics by edges", np.inf)
    results = []
    for number, (chunk, every) in enumerate([(None, None), (7, None), (None, 2)]):
        root = tmp_path / f"run{number}"
        settings = Settings(file, "simulated", 1, seed=1, chunk=chunk, push_every=every)
        play_scenario(settings, Scenario(Steady(1), COSTS), root, trainer=Trainer(file, COSTS, 1))
        results.append(state(root, *HOME["topics"]))
        order = EpochOrder(120, 1, 4, "block", ticks=load(file).division(load(file).build(file)))
        with opened(root) as ledger:
            stops = [stop for (stop,) in ledger.execute("SELECT stop FROM credits WHERE epoch = 4")]
        assert order.mini_batches is not None and {*stops} <= {*order.mini_batches.ends.tolist()}
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("seed", first(1, [1, 2]))
def test_mini_batches_of_as_many_edges_are_exact_without_slack_whatever_dies(seed: int, tmp_path: Path) -> None:
    root = tmp_path / "run"
    world = play(written(tmp_path, "topics by edges", np.inf), root, troubled(5, seed), 5, spot_checks=0.2 * (seed % 2))
    assert world.pool.tally.kills > 3 and world.masters > 1
    _, tensors = bundle.decode((root / "final.safetensors").read_bytes())
    topic, visits = (np.load(root / "fields" / f"Text:words.{name}.npy") for name in ("topic", "visits"))
    assert (visits == 5).all() and tensors["Word/count"].sum() == len(topic)
    np.testing.assert_array_equal(tensors["Corpus/count"][0], np.bincount(topic, minlength=8))


@pytest.mark.parametrize("slack", [0, np.inf])
def test_a_run_with_other_edges_is_another_run(slack: float, tmp_path: Path) -> None:
    file, identities = written(tmp_path, "topics by edges", slack), []
    for edges in (90, 91):
        file.write_text(file.read_text().replace("edges=90", f"edges={edges}"))
        program = load(file)
        identities.append(identity(RunSpec(Settings(file), program, program.build(file))))
    assert differences(*identities)[-1] == "edges was 90, and is 91"


def test_no_more_workers_are_asked_for_than_there_are_parts(tmp_path: Path) -> None:
    play(written(tmp_path, "slopes", 0), tmp_path / "run", Scenario(Steady(6), COSTS), 6)
    with opened(tmp_path / "run") as ledger:
        (text,) = ledger.execute("SELECT text FROM events WHERE topic = 'asked'").fetchone()
        (workers,) = ledger.execute("SELECT count(DISTINCT worker) FROM credits").fetchone()
    assert text.startswith("4 workers are asked for, of 6 wanted: with slack a pass has 4 parts") and workers == 4


def test_a_run_that_is_rolled_back_in_the_middle_of_a_tick_ends_with_the_same_bits(tmp_path: Path) -> None:
    # Without fields that come home, which can go back no further than the last epoch.
    text = (PROGRAMS / "slopes.py").read_text().replace("    sample.score = total\n", "")
    file, root = tmp_path / "slopes.py", tmp_path / "run"
    file.write_text(text.replace('array("float64", mutable=True)', 'array("float64")').replace("parts=4", "parts=3"))
    play(file, root, Scenario(Steady(3), COSTS, SLOW), 3)
    expected, halves = state(root), 0
    for back in (1, 5, 8):
        with opened(root) as ledger:
            to = rollback_points(ledger)[back].version
            halves += bool(ledger.execute("SELECT 1 FROM ticks WHERE version <= ? AND merged > ?", (to, to)).fetchone())
        rollback(root, f"v{to}")
        settings = Settings(file, "simulated", 3, seed=1, options=SimulatedOptions(None, None))
        world = World(settings, Scenario(Steady(3), COSTS, seed=1), Trainer(file, COSTS, 1))
        run = resume(root, world.environment(lambda topic, text, facts: None))
        world.drive(run)
        with run:
            run.finish()
        assert state(root) == expected
        verify_ticks(root, 0)
    assert halves, "a tick was undone of which some parts' pushes were credited"


SUMS = """
import numpy as np
import gridml

class Total(gridml.Vertex):
    sum = gridml.accumulator("float32")
    seen = gridml.array("int64")
    aggregate = gridml.by_name({"*/seen": gridml.add(), "*": gridml.owned()})

class Bin(gridml.Vertex):
    hits = gridml.array("int64")
    aggregate = gridml.add()

class Item(gridml.Vertex):
    bins = gridml.edge(Bin)

@gridml.exchange(over=Item)
def count(item: Item, bins: gridml.Links[Bin], at: Total) -> None:
    for each in bins:
        each.end.hits += 1
    at.seen += 1
    at.sum += 5e37

@gridml.global_sync
def look(total: Total) -> None:
    pass

def graph():
    g = gridml.Graph()
    g.add(Total, seen=0)
    g.add(Bin, hits=[0, 0])
    g.add(Item, bins=gridml.csr(np.arange(9), np.arange(8) % 2))
    return g

program = gridml.Program(graph, [gridml.MiniBatch([count], size=2, slack=0, parts=4), look], epochs=2)
"""


def test_finite_pushes_that_overflow_together_are_left_out_and_said(tmp_path: Path) -> None:
    file, seen = tmp_path / "sums.py", set()
    file.write_text(SUMS)
    for workers in (1, 3):
        root = tmp_path / f"run{workers}"
        play(file, root, Scenario(Steady(workers), COSTS, SLOW), workers)
        with opened(root) as ledger:
            warned = [text for (text,) in ledger.execute("SELECT text FROM events WHERE topic = 'warning'")]
        texts = [text for text in warned if "Total/sum would not be finite" in text]
        assert len(texts) == 2 and texts[0].startswith("epoch 1, mini-batch 1 of part 4: left out"), warned
        _, tensors = bundle.decode((root / "final.safetensors").read_bytes())
        assert tensors["Total/seen"].tolist() == [12] and tensors["Bin/hits"].sum() == 12  # as a whole or not at all
        seen.add(tuple(state(root).items()))
    assert len(seen) == 1


def test_one_part_is_a_plain_loop_of_gradient_descent(tmp_path: Path) -> None:
    file = tmp_path / "slopes.py"
    file.write_text((PROGRAMS / "slopes.py").read_text().replace("parts=4", "parts=1"))
    play(file, tmp_path / "run", Scenario(Steady(2), COSTS), 2)
    program = load(file)
    graph = program.graph()
    edges, label = graph.tables["Sample"].edges["has"], graph.tables["Sample"].columns["label"]
    w, rate, ends = np.zeros(40), 1.5, Ticks.of(360, 1, 30).mini_batches(np.arange(360)).ends.tolist()
    for epoch in range(5):
        order = EpochOrder(360, 1, epoch, "block")
        for first_at, stop in zip([0, *ends], ends, strict=False):
            slope, seen, reach = np.zeros(40), np.zeros(40), np.zeros(40)
            for sample in order.vertices(first_at, stop).tolist():
                at = slice(edges.offsets[sample], edges.offsets[sample + 1])
                feature, x = edges.targets[at], edges.weight[at]
                slope[feature] -= label[sample] * x / (1 + np.exp(label[sample] * (x @ w[feature])))
                seen[feature] += 1
                reach[feature] = np.maximum(reach[feature], np.abs(x))
            own = seen > 0
            w[own] -= rate * (slope[own] / seen[own] + 0.01 * w[own]) / np.maximum(1, reach[own])
        rate *= 0.9
    _, tensors = bundle.decode((tmp_path / "run" / "final.safetensors").read_bytes())
    np.testing.assert_allclose(tensors["Feature/w"], w, rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[str, str, str]] = {
    "no slack": ("slack=0, ", "slack=float('inf'), ", "give MiniBatch a slack"),
    "the owner first": ("[score, slope, move]", "[move, score, slope]", "move is the first stage of a MiniBatch"),
    "sums that nothing reads": ("[score, slope, move]", "[score, slope]", "is an accumulator that nothing reads"),
    "half a mini-batch": ("slack=0", "slack=0.5", "expected a whole number of mini-batches"),
    "negative": ("slack=0", "slack=-1", "expected a whole number of mini-batches"),
    "size and edges": ("size=30", "size=30, edges=9", "got size=30 and edges=9; expected one of them"),
    "no parts": ("parts=4", "parts=0", "expected a number from 1 to"),
    "an accumulator written": ("    at.steps += 1", "    feature.slope += 1", "which move reads, and then is 0"),
    "another type written": ("    at.steps += 1", "    at.rate = 0.0", "was written by an apply of another type"),
    "a sum of a context read": ("    at.steps += 1", "    feature.w = at.loss", "was read before the pass has ended"),
    "a sum read in an exchange": ("    feature.samples += 1", "    sample.score = feature.slope", "the tick has ended"),
}


def test_connected_vertices_have_no_ticks(tmp_path: Path) -> None:
    text = (PROGRAMS / "slopes.py").read_text()
    text = text.replace(
        "class Sample(gridml.Vertex):\n", 'class Sample(gridml.Vertex):\n    near = gridml.edge("Sample")\n'
    )
    (tmp_path / "near.py").write_text(text.replace("score=0, has=", "score=0, near=np.arange(SAMPLES), has="))
    with pytest.raises(
        ProgramError, match="Sample vertices are connected by edges to local vertices, which mini-batch"
    ):
        play(tmp_path / "near.py", tmp_path / "run", Scenario(Steady(1), COSTS), 1)


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_refused(wrong: str, tmp_path: Path) -> None:
    before, after, message = REFUSED[wrong]
    text = (PROGRAMS / "slopes.py").read_text()
    assert before in text
    (tmp_path / "wrong.py").write_text(text.replace(before, after))
    with pytest.raises(ProgramError, match=message):
        play(tmp_path / "wrong.py", tmp_path / "run", Scenario(Steady(1), COSTS), 1)

"""Programs of several phases, on simulated workers: one part is a plain loop, and a run ends by itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.model.loading import load
from gridml.model.order import EpochOrder
from gridml.protocol import bundle
from master.backends.script import Steady
from master.launch import resume
from master.leases.epochs import Epochs
from master.simulation.result import verify_credits, verify_ticks
from master.simulation.scenario import Scenario
from master.simulation.world import World, play_scenario
from master.store.ledger import Ledger
from master.store.reader import opened
from master.store.schema import read_fact
from master.store.settings import RunSettings, Settings
from master.store.spec import RunSpec
from master.takeover import rollback
from master.views.report import report
from remote.stepped import Trainer
from tests.support.stage_programs import module_in

PROGRAMS = Path(__file__).parents[1] / "programs"
COSTS = Costs(exec_s=0.3, start_s=1.0, push_s=0.1, boot_s=1.0)


def written(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Write a program of the tests with replacements in its text."""
    text = (PROGRAMS / f"{name}.py").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / f"{name}.py").write_text(text)
    return folder / f"{name}.py"


def play(file: Path, root: Path, workers: int = 1, placement: str | None = None) -> World:
    settings = Settings(file, "simulated", workers, seed=1, placement=placement)
    return play_scenario(settings, Scenario(Steady(workers), COSTS), root, trainer=Trainer(file, COSTS, 1))


def final(root: Path) -> dict[str, np.ndarray]:
    return dict(bundle.decode((root / "final.safetensors").read_bytes())[1])


def ticks_of(program: ModuleType, count: int, epoch: int, shuffle: str = "block") -> list[np.ndarray]:
    """Return the vertices of each tick of a pass on one part."""
    graph = program.program.build(program.__file__)
    order = EpochOrder(count, 1, epoch, shuffle, ticks=program.program.division(graph))  # type: ignore[arg-type]
    assert order.mini_batches is not None
    ends = order.mini_batches.ends.tolist()
    return [order.vertices(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def test_two_exchanges_with_applies_on_one_part_are_a_plain_loop(tmp_path: Path) -> None:
    file, root = written(tmp_path, "phases", ("parts=4", "parts=1")), tmp_path / "run"
    play(file, root)
    program = module_in(file)
    feature, x, label = program.samples()
    w, damp, mini_batches, passes, is_enough = np.zeros(program.FEATURES), 0.5, 0, 0, False
    while not is_enough:  # a run ends with the pass in which it is
        ticks = ticks_of(program, program.SAMPLES, passes)
        assert all((first == second).all() for first, second in zip(ticks[::2], ticks[1::2], strict=True))
        for at in ticks[::2]:
            score = (x[at] * w[feature[at]]).sum(1)
            slope, samples, curve = np.zeros((3, program.FEATURES))
            np.add.at(slope, feature[at], -(label[at] / (1 + np.exp(label[at] * score)))[:, None] * x[at])
            np.add.at(samples, feature[at], 1)
            seen = samples > 0
            stride = np.where(seen, -(slope / np.maximum(samples, 1) + program.RIDGE * w), np.nan)
            tau, along = 1 / (1 + np.exp(-score)), (x[at] * stride[feature[at]]).sum(1)
            steep = np.abs(x[at] * stride[feature[at]] * along[:, None]) * (tau * (1 - tau))[:, None]
            np.add.at(curve, feature[at], steep)
            w[seen] += (stride * damp / (0.2 + curve / (1e-9 + stride * stride)))[seen]
            loss, damp = np.log1p(np.exp(-label[at] * score)).mean(), 0.5 + 0.5 * damp
            mini_batches, is_enough = mini_batches + 1, is_enough or loss < program.ENOUGH
        passes += 1
    shown = final(root)
    assert [int(shown[f"Shared/{name}"][0]) for name in ("passes", "mini_batches")] == [passes, mini_batches]
    np.testing.assert_allclose(shown["Feature/w"], w, rtol=1e-12)


def test_blocks_of_features_reach_the_optimum_of_a_plain_solver(tmp_path: Path) -> None:
    file, root = written(tmp_path, "blocks"), tmp_path / "run"
    play(file, root, workers=3)
    program = module_in(file)
    feature, x, label = program.samples()
    dense = np.zeros((program.SAMPLES, program.FEATURES))
    np.add.at(dense, (np.arange(program.SAMPLES)[:, None], feature), x)
    w, rate = np.zeros(program.FEATURES), 4 / np.linalg.norm(dense, 2) ** 2
    for _ in range(4000):  # proximal gradient
        w = w + rate * dense.T @ (label / (1 + np.exp(label * (dense @ w))))
        w = np.sign(w) * np.maximum(np.abs(w) - rate * program.LAMBDA, 0)
    shown = final(root)
    assert program.objective(shown["Feature/w"]) == pytest.approx(program.objective(w), rel=1e-4)
    assert (shown["Feature/w"] != 0).sum() == (w != 0).sum()
    with opened(root) as ledger:  # each pass has every part in every phase of every block
        assert ledger.execute("SELECT count(*) FROM ticks WHERE epoch = 0").fetchone() == (4 * 2 * 2,)
    duals = np.load(root / "fields" / "Sample.dual.npy")
    np.testing.assert_allclose(duals, np.exp(label * (dense @ shown["Feature/w"])), rtol=1e-9)


@pytest.mark.parametrize("shuffle", ["block", "none"])
def test_blocks_are_drawn_anew_in_each_pass_unless_nothing_is_shuffled(shuffle: str, tmp_path: Path) -> None:
    file = written(tmp_path, "blocks", ("epochs=60", f"epochs=2, shuffle={shuffle!r}"))
    program = load(file)
    spec = RunSpec(Settings(file, seed=1).part(RunSettings), program, program.build(file))
    with closing(Ledger(tmp_path / "ledger.db", shared_disk=False, create=True, durable=False)) as ledger:
        epochs = Epochs(spec, ledger, None)
        assert epochs.ticks is not None and (epochs.ticks.blocks, epochs.ticks.phases, epochs.ticks.count) == (2, 2, 4)
        drawn = []
        for epoch in range(2):
            starts = [0, *epochs.mini_batches(epoch).ends[:3].tolist()]
            masks = [found["Feature"] for at in starts if (found := epochs.drawn(epoch, at)) is not None]
            assert all((first == second).all() for first, second in zip(masks[::2], masks[1::2], strict=True))
            assert (np.sum(masks[::2], 0) == 1).all() and {int(mask.sum()) for mask in masks} == {30}
            drawn.append(masks[0])
    is_first = np.arange(60) < 30
    assert ((drawn[0] == is_first).all(), (drawn[0] == drawn[1]).all()) == ((shuffle == "none",) * 2)


def test_pages_on_four_parts_are_a_power_iteration(tmp_path: Path) -> None:
    results = []
    for parts in (1, 4):
        own = tmp_path / str(parts)
        own.mkdir()
        file = written(own, "ranks", ("parts=4", f"parts={parts}"))
        play(file, own / "run", workers=2)
        results.append(np.load(own / "run" / "fields" / "Page.rank.npy"))
    program = module_in(file)
    offsets, targets = program.web()
    degree = np.diff(offsets)
    source = np.repeat(np.arange(program.PAGES), degree)
    rank, moved = np.full(program.PAGES, 1 / program.PAGES), 1.0
    while moved >= program.ENOUGH:
        flow = np.bincount(targets, rank[source] / degree[source], program.PAGES)
        hanging = rank[degree == 0].sum() / program.PAGES
        new = (1 - program.DAMPING) / program.PAGES + program.DAMPING * (flow + hanging)
        rank, moved = new, np.abs(new - rank).sum()
    np.testing.assert_allclose(results[0], rank, rtol=1e-12)
    np.testing.assert_allclose(results[1], rank, rtol=1e-12)


@pytest.mark.parametrize("placement", [None, "parsa"])
def test_each_phase_of_linked_pages_sees_what_all_parts_made_of_the_one_before(
    placement: str | None, tmp_path: Path
) -> None:
    file, root = written(tmp_path, "hubs"), tmp_path / "run"
    play(file, root, workers=3, placement=placement)
    verify_credits(root)
    verify_ticks(root, 0)
    program = module_in(file)
    offsets, targets = program.web()
    pages, source = program.PAGES, np.repeat(np.arange(program.PAGES), np.diff(offsets))
    hub, seen = np.full(pages, 1 / pages), np.zeros(len(targets))
    steps = np.where(np.arange(pages) == pages - 1, 0, pages)
    for _ in range(program.PASSES):
        raw = np.bincount(targets, hub[source], pages)
        seen += raw[targets]
        hub, authority = np.bincount(source, raw[targets], pages), raw / raw.sum()
        hub /= hub.sum()
        nearest = np.full(pages, pages)
        np.minimum.at(nearest, targets, steps[source] + 1)
        steps = np.minimum(steps, nearest)
    found = {name: np.load(root / "fields" / f"Page.{name}.npy") for name in ("hub", "authority", "steps")}
    np.testing.assert_allclose(found["hub"], hub, rtol=1e-12)
    np.testing.assert_allclose(found["authority"], authority, rtol=1e-12)
    np.testing.assert_array_equal(found["steps"], steps)
    np.testing.assert_allclose(np.load(root / "fields" / "Page:links.seen.npy"), seen, rtol=1e-12)
    assert len(np.unique(steps)) > 1 and (hub > 0).sum() > 50


def test_a_run_that_ended_itself_is_evaluated(tmp_path: Path) -> None:
    file, root = written(tmp_path, "ranks", ("epochs=100", "epochs=100, evaluate_every=7")), tmp_path / "run"
    play(file, root, workers=2)
    verify_credits(root)
    verify_ticks(root, 0)
    shown = report(root)
    assert shown.stopped_early == f"enough returned True in pass {len(shown.epochs)}" and 10 < len(shown.epochs) < 30
    assert shown.epochs[-1].metrics["total"] == pytest.approx(1)


def test_the_end_is_undone_by_a_rollback_and_found_again(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "slopes",
        ("    sample.score = total\n", ""),
        ('score = gridml.array("float64", mutable=True)', 'score = gridml.array("float64")'),
        ("def cool(shared: Shared) -> None:", "def cool(shared: Shared) -> bool:"),
        ("    shared.last_loss = shared.loss / SAMPLES\n", "    return bool(shared.passes == 4)\n"),
    )
    root = tmp_path / "run"
    play(file, root, workers=2)
    before = final(root)
    assert report(root).stopped_early == "cool returned True in pass 4"
    rollback(root, "e2", lambda: 2e6)
    with opened(root) as ledger:
        assert read_fact(ledger, "enough") is None
    settings = Settings(file, "simulated", 2, seed=1)
    world = World(settings, Scenario(Steady(2), COSTS, seed=1), Trainer(file, COSTS, 1))
    run = resume(root, world.environment(lambda topic, text, facts: None))
    world.drive(run)
    with run:
        run.finish()
    assert report(root).stopped_early == "cool returned True in pass 4"
    assert {name: each.tobytes() for name, each in final(root).items()} == {n: e.tobytes() for n, e in before.items()}

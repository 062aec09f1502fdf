"""A plan predicts the run's decision on placement."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gridml.errors import ProgramError
from gridml.model.loading import load
from gridml.placement import auto
from master.placing.placing import PlannedPlacement, place, plan_placement
from master.planning.options import PlanOptions
from master.planning.plan import make_plan
from master.store.rundir import EventFacts, RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec
from master.views.render_plan import print_plan

PROGRAM = """
    import numpy as np
    import gridml

    ITEMS, USERS = 1000, 2000


    class Item(gridml.Vertex):
        factor = gridml.array("float32", ({width},))
        aggregate = gridml.stale_mean()


    class User(gridml.Vertex):
        bought = gridml.edge(Item)


    @gridml.update(batch=8)
    def fit(users: gridml.Batch[User], items: gridml.Batch[Item]) -> None:
        items.factor += 1


    def graph() -> gridml.Graph:
        rng, g = np.random.default_rng(1), gridml.Graph()
        g.add(Item, factor=np.zeros((USERS, {width}), np.float32))  # most of them have no buyer
        group = rng.integers(0, 4, USERS)[:, None]
        near = rng.integers(0, ITEMS // 4, (USERS, 3)) * 4 + group
        bought = dict(near=near, every=np.tile(np.arange(ITEMS), (USERS, 1)), own=np.arange(USERS))
        g.add(User, bought=bought["{bought}"])
        return g


    program = gridml.Program(graph, fit, placement="{placement}")
"""


def file_of(folder: Path, *, bought: str = "near", width: int = 200, placement: str = "auto") -> Path:
    file = folder / "users.py"
    file.write_text(textwrap.dedent(PROGRAM.format(bought=bought, width=width, placement=placement)))
    return file


def placed(file: Path, workers: int, folder: Path) -> EventFacts:
    """Return the decision of a run."""

    program = load(file)
    spec = RunSpec(Settings(file, workers=workers), program, program.build(file))
    report = place(spec, None, RunDirectory(folder), lambda *said: None, durable=False)[1]
    assert report is not None
    return report.facts


@pytest.mark.parametrize("placement", ["auto", "parsa", "random"])
@pytest.mark.parametrize("workers", [2, 4])
def test_the_run_decides_so(placement: str, workers: int, tmp_path: Path) -> None:
    file = file_of(tmp_path, placement=placement)
    planned = plan_placement(file, workers)
    assert planned.vertices == 2000
    said, did = planned.placement, placed(file, workers, tmp_path)
    assert said is not None
    assert did["method"] in said.methods and did["parts"] == said.parts == workers
    assert (did["bytes"], did["chance_bytes"]) == (said.row_bytes, said.else_bytes)
    bought = len(np.unique(load(file).graph().tables["User"].edges["bought"].targets))
    assert said.least_bytes == bought * 800 / workers
    placed_bytes = did["placed_bytes"]
    assert isinstance(placed_bytes, float) and placed_bytes >= said.least_bytes
    assert said.most_saved == pytest.approx(1 - said.least_bytes / said.else_bytes)


def test_what_no_placement_can_save_is_not_placed(tmp_path: Path) -> None:
    file = file_of(tmp_path, bought="own")
    said = plan_placement(file, 4).placement
    assert said is not None and (said.methods, said.parts, said.place_s) == ((), 0, None)
    assert said.reason == "parts would touch only 0% fewer bytes of rows than at random, at best"
    assert said.else_bytes == said.least_bytes == 2000 * 800 / 4
    assert placed(file, 4, tmp_path)["method"] is None


def test_what_it_saves_may_be_less_than_the_most(tmp_path: Path) -> None:
    """Every user has bought everything, which the run sees, but not the plan's bound."""
    file = file_of(tmp_path, bought="every")
    said = plan_placement(file, 4).placement
    assert said is not None and said.methods and said.most_saved == 0.75
    assert placed(file, 4, tmp_path)["method"] is None


@pytest.mark.parametrize(
    ("workers", "width", "placement", "reason"),
    [
        (1, 200, "auto", "one worker"),
        (4, 1, "auto", "all rows together are 8,000 bytes"),
        (4, 1, "parsa", "parsa was requested"),
    ],
)
def test_why(workers: int, width: int, placement: str, reason: str, tmp_path: Path) -> None:
    said = plan_placement(file_of(tmp_path, width=width, placement=placement), workers).placement
    assert said is not None and reason in said.reason
    assert bool(said.methods) == (placement != "auto")


def test_nothing_is_said_where_there_is_nothing_to_place(tmp_path: Path, programs: Path) -> None:
    assert plan_placement(programs / "perceptron.py", 4).placement is None
    assert plan_placement(file_of(tmp_path, placement="none"), 4).placement is None


def test_without_workers_it_is_as_many_as_a_run_has(tmp_path: Path) -> None:
    said = plan_placement(file_of(tmp_path), None).placement
    assert said is not None and said.workers == said.parts == Settings(tmp_path).workers


def test_an_unknown_placement_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="'metis'; expected none, or one of"):
        plan_placement(file_of(tmp_path, placement="metis"), 2)


def test_seconds_are_those_that_auto_chooses_by() -> None:
    for edges in (1_000_000, 50_000_000):
        method, why = auto.chosen(edges, 16, 10.0)
        expected_s = auto.expected_s(method.name, edges, 16)
        assert expected_s is not None and f"{expected_s:.2g} s" in why
    assert auto.expected_s("tsh", 1, 2) is None


def test_a_plan_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = PlanOptions(lifetime="normal(45m,10m)", t_exec=0.05, workers=4, program=file_of(tmp_path))
    plan = make_plan(options)
    assert plan.work.vertices == 2000 and isinstance(plan.placement, PlannedPlacement)
    said = json.loads(json.dumps(plan.to_json()))["placement"]
    assert said == {
        **json.loads(json.dumps(dataclasses.asdict(plan.placement))),
        "most_saved": plan.placement.most_saved,
    }
    assert said["methods"] == ["multilevel", "parsa"] and said["place_s"] > 0
    print_plan(plan)
    text = " ".join(capsys.readouterr().out.split())
    assert "placement with 4 workers by multilevel or parsa, expected to take" in text
    assert "4 parts, as many as workers, of 4 sections. Of 1.6 MB in rows a part at random touches" in text
    print_plan(make_plan(dataclasses.replace(options, workers=1)))
    assert "placement none with 1 worker: one worker trains all vertices" in " ".join(capsys.readouterr().out.split())
    assert make_plan(dataclasses.replace(options, program=None)).to_json()["placement"] is None

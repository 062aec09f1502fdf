"""Values that f logs are exact under kills: the sum over credited vertices, each counted once."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.cli.main import command_line
from master.backends.script import ScriptedLives, Steady
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario, Storms
from master.simulation.world import World, play_scenario
from master.store.ledger import Ledger
from master.store.reader import connect
from master.store.schema import read_by_epoch, read_recent, read_series, read_since
from master.store.settings import Settings
from master.takeover import rollback
from remote.stepped import Trainer

COUNT, EPOCHS = 400, 3
COSTS = Costs(exec_s=0.1, start_s=0.5, push_s=0.05)
CALM = Scenario(Steady(3), COSTS, turn_s=0.2)


def played(program: Path, root: Path, scenario: Scenario) -> World:
    chosen = Settings(
        program, backend="simulated", workers=6, chunk=40, push_every=20, seed=scenario.seed, steps_each=0
    )
    return play_scenario(chosen, scenario, root, trainer=Trainer(program, COSTS, scenario.seed))


def sums(root: Path) -> dict[tuple[int, str], tuple[float, int]]:
    query = "SELECT epoch, name, round(sum(total), 6), sum(vertices) FROM logged GROUP BY epoch, name"
    with closing(connect(root)) as db:
        return {(epoch, name): (total, vertices) for epoch, name, total, vertices in db.execute(query)}


EXPECTED = {
    (epoch, name): (total, COUNT)
    for epoch in range(EPOCHS)
    for name, total in (("number", COUNT * (COUNT - 1) / 2), ("twice", 2.0 * COUNT))
}


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**20))
def test_the_sums_are_those_of_all_vertices_once(
    programs: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    root = tmp_path_factory.mktemp("logged") / "run"
    storms = Storms(ScriptedLives(6, Exponential(12.0), seed=seed, grace_s=2.0), 20.0, 0.5, seed)
    faults = Chances(lose=0.1, repeat=0.1, truncate=0.05, corrupt=0.05, delay_s=2.0)
    bad = Scenario(storms, COSTS, faults=faults, crash_every_s=8.0, restart_s=1.0, turn_s=0.2, seed=seed)
    world = played(programs / "logs.py", root, bad)
    assert world.pool.tally.kills > 0 and world.masters > 1
    assert verify_credits(root).credited == COUNT * EPOCHS
    assert sums(root) == EXPECTED


def test_the_ledger_says_who_logged_under_a_name_first_and_last(programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    played(programs / "logs.py", root, CALM)
    with closing(connect(root)) as db:
        credits = db.execute("SELECT version, worker FROM credits").fetchall()
    first, last = ({w for v, w in credits if v == end} for end in (min(credits)[0], max(credits)[0]))
    ledger = Ledger(root / "ledger.db", shared_disk=False)
    try:
        assert sorted(ledger.logged_names()) == [("number", first, last), ("twice", first, last)]
    finally:
        ledger.close()


def test_what_is_undone_is_logged_again(programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    played(programs / "logs.py", root, CALM)
    assert sums(root) == EXPECTED
    rollback(root, "e1", lambda: 2e6)
    with closing(connect(root)) as db:
        credited = dict(db.execute("SELECT epoch, sum(stop - start) FROM credits GROUP BY epoch"))
    assert credited[0] == COUNT and sum(credited.values()) < 2 * COUNT
    left = sums(root)
    assert {(epoch, name): vertices for (epoch, name), (_, vertices) in left.items()} == {
        (epoch, name): vertices for epoch, vertices in credited.items() for name in ("number", "twice")
    }
    assert left[0, "number"] == EXPECTED[0, "number"]


def test_it_is_read_by_epoch_lately_and_in_parts(programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    played(programs / "logs.py", root, CALM)
    with closing(connect(root)) as db:
        assert read_by_epoch(db) == {e: pytest.approx({"number": 199.5, "twice": 2.0}) for e in range(EPOCHS)}
        assert read_recent(db)["twice"] == 2.0
        series, total = read_series(db, 12), COUNT * EPOCHS
        assert 10 <= len([point for point in series if point.name == "twice"]) <= 13
        assert sum(point.vertices for point in series) == 2 * total
        assert [point.credited for point in series] == sorted(point.credited for point in series)
        half = next(point.credited for point in series if point.credited >= total // 2)
        assert {(point.name, point.vertices) for point in read_since(db, half)} == {
            ("number", total - half),
            ("twice", total - half),
        }
        assert read_since(db, total) == []
    shown = CliRunner().invoke(command_line(), ["report", str(root)]).output
    assert "number" in shown and "199.5" in shown
    result = json.loads(CliRunner().invoke(command_line(), ["report", str(root), "--json"]).output)
    assert [round(epoch["logged"]["number"], 6) for epoch in result["epochs"]] == [199.5] * EPOCHS
    assert "twice 2 lately" in CliRunner().invoke(command_line(), ["status", str(root)]).output
    status = json.loads(CliRunner().invoke(command_line(), ["status", str(root), "--json"]).output)
    assert status["logged"]["twice"] == 2.0

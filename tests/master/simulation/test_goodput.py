"""The goodput of simulated runs agrees with the formulas, and no live worker is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunk_model.goodput import Costs, chunk_goodput
from chunk_model.parse import parse
from gridml.api.simulating import make_world, play_run
from gridml.errors import UsageError
from master.backends.simulated_plugin import SimulationOptions
from master.simulation.options import settings_for
from master.simulation.result import SimulationResult, result_of
from master.store.reader import opened

WORKERS, START_S, PUSH_S = 4, 30.0, 0.5
TOLERANCE = 0.08  # a run is finite: machines wait for the last chunk, and a hundred lives are no mean


def play(root: Path, chunk_s: float, **options: object) -> SimulationResult:
    """Play a run of chunks that take about `chunk_s`: of that a turn of the master, in which who waits for the last
    chunk asks once, is a small share."""
    turn = f"{max(1.0, chunk_s / 200):g}"
    world = make_world(None, {"workers": WORKERS, "grace_share": 0.0, "turn": turn, "steps_each": 0, **options}, root)
    play_run(world, root, lambda *event: None)
    return result_of(world, root)


def given_up(root: Path) -> list[str]:
    with opened(root) as ledger:
        rows = ledger.execute("SELECT text FROM events WHERE topic IN ('silent', 'stuck', 'given up', 'relieved')")
        return [text for (text,) in rows]


@pytest.mark.parametrize(
    ("lifetime", "chunk", "exec_s", "push_every"),
    [
        ("normal(45m,10m)", 25_000, 0.05, None),  # README's plan: 29.5% where silence was judged without heartbeats
        ("normal(45m,10m)", 12_868, 0.05, None),
        ("normal(45m,10m)", 25_000, 0.05, 5_000),
        ("normal(45m,10m)", 2_000, 0.5, None),
        ("exponential(2h)", 20_000, 0.05, None),
        ("exponential(2h)", 600, 2.0, None),
        ("weibull(0.7,2h)", 5_000, 0.1, None),
        ("exponential(12h)", 300, 50.0, None),  # a lease of four hours
        ("exponential(48h)", 100, 200.0, None),  # a vertex alone takes longer than the silence that is borne
        ("exponential(48h)", 100, 200.0, 50),
    ],
)
def test_goodput_is_what_the_formulas_say(
    lifetime: str, chunk: int, exec_s: float, push_every: int | None, tmp_path: Path
) -> None:
    push = "" if push_every is None else f",push={PUSH_S}"
    result = play(
        tmp_path / "run",
        chunk * exec_s,
        cost=f"t_x={exec_s},t_s={START_S}{push}",
        vertices=WORKERS * (40 if push_every is None else 10) * chunk,
        lifetime=lifetime,
        chunk=chunk,
        no_push=push_every is None,
        push_every=push_every,
        seed=3,
    )
    assert given_up(tmp_path / "run") == []
    costs = Costs(exec_s, start_s=START_S, push_s=None if push_every is None else PUSH_S)
    predicted = chunk_goodput(parse(lifetime), costs, chunk, many=True, push_every=push_every)
    assert result.report.goodput == pytest.approx(predicted, abs=TOLERANCE)


def test_a_chunk_a_job_is_worth_what_the_plan_says(tmp_path: Path) -> None:
    result = play(
        tmp_path / "run",
        1_250.0,
        cost="t_x=0.05,t_s=90",
        vertices=WORKERS * 40 * 25_000,
        lifetime="normal(45m,10m)",
        chunk=25_000,
        no_push=True,
        chunks_per_job=1,
    )
    assert given_up(tmp_path / "run") == []
    predicted = chunk_goodput(parse("normal(45m,10m)"), Costs(0.05, start_s=90.0), 25_000)
    assert result.report.goodput == pytest.approx(predicted, abs=TOLERANCE)


@pytest.mark.parametrize(("rule", "reason"), [("paper", "fill a life"), ("gaussian", "the paper's search")])
def test_chunks_follow_the_papers_formulas(rule: str, reason: str, tmp_path: Path) -> None:
    result = play(
        tmp_path / "run",
        1_250.0,
        cost="t_x=0.05,t_s=30",
        vertices=500_000,
        lifetime="normal(45m,10m)",
        chunk=rule,
        no_push=True,
    )
    assert given_up(tmp_path / "run") == []
    with opened(tmp_path / "run") as ledger:
        (why,) = ledger.execute("SELECT text FROM events WHERE topic = 'sizing'").fetchone()
    assert reason in why
    assert result.report.status == "finished"


def test_a_rule_that_is_none_is_refused_as_run_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--chunk is 'half'; expected a number of vertices, or goodput or paper"):
        settings_for(SimulationOptions(), tmp_path / "cost.py", {"chunk": "half"})
    with pytest.raises(UsageError, match="--chunk gaussian needs a normal distribution"):
        settings_for(SimulationOptions(lifetime="exponential(1h)"), tmp_path / "cost.py", {"chunk": "gaussian"})
    with pytest.raises(UsageError, match="both --no-push and --push-every"):
        settings_for(SimulationOptions(), tmp_path / "cost.py", {"no_push": True, "push_every": 10})

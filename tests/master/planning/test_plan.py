"""Contents of a plan (the choice and a comparison with other sizes), and error messages that say what to do."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from chunk_model.families import Exponential, Normal, Weibull
from chunk_model.goodput import Costs, chunk_goodput
from chunk_model.lifetime import Lifetime
from gridml.errors import UsageError
from master.backends.script import ScriptedLives
from master.planning.options import PlanOptions
from master.planning.plan import PUSH_S, make_plan, replay_sizes
from master.simulation import cost_only_worker
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.state.options import fields_of, parse_seconds
from master.store.settings import Settings
from master.views import plot
from master.views.render_plan import render_plan, rounded

ASKED = {"lifetime": "normal(45m,10m)", "t_exec": "0.05", "t_start": "90", "no_push": True}
PAPER = PlanOptions(**fields_of(PlanOptions, ASKED))


def shown(options: PlanOptions) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(render_plan(make_plan(options)))
    return out.getvalue()


def observed(tmp_path: Path, count: int = 200) -> Path:
    """Lives of an hour on average, a fifth of them censored."""
    rng = np.random.default_rng(1)
    rows = zip(rng.exponential(3600.0, count), rng.random(count) < 0.8, strict=True)
    path = tmp_path / "lives.csv"
    path.write_text("duration_s,ended\n" + "".join(f"{life:.1f},{int(dead)}\n" for life, dead in rows))
    return path


def test_without_pushes_the_choice_beats_every_other_size() -> None:
    plan = make_plan(PAPER)
    lifetime = Normal(2700.0, 600.0)
    assert plan.choice.push_every is None and plan.choice.push_interval_s is None
    assert plan.choice.goodput == pytest.approx(chunk_goodput(lifetime, plan.costs, plan.choice.chunk))
    sweep = chunk_goodput(lifetime, plan.costs, np.geomspace(10, 1e6, 400).round())
    assert plan.choice.goodput >= 0.99 * sweep.max()
    half, chosen, double, paper = plan.candidates
    assert half.goodput < chosen.goodput > double.goodput and paper.goodput < 0.75 * chosen.goodput
    assert (half.chunk, double.chunk) == (chosen.chunk // 2, 2 * chosen.chunk)
    assert paper.chunk == int(lifetime.mean() / 0.05) and plan.paper is paper
    assert chosen.job_s == pytest.approx(90 + 0.05 * chosen.chunk)


def test_a_push_costs_a_tenth_of_a_second_by_default() -> None:
    options = replace(PAPER, no_push=False)
    assert make_plan(options).costs.push_s == PUSH_S == 0.1
    plan = make_plan(replace(options, push_cost=2.0))
    assert plan.costs.push_s == 2.0 and plan.choice.push_every is not None
    assert plan.choice.push_interval_s == pytest.approx(0.05 * plan.choice.push_every, rel=0.1)
    assert plan.choice.goodput > make_plan(PAPER).choice.goodput
    assert plan.paper.push_every is None and plan.paper.goodput == pytest.approx(make_plan(PAPER).paper.goodput)


def test_each_cost_reaches_the_model() -> None:
    options = replace(PAPER, t_copy=0.01, t_end=4.0, wait=120.0, boot=60.0, many_chunks=True)
    plan = make_plan(options)
    costs = plan.costs
    assert (costs.exec_s, costs.copy_s, costs.start_s, costs.end_s) == (0.05, 0.01, 90.0, 4.0)
    assert (costs.wait_s, costs.boot_s, costs.push_s, plan.work.many) == (120.0, 60.0, None, True)
    assert plan.choice.goodput == pytest.approx(
        chunk_goodput(Normal(2700.0, 600.0), costs, plan.choice.chunk, many=True)
    )


def test_bounds_are_kept() -> None:
    free = make_plan(PAPER).choice.chunk
    assert make_plan(replace(PAPER, largest=free // 3)).choice.chunk <= free // 3
    options = replace(PAPER, no_push=False)
    assert make_plan(replace(options, workers=100, vertices=10_000)).choice.chunk <= 100


def test_a_single_vertex_has_no_half() -> None:
    plan = make_plan(replace(PAPER, lifetime="exponential(1h)", t_exec=3600.0))
    assert plan.choice.chunk == 1 and [size.name for size in plan.candidates] == ["chosen", "double", "the paper's"]


@pytest.mark.parametrize(
    ("lifetime", "text"),
    [
        (Weibull(0.7516027333, 11585.3406), "weibull(0.7516,11585s)"),
        (Exponential(1e-7), "exponential(1e-07s)"),
        (Normal(2700.0, 600.0), "normal(2700s,600s)"),
    ],
)
def test_a_distribution_is_shown_with_few_digits(lifetime: Lifetime, text: str) -> None:
    assert rounded(lifetime) == text


def test_json_has_what_programs_need(tmp_path: Path) -> None:
    plan = make_plan(PAPER).to_json()
    assert {"chunk", "push_interval_s", "goodput", "lifetime", "reason", "curve"} <= plan.keys()
    assert plan["push_interval_s"] is None and plan["families"] is None and plan["regret"] is None
    assert json.loads(json.dumps(plan, allow_nan=False)) == plan
    assert max(point["goodput"] for point in plan["curve"]) <= plan["goodput"] * 1.01
    assert plan["lifetime"] == "normal(2700.0s,600.0s)" and plan["paper"]["chunk"] > plan["chunk"]
    fitted = make_plan(replace(PAPER, lifetime=None, lifetimes=observed(tmp_path))).to_json()
    assert "exponential" in fitted["families"] and 0 <= fitted["regret"]["median"] <= fitted["regret"]["p95"] <= 1
    json.dumps(fitted, allow_nan=False)


def test_what_a_person_reads(tmp_path: Path) -> None:
    plan = make_plan(PAPER)
    text = shown(PAPER)
    assert f"{plan.choice.chunk:,} vertices" in text and f"{plan.choice.goodput:.1%}" in text
    for name in ("half", "chosen", "double", "the paper's"):
        assert name in text
    for size in plan.candidates:
        assert f"{size.chunk:,}" in text and f"{size.goodput:.1%}" in text
    assert "a chunk counts when it ends, or not at all" in text and "left out of the fit" not in text
    pushed = shown(replace(PAPER, no_push=False))
    assert f"every {make_plan(replace(PAPER, no_push=False)).choice.push_every:,} vertices" in pushed
    fitted = shown(replace(PAPER, lifetime=None, lifetimes=observed(tmp_path)))
    assert "left out of the fit" in fitted and "weibull" in fitted and "200 lives in" in fitted


def test_a_replay_agrees_with_the_model(tmp_path: Path) -> None:
    plan = make_plan(replace(PAPER, lifetime="exponential(1h)"))
    for point in replay_sizes(plan):
        model = chunk_goodput(Exponential(3600.0), plan.costs, point.chunk)
        spread = max(point.high - point.low, 1e-3)
        assert point.low <= point.goodput <= point.high and abs(point.goodput - model) < 1.5 * spread
    assert len(replay_sizes(plan)) > 5


def test_lives_that_were_seen_are_replayed_as_seen(tmp_path: Path) -> None:
    """Few deaths are fitted by an exponential, for which chunks may outlive them all; the observed lives correct it."""
    path = tmp_path / "lives.csv"
    path.write_text("duration_s,ended\n" + "".join(f"{600 + i},1\n" for i in range(9)))
    plan = make_plan(replace(PAPER, lifetime=None, lifetimes=path, t_exec=1.0, t_start=0.0))
    short = [point for point in replay_sizes(plan) if 100 < point.chunk < 600]
    assert short and all(point.goodput > 0.99 for point in short)
    assert all(chunk_goodput(plan.choice.lifetime, plan.costs, point.chunk) < 0.95 for point in short)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_it_is_drawn(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"goodput.{ending}"
    plot.plot_plan(make_plan(replace(PAPER, push_cost=1.0, no_push=False)), file)
    assert file.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending])


def test_a_drawing_names_the_choice_and_the_papers(tmp_path: Path) -> None:
    file = tmp_path / "goodput.svg"
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot.plot_plan(plan := make_plan(PAPER), file)
    text = file.read_text()
    assert f"chosen: {plan.choice.chunk:,}" in text and f"without pushes: {plan.paper.chunk:,}" in text
    assert "replayed" in text


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e999", "soon", "", "-0.5s"])
def test_a_time_that_is_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_seconds("--t-start", text)
    assert str(caught.value).startswith(f"--t-start is {text!r}; expected a time of at least 0")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"t_exec": None}, "got no --t-exec"),
        ({"t_exec": "0"}, "--t-exec is 0; expected the time to train a vertex, above 0"),
        ({"push_cost": "1"}, "got --push-cost and --no-push"),
        ({"boot": "60"}, "got --boot without --many-chunks; expected both"),
        ({"workers": 0}, "--workers is 0; expected at least 1"),
        ({"vertices": -5}, "--vertices is -5"),
        ({"largest": 0}, "--largest is 0"),
        ({"t_end": "-1"}, "--t-end is '-1'"),
    ],
)
def test_what_makes_no_sense(change: dict[str, str | int | None], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(PlanOptions(**fields_of(PlanOptions, {**ASKED, **change})))
    assert says in str(caught.value)


def test_a_chunk_that_can_never_finish() -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(replace(PAPER, lifetime="normal(60,5)", t_start=600.0))
    assert "normal(60.0s,5.0s)" in str(caught.value)


def test_without_deaths_so_far(tmp_path: Path) -> None:
    path = tmp_path / "lives.csv"
    path.write_text("duration_s,ended\n" + "600,0\n" * 5)
    plan = make_plan(replace(PAPER, lifetime=None, lifetimes=path))
    assert plan.choice.chunk >= 1 and plan.choice.warnings
    assert "warning:" in shown(replace(PAPER, lifetime=None, lifetimes=path))


def test_a_run_says_what_its_pushes_cost(tmp_path: Path) -> None:
    """The assumed cost of a push is not 0.1 s, which would make pushes so frequent that no work is done."""
    (tmp_path / "cost.py").write_text(cost_only_worker.source(20_000, 1))
    costs = Costs(exec_s=0.01, start_s=0.5, push_s=3.0)
    settings = Settings(tmp_path / "cost.py", backend="simulated", workers=2)
    play_scenario(
        settings, Scenario(ScriptedLives(2, Exponential(120.0), 0, 0.0), costs, travel_s=2.0), tmp_path / "run"
    )
    options = PlanOptions(run=tmp_path / "run")
    plan = make_plan(options)
    assert plan.costs.push_s == pytest.approx(3.0, rel=0.1)
    assert plan.interval_s >= 4.0  # there and back
    assert plan.interval_s > 2 * make_plan(replace(options, push_cost=0.1)).interval_s

"""Options of `gridml simulate` become costs, faults and scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunk_model.goodput import Costs
from gridml.errors import UsageError
from gridml.protocol.messages import NO_PUSH
from master.backends.script import Replay, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulationOptions
from master.simulation.faulty_network import Chances
from master.simulation.options import parse_costs, parse_faults, scenario_for, settings_for
from master.simulation.scenario import MachineSpeeds, Storms


def test_costs_are_named_as_in_the_paper() -> None:
    parsed = parse_costs("t_x=0.05, t_c=1e-3,t_s=1.5m,t_e=2,push=0.5,wait=1h,boot=30s")
    assert parsed == Costs(0.05, 0.001, 90.0, 2.0, 0.5, 3600.0, 30.0)


def test_without_pushes_a_push_costs_nothing_because_there_is_none() -> None:
    assert parse_costs("t_x=1,push=3", no_push=True).push_s is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "''"),
        ("t_x", "'t_x'"),
        ("t_y=1", "'t_y=1'"),
        ("t_x=soon", "'soon'"),
        ("t_x=-1", "'-1'"),
        ("t_x=nan", "'nan'"),
        ("t_s=3", "at least t_x"),
        ("t_x=0", "exec_s"),
    ],
)
def test_costs_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_costs(text)
    assert message in str(caught.value)


def test_faults() -> None:
    assert parse_faults(None) is None
    assert parse_faults("lose=0.1,repeat=0.2,tear=0.3,flip=0.4,delay=5s") == Chances(0.1, 0.2, 0.3, 0.4, 5.0)
    with pytest.raises(UsageError, match="chances from 0 to 1"):
        parse_faults("lose=2")


def test_a_scenario_of_everything(tmp_path: Path) -> None:
    options = SimulationOptions(
        "t_x=1",
        lifetime="exponential(1h)",
        fast=0.12,
        spread=0.2,
        storm_every="20m",
        storm_share=0.4,
        faults="lose=0.1",
        crash_every="1h",
        chunks_per_job=2,
        turn="1",
        travel="2s",
    )
    common = {"workers": 7, "seed": 3, "no_push": True, "silence": "10m"}
    chosen = settings_for(options, tmp_path / "cost.py", common)
    played = scenario_for(options, chosen)
    assert (chosen.workers, chosen.seed, chosen.push_every, chosen.silent_s) == (7, 3, NO_PUSH, 600.0)
    assert isinstance(played.script, Storms)
    assert isinstance(played.script.base, ScriptedLives)
    assert (played.script.every_s, played.script.share, played.script.slots) == (1200.0, 0.4, 7)
    assert played.speeds == MachineSpeeds(0.12, 4.0, 0.2)
    assert (played.crash_every_s, played.chunks_per_job, played.turn_s, played.travel_s) == (3600.0, 2, 1.0, 2.0)


def test_a_trace_says_how_many_workers_there_are(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,a\n1000,add,b\n2000,remove,a\n3000,add,c\n")
    options = SimulationOptions("t_x=1", trace=trace)
    chosen = settings_for(options, tmp_path / "cost.py", {})
    assert chosen.workers == 2
    assert isinstance(scenario_for(options, chosen).script, Replay)
    with pytest.raises(UsageError, match="both --lifetime and --trace"):
        scenario_for(SimulationOptions("t_x=1", trace=trace, lifetime="exponential(1h)"), chosen)


def test_machines_that_stay() -> None:
    settings = settings_for(SimulationOptions(), Path("cost.py"), {"workers": 5})
    assert scenario_for(SimulationOptions("t_x=1"), settings).script == Steady(5)
    with pytest.raises(UsageError, match="--lifetime"):
        scenario_for(SimulationOptions("t_x=1", lifetime="soon"), settings)

"""`gridml simulate`: its output, and messages for mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Answer = tuple[int, str, str]
COMMAND = "simulate"  # that the fixture `gridml` calls
PROGRAM = Path(__file__).parents[2] / "programs" / "tally.py"
SMALL = ("--cost", "t_x=0.1,t_s=1,push=0.1", "--vertices", "3000", "--workers", "10", "--lifetime", "exponential(1m)")


def test_help_shows_an_example(gridml: Callable[..., Answer]) -> None:
    status, out, _ = gridml("--help")
    assert status == 0 and "Example: gridml simulate --cost t_x=0.05,t_s=30" in " ".join(out.split())


def test_what_a_person_sees(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    status, out, err = gridml(*SMALL, "--run-dir", "somewhere")
    assert status == 0
    assert "10 on the simulated back end" in out and "finished" in out and "Ledger" in out
    assert "epoch 1 is credited in full" in err
    assert (tmp_path / "somewhere" / "ledger.db").is_file()


def test_the_same_seed_gives_the_same_ledger(gridml: Callable[..., Answer]) -> None:
    first, second, other = (
        json.loads(gridml(*SMALL, "--seed", seed, "--run-dir", folder, "--json")[1])
        for seed, folder in (("1", "a"), ("1", "b"), ("2", "c"))
    )
    assert first["sha256"] == second["sha256"] != other["sha256"]
    assert first["report"]["credited"] == 3000 and first["report"]["duplicated"] == first["report"]["lost"] == 0
    assert first["report"]["kills"] > 0 and first["decisions"] > 0


def test_letters_that_travel_for_longer_make_the_run_longer(gridml: Callable[..., Answer]) -> None:
    walls = []
    for travel in ("0", "0.5s", "20"):
        status, out, _ = gridml(*SMALL, "--travel", travel, "--run-dir", f"travel-{travel}", "--json")
        found = json.loads(out)["report"]
        assert status == 0 and found["credited"] == 3000 and found["duplicated"] == found["lost"] == 0
        walls.append(found["wall_s"])
    assert walls[0] < walls[1] and walls[0] + 40 <= walls[2]  # a lease and its last push travel both ways


def test_everything_that_can_go_wrong_at_once(gridml: Callable[..., Answer]) -> None:
    faults = ("--faults", "lose=0.05,repeat=0.05,tear=0.05,flip=0.05,delay=3", "--crash-every", "10s")
    storms = ("--storm-every", "15s", "--storm-share", "0.5", "--fast", "0.2", "--spread", "0.3", "--late", "3")
    status, out, _ = gridml(*SMALL, *faults, *storms, "--seed", "1", "--json")
    found = json.loads(out)
    assert status == 0 and found["lost"] > 0
    assert found["report"]["masters"] > 1 and found["report"]["credited"] == 3000


def test_a_program_is_really_trained(gridml: Callable[..., Answer]) -> None:
    status, out, _ = gridml(str(PROGRAM), "--workers", "2", "--cost", "t_x=1,t_s=1", "--json", "--run-dir", "tally")
    found = json.loads(out)["report"]
    assert status == 0 and found["credited"] == 26 and found["epochs_wanted"] in (None, 2)


def test_a_campaign_is_one_run_after_another(gridml: Callable[..., Answer]) -> None:
    status, out, _ = gridml("--campaign", "1", "--seed", "7", "--json")
    found = json.loads(out)
    assert status == 0 and found["seed"] == 7 and found["runs"] == 1 and found["kills"] > 0
    status, out, _ = gridml("--campaign", "1", "--seed", "7")
    assert status == 0 and f"{found['kills']:,} kills in 1 runs (seeds 7 to 7)" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cost", "t_x=-1"), "--cost"),
        (("--cost", "t_s=1"), "at least t_x"),
        (("--faults", "lose=2"), "chances from 0 to 1"),
        (("--lifetime", "soon"), "--lifetime"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--workers", "0"), "--workers is 0"),
        (("--crash-every", "-3"), "--crash-every"),
        (("--storm-every", "20m", "--storm-share", "2", "--lifetime", "exponential(1h)"), "a storm takes a share"),
        (("--fast", "2"), "share of fast machines"),
        ((str(PROGRAM), "--vertices", "9"), "a program and --vertices"),
        (("nowhere.py",), "nowhere.py"),
        (("--campaign", "0"), "a campaign of 0 kills"),
        (("--campaign", "5", "--seed", "-4"), "--seed is -4"),
        (("--seed", "-1"), "--seed is -1"),
        (("--seed", "99999999999"), "--seed is 99999999999"),
        (("--spread", "500"), "spread of speeds is 500"),
        (("--fast", "1", "--fast-factor", "1e-300"), "1e-300 times as fast"),
        (("--cost", "t_x=1e300"), "t_x in --cost is '1e300'"),
        (("--cost", "t_x=1e-300"), "t_x in --cost is '1e-300'"),
        (("--cost", "t_x=1e-9"), "expected at least 1e-08 s"),
        (("--cost", "t_x=1,t_s=2h", "--lifetime", "normal(45m,10m)"), "no chunk could ever finish"),
        (
            ("--chunk", "9000", "--no-push", "--cost", "t_x=1", "--lifetime", "normal(45m,10m)", "--grace-share", "0"),
            "9,000 s of work",
        ),
        (("--chunks-per-job", "-1"), "--chunks-per-job is -1"),
        (("--storm-every", "20m", "--storm-share", "1e-12"), "a storm takes a share"),
        (("--storm-every", "0.1"), "storms come every 0.1 s"),
        (("--faults", "delay=1e9"), "expected at most 86400 s"),
        (("--faults", "lose=often"), "expected a chance"),
        (("--turn", "0"), "--turn is '0'"),
        (("--travel", "-1"), "--travel is '-1'"),
        (("--travel", "nan"), "--travel is 'nan'"),
        (("--travel", "2d"), "--travel is '2d'; expected at most 86400 s"),
        (("--travel", "2m"), "a worker's first message takes 120 s"),
        (("--silence", "0"), "--silence is 0.0; expected a number above 0"),
        (("--cost", "t_x=1,t_s=20m"), "--silence is 120 s, but it takes 1,200 s to start a chunk"),
        (("--late", "2"), "--late 2 without --lifetime"),
        (("--vertices", "99999999999999"), "--vertices is 99999999999999"),
        (("--vertices", "0"), "--vertices is 0"),
        (("--workers", "99999999999999"), "--workers is 99,999,999,999,999; expected at most 1,000,000"),
        (("--run-dir", "/proc/x"), "/proc/x cannot be made"),
    ],
)
def test_one_message_for_a_mistake(
    gridml: Callable[..., Answer], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    status, _, err = gridml(*arguments)
    assert status == 2 and err.startswith("Error: ") and said in err and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1 and not list(tmp_path.iterdir())


def test_nothing_of_the_users_is_overwritten(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("precious = 1\n")
    assert gridml(*SMALL, "--run-dir", "mine")[0] == 0
    assert mine.read_text() == "precious = 1\n" and {path.name for path in tmp_path.iterdir()} == {"mine", "mine.py"}
    status, _, err = gridml(*SMALL, "--run-dir", "mine")
    assert status == 2 and "holds a run already" in err
    kept = tmp_path / "other" / "program" / "cost.py"
    kept.parent.mkdir(parents=True)
    kept.write_text("precious = 2\n")
    status, _, err = gridml(*SMALL, "--run-dir", "other")
    assert status == 2 and "holds other files" in err and kept.read_text() == "precious = 2\n"


def test_a_simulation_that_memory_cannot_hold_gets_one_message(
    gridml: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("master.simulation.world.play", full)
    status, _, err = gridml(*SMALL)
    assert status == 2 and "does not fit into memory" in err

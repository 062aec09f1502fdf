"""`gridml launch` on instances that really boot: interrupted, replaced, surviving their master, removed at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pools.ec2 import control, root

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).parent / "launched.py"
LIMIT_S = 300
VERTICES = 6 * 4_000


@pytest.fixture(scope="module")
def play(bootable: root.Root, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """A function that plays one of the script's runs in a local EC2 and a new folder, which "place" names."""

    def played(name: str) -> dict[str, Any]:
        place = tmp_path_factory.mktemp(name)
        command = control.command(bootable, place, [sys.executable, str(SCRIPT), name, str(place)])
        done = subprocess.run(command, env=control.environment(), capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout), "place": place}

    return played


@pytest.fixture(scope="module")
def taken(play: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return play("taken")


def is_exact(report: dict[str, Any]) -> bool:
    credits = (report["credited"], report["duplicated"], report["lost"])
    return report["status"] == "finished" and credits == (VERTICES, 0, 0)


def test_the_run_ends_with_every_vertex_credited_once(taken: dict[str, Any]) -> None:
    assert taken["status"] == 0
    assert is_exact(taken["report"])


def test_who_is_interrupted_says_goodbye_and_nothing_that_it_trained_is_lost(taken: dict[str, Any]) -> None:
    status, evicted = taken["goodbye"]
    assert (status, evicted) == (0, True)
    credited, in_vain, _ = taken["work"]
    assert credited > 0
    assert in_vain == 0


def test_who_is_interrupted_is_replaced(taken: dict[str, Any]) -> None:
    assert taken["report"]["lives"] >= 3


def test_nothing_of_the_run_is_left_on_ec2(taken: dict[str, Any]) -> None:
    assert taken["left"] == ""


def test_no_console_shows_the_fleets_token(taken: dict[str, Any]) -> None:
    consoles = list(taken["place"].glob("consoles/*.console"))
    assert consoles
    assert not [path for path in consoles if taken["token"].encode() in path.read_bytes()]


def test_a_later_master_goes_on_with_the_instances_of_one_that_was_killed(
    play: Callable[[str], dict[str, Any]],
) -> None:
    outcome = play("resumed")
    assert outcome["status"] == 0
    assert is_exact(outcome["report"])
    assert len(outcome["launched"]) == 2
    assert outcome["left"] == ""


def test_a_run_whose_master_was_killed_can_be_cancelled(play: Callable[[str], dict[str, Any]]) -> None:
    outcome = play("cancelled")
    assert (outcome["status"], outcome["left"]) == (0, "")


def test_instances_whose_master_is_gone_end_themselves(play: Callable[[str], dict[str, Any]]) -> None:
    outcome = play("orphaned")
    assert len(outcome["by_themselves"]) == 2
    assert not [id for id in outcome["by_themselves"] if id in outcome["before"]]
    assert outcome["before"] != ""  # the launch template
    assert (outcome["status"], outcome["left"]) == (0, "")

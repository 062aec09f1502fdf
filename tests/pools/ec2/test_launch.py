"""`gridml launch` on instances that really boot: one is taken and replaced, its work is kept, and all is removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pools.ec2 import inside, root

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).parent / "launched.py"
LIMIT_S = 300
VERTICES = 6 * 4_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launch")


@pytest.fixture(scope="module")
def outcome(bootable: root.Root, folder: Path, programs: Path) -> dict[str, Any]:
    command = inside.command(
        bootable, folder, [sys.executable, str(SCRIPT), str(programs / "slow_count.py"), str(folder)]
    )
    done = subprocess.run(command, env=inside.environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_run_ends_with_every_vertex_credited_once(outcome: dict[str, Any]) -> None:
    report = outcome["report"]
    assert (outcome["status"], report["status"]) == (0, "finished")
    assert (report["credited"], report["duplicated"], report["lost"]) == (VERTICES, 0, 0)


def test_who_is_interrupted_says_goodbye_and_nothing_that_it_trained_is_lost(outcome: dict[str, Any]) -> None:
    status, evicted = outcome["farewell"]
    assert (status, evicted) == (0, True)
    credited, in_vain, _ = outcome["work"]
    assert credited > 0
    assert in_vain == 0


def test_who_is_interrupted_is_replaced(outcome: dict[str, Any]) -> None:
    assert outcome["report"]["lives"] >= 3


def test_nothing_of_the_run_is_left_on_ec2(outcome: dict[str, Any]) -> None:
    assert outcome["left"] == ""


def test_no_console_shows_the_fleets_token(outcome: dict[str, Any], folder: Path) -> None:
    consoles = list(folder.glob("consoles/*.console"))
    assert consoles
    assert not [path for path in consoles if outcome["token"].encode() in path.read_bytes()]

"""A ledger that is removed, replaced or changed under its master: the master says so and ends, and its advice works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from master.simulation.result import verify_credits
from tests.support.effort import first

pytestmark = pytest.mark.real
GRIDML = str(Path(sys.executable).with_name("gridml"))
LIMIT_S = 120
EPOCHS, COUNT = 4, 1_200


def rename_over(root: Path) -> None:
    shutil.copy(root / "ledger.backup.db", root / "other.db")
    (root / "other.db").rename(root / "ledger.db")


def overwrite(root: Path, content: bytes) -> None:
    """As `cp` does: the file stays the same one."""
    with (root / "ledger.db").open("r+b") as file:
        file.truncate(0)
        file.write(content)


HARMS: dict[str, Callable[[Path], object]] = {
    "unlink": lambda root: (root / "ledger.db").unlink(),
    "rename over": rename_over,
    "truncate to half": lambda root: os.truncate(root / "ledger.db", (root / "ledger.db").stat().st_size // 2),
    "directory moved away": lambda root: root.rename(root.with_name("moved")),
    "rename away": lambda root: (root / "ledger.db").rename(root / "other.db"),
    "truncate to 0": lambda root: os.truncate(root / "ledger.db", 0),
    "unlink the log": lambda root: (root / "ledger.db-wal").unlink(),
    "truncate the log": lambda root: os.truncate(root / "ledger.db-wal", 0),
    "cp over of another file": lambda root: overwrite(root, os.urandom((root / "ledger.db").stat().st_size)),
}
HARMLESS: dict[str, Callable[[Path], object]] = {
    "touch": lambda root: os.utime(root / "ledger.db"),
    "cp over of itself": lambda root: overwrite(root, (root / "ledger.db").read_bytes()),
    "cp over of its copy": lambda root: overwrite(root, (root / "ledger.backup.db").read_bytes()),
}


def harmed(programs: Path, folder: Path, harm: Callable[[Path], Any]) -> tuple[int, str]:
    """Harm the ledger of a run once an epoch has ended. Return the master's exit status and output."""
    source, root = folder / "count.py", folder / "run"
    sized = f"COUNT, EPOCHS = {COUNT}, {EPOCHS}"
    source.write_text((programs / "slow_count.py").read_text().replace("COUNT, EPOCHS = 4_000, 2", sized))
    command = [GRIDML, "run", str(source), "--workers", "3", "--push-every", "50", "--run-dir", str(root), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as master:
        assert master.stdout is not None
        for line in master.stdout:
            if json.loads(line).get("topic") == "epoch":
                break
        harm(root)
        output, _ = master.communicate(timeout=LIMIT_S)
    return master.returncode, output


@pytest.mark.parametrize("kind", first(3, HARMS))
def test_a_master_whose_ledger_is_harmed_says_so(programs: Path, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "run"
    status, output = harmed(programs, tmp_path, HARMS[kind])
    said = next(line for line in output.splitlines() if line.startswith("Error: "))
    assert status in (6, 7) and "Traceback" not in output and '"topic": "finished"' not in output, output
    assert f"gridml resume {root}" in said and ("gone" in said or "replaced" in said or "cannot be read" in said), said
    if kind == "directory moved away":
        root.with_name("moved").rename(root)
    elif kind == "rename away":
        (root / "other.db").rename(root / "ledger.db")
    else:
        advice = re.search(r"(rm -f .*?) && gridml resume", said)
        assert advice is not None, said
        subprocess.run(advice[1], shell=True, check=True)
    done = subprocess.run([GRIDML, "resume", str(root)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert verify_credits(root).credited == EPOCHS * COUNT


@pytest.mark.parametrize("kind", first(1, HARMLESS))
def test_what_does_no_harm_ends_no_run(programs: Path, tmp_path: Path, kind: str) -> None:
    """A page that was overwritten is in the write-ahead log, too, and comes back from there; or the master says so."""
    status, output = harmed(programs, tmp_path, HARMLESS[kind])
    if kind == "cp over of its copy" and status:
        assert status == 7 and '"topic": "finished"' not in output
        return
    assert status == 0, output
    assert verify_credits(tmp_path / "run").credited == EPOCHS * COUNT

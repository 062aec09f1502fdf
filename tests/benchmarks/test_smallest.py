"""Every benchmark runs, in its smallest form: what nobody has run for weeks would otherwise fail when it is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import table

ROOT = Path(table.__file__).parents[1]
HELPERS = {  # what others run in processes of their own
    *("carriers.chirp", "example_loop", "placement.trial", "plain_loop"),
}
LEFT_OUT = {
    # Raise daemons.
    *("condor.chunks", "condor.evictions", "condor.holds", "condor.latency", "local_ec2", "unattended"),
    "placement.again",  # reads graphs of GRIDML_DATA
    # Their smallest form takes too long still, or was never seen to end.
    *("averaging", "averaging.choices", "averaging.real", "averaging.tails", "averaging.time", "averaging.traces"),
    *("campaign", "carriers", "chunk_size", "devices", "hostile", "hostile_steps", "kills", "large_replicas"),
    *("local_goodput", "new_user", "overhead", "placed_runs", "recalibration", "sizes", "spot.replay"),
}


def benchmarks() -> Iterator[str]:
    """The names of all benchmarks, as `python -m benchmarks.NAME` has them."""
    folder = ROOT / "benchmarks"
    for path in sorted(folder.rglob("*.py")):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__main__")
            if name not in HELPERS and not name.startswith("new_user.loops"):
                yield name


def run(name: str, folder: Path) -> None:
    """Run a benchmark; skip the test where the benchmark says what this machine lacks."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--smallest"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.startswith("skipped: ") or done.stderr.startswith("GRIDML_DATA"):
        pytest.skip(f"{name}: {(done.stdout or done.stderr).removeprefix('skipped: ').strip()}")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in benchmarks() if name not in LEFT_OUT])
def test_it_runs(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


def test_what_is_left_out_is_there() -> None:
    assert {*benchmarks()} >= LEFT_OUT


def test_nothing_of_the_smallest_form_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table.results() == table.RESULTS
    monkeypatch.setattr(sys, "argv", ["benchmark", "--smallest"])
    assert table.results() != table.RESULTS and table.results().is_dir()

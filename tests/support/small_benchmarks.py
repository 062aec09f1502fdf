"""Benchmarks in their smallest form, and tiny data sets for them in the form of the real ones."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import table

ROOT = Path(table.__file__).parents[1]
HELPERS = {  # modules that benchmarks run in other processes
    *("carriers.chirp", "example_loop", "placement.trial", "plain_loop"),
}
# These start daemons.
ALONE = {
    "carriers",
    *("condor.chunks", "condor.evictions", "condor.holds", "condor.latency", "condor.stages"),
    "unattended",
}
LEFT_OUT = {
    "local_ec2": "it boots machines from an image that takes minutes to make, as root",
    "large_replicas": "seven processes with torch take half a minute of CPU",
    "placement.figures": "tests/benchmarks/placement/test_figures.py runs it",
}


def benchmarks() -> Iterator[str]:
    """Yield the names of all benchmarks, as in `python -m benchmarks.NAME`."""
    folder = ROOT / "benchmarks"
    for path in sorted(folder.rglob("*.py")):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__main__")
            if name not in HELPERS and not name.startswith("new_user.loops"):
                yield name


def run(name: str, folder: Path) -> None:
    """Run a benchmark; skip the test if the benchmark reports that this machine lacks something."""
    data = folder / "data"
    write_data(data)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--smallest"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "GRIDML_DATA": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.startswith("skipped: "):
        pytest.skip(f"{name}: {done.stdout.removeprefix('skipped: ').strip()}")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout


def write_data(folder: Path) -> None:
    """Write prices of a market of spot instances, machines that came and went, and a graph."""
    for place in ("spot/bamboo", "snap"):
        (folder / place).mkdir(parents=True)
    days = [f"2015-{month:02}-{day:02}T00:00:00Z" for month in (1, 2, 3) for day in range(1, 29)]
    with gzip.open(folder / "spot" / "aws-spot-price-2015.csv.gz", "wt") as prices:
        prices.write("timestamp,instance_type,zone,product,price_usd_per_h\n")
        for number, day in enumerate(days):
            dollars = 0.05 if number % 5 else 0.3
            prices.writelines(f"{day},c3.xlarge,us-east-1{zone},Linux,{dollars}\n" for zone in "abc")
    events = ((0, "add", 1), (0, "add", 2), (7, "remove", 1), (8, "remove", 2), (9, "add", 3), (9, "add", 4))  # hours
    trace = "".join(f"{3_600_000 * hour},{what},n{node}\n" for hour, what, node in events)
    (folder / "spot" / "bamboo" / "p3-trace.csv").write_text(trace)
    with gzip.open(folder / "snap" / "ca-condmat-cc1.edges.gz", "wt") as edges:
        edges.writelines(f"{k} {(7 * k + step) % 300}\n" for k in range(300) for step in (1, 5, 30))

"""Benchmarks in their smallest form, and tiny data sets for them in the form of the real ones."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
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
LIMIT_S, TAKE_DOWN_S = 240.0, 50.0  # below the limit of a test, so that what it prints last is seen
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
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{name}", "--smallest"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "GRIDML_DATA": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except BaseException:  # also the time limit of the test
        # Interrupted, it takes down the daemons that it raised; killed, it would leave them to slow all later tests.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=TAKE_DOWN_S)
        process.kill()
        process.communicate()
        raise
    if out.startswith("skipped: "):
        pytest.skip(f"{name}: {out.removeprefix('skipped: ').strip()}")
    assert process.returncode == 0, f"{out[-2000:]}\n{err[-4000:]}"
    assert out


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

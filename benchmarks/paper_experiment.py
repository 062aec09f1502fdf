"""The paper's experiment in simulation: 2,600 machines that live 45 minutes, 12% with AVX, one epoch of ImageNet.

The paper reports 0.87 hours and 12 TFLOPS. Together they say what an image cost: 29.3 GFLOP. What a machine gave is not
said; here one without AVX gives 4 GFLOPS and one with it four times that, 14.1 TFLOPS in all if nothing was ever lost.

    python -m benchmarks.paper_experiment
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import Cell, write
from chunk_model.costs import Costs
from chunk_model.families import Normal
from chunk_model.paper import deterministic_chunk
from master.backends.script import Lives
from master.settings import Settings
from master.simulation import cost_program
from master.simulation.asked import NO_PUSH
from master.simulation.outcome import outcome
from master.simulation.scenario import Scenario, Speeds
from master.simulation.simulate import simulate

WORKERS, IMAGES = 2_600, 1_281_167
LIFE = Normal(2_700.0, 600.0)
HOURS, TFLOPS = 0.87, 12.0  # of the paper
IMAGE_FLOP = TFLOPS * 1e12 * HOURS * 3_600 / IMAGES
PLAIN_FLOPS, AVX, FACTOR = 4e9, 0.12, 4.0
COSTS = Costs(
    exec_s=IMAGE_FLOP / PLAIN_FLOPS, copy_s=0.01, start_s=1.0, end_s=1.0, push_s=0.5, wait_s=20.0, boot_s=30.0
)


@dataclass(frozen=True)
class Way:
    """A way to size chunks: vertices a chunk (None: as the run sees fit), with pushes or without, chunks a job."""

    name: str
    chunk: int | None
    pushes: bool
    chunks_per_job: int


def main() -> None:
    paper = deterministic_chunk(LIFE.mean(), COSTS)
    ways = (
        Way("gridml", None, True, 0),
        Way("gridml, no pushes", None, False, 0),
        Way("paper: a life's worth, a job each", paper, False, 1),
        Way("half of the paper's", paper // 2, False, 1),
        Way("a tenth of the paper's", paper // 10, False, 1),
    )
    rows: list[dict[str, Cell]] = []
    for way in ways:
        rows.append(measure(way))
        print(rows[-1], flush=True)
    write(
        "paper_experiment",
        f"{WORKERS:,} machines, {IMAGES:,} images, lives of 45 minutes, {AVX:.0%} with AVX: one epoch",
        rows,
        [
            f"the paper: {HOURS} h and {TFLOPS:g} TFLOPS, so {IMAGE_FLOP / 1e9:.1f} GFLOP an image",
            f"assumed: {PLAIN_FLOPS / 1e9:g} GFLOPS a machine, {FACTOR:g} times that with AVX; seconds: t_x "
            f"{COSTS.exec_s:.2f} without AVX, t_c {COSTS.copy_s:g}, t_s {COSTS.start_s:g}, t_e {COSTS.end_s:g}, "
            f"a push {COSTS.push_s:g}, a job's boot {COSTS.boot_s:g}, the queue {COSTS.wait_s:g}; half of the "
            "evictions come with a warning",
            "TFLOPS: of credited images over the epoch's wall time; goodput: their share of the machines' time",
        ],
    )


def measure(way: Way) -> dict[str, Cell]:
    """Simulate one epoch."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    try:
        program = folder / "imagenet.py"
        program.write_text(cost_program.source(IMAGES, 1))
        scenario = Scenario(
            Lives(WORKERS, LIFE, seed=1, late=0),
            COSTS,
            Speeds(AVX, FACTOR),
            turn_s=1.0,
            chunks_per_job=way.chunks_per_job,
        )
        settings = Settings(
            program,
            backend="simulated",
            workers=WORKERS,
            chunk=way.chunk,
            push_every=None if way.pushes else NO_PUSH,
            silent_s=7_200.0,
        )
        found = outcome(simulate(settings, scenario, folder / "run"), folder / "run").report
    finally:
        shutil.rmtree(folder)
    assert found.duplicated == found.lost == 0 and found.credited == IMAGES
    return {
        "way": way.name,
        "chunk": way.chunk,
        "hours": round(found.wall_s / 3_600, 3),
        "TFLOPS": round(IMAGES * IMAGE_FLOP / found.wall_s / 1e12, 2),
        "goodput": None if found.goodput is None else round(found.goodput, 3),
        "kills": found.kills,
        "wasted images": found.wasted,
    }


if __name__ == "__main__":
    main()

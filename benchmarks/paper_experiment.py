"""The paper's experiment in simulation: 2,600 machines that live 45 minutes, 12% with AVX, one epoch of ImageNet.

The paper reports 0.87 hours and 12 TFLOPS. Together they say what an image cost: 29.3 GFLOP. What a machine gave is not
said; here one without AVX gives 4 GFLOPS and one with it four times that, 14.1 TFLOPS in all if nothing was ever lost.

    python -m benchmarks.paper_experiment
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.table import Cell, write
from chunk_model.costs import Costs
from chunk_model.families import Normal
from chunk_model.paper import deterministic_chunk
from gridml.protocol.messages import NO_PUSH
from master.backends.script import Lives
from master.simulation import cost_program
from master.simulation.result import result_of
from master.simulation.scenario import Scenario, Speeds
from master.simulation.world import play_scenario
from master.store.settings import Settings

WORKERS, IMAGES = 2_600, 1_281_167
LIFE = Normal(2_700.0, 600.0)
HOURS, TFLOPS = 0.87, 12.0  # of the paper
IMAGE_FLOP = TFLOPS * 1e12 * HOURS * 3_600 / IMAGES
SEEDS = 9
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
        Way("gridml, the paper's size, a job each", paper, False, 1),
    )
    rows = [measure(way) for way in ways]
    rows += [
        as_in_the_paper(name, size)
        for name, size in (
            ("the paper's way: a life's worth", paper),
            ("the paper's way, half of that", paper // 2),
            ("the paper's way, a tenth of that", paper // 10),
        )
    ]
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
            "the paper's way: a job for each chunk, all of one size; what is killed is begun again by another job "
            f"(played by a loop of this file's own, median of {SEEDS} seeds). gridml's chunks shrink as an epoch ends",
            "TFLOPS: of credited images over the epoch's wall time; goodput: their share of the machines' time, idling "
            "included (the paper's way: of the time of jobs)",
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
        report = result_of(play_scenario(settings, scenario, folder / "run"), folder / "run").report
    finally:
        shutil.rmtree(folder)
    assert report.duplicated == report.lost == 0 and report.credited == IMAGES
    return row(way.name, way.chunk, report.wall_s, report.goodput, report.kills)


def as_in_the_paper(name: str, chunk: int) -> dict[str, Cell]:
    """Jobs of one chunk each: the next job of a machine lives anew, and one that is killed brings nothing home."""
    played = sorted(_jobs(chunk, seed) for seed in range(SEEDS))
    return row(name, chunk, *played[SEEDS // 2])


def _jobs(chunk: int, seed: int) -> tuple[float, float, int]:
    """(seconds until all is credited, goodput, kills)."""
    rng = np.random.default_rng(seed)
    fast = rng.random(WORKERS) < AVX
    sizes = [chunk] * (IMAGES // chunk) + ([IMAGES % chunk] if IMAGES % chunk else [])
    free = deque(range(WORKERS))
    running: list[tuple[float, int, int, bool]] = []  # (when a job ends, its machine and images, whether it is killed)
    now_s = worker_s = useful_s = 0.0
    kills = 0
    while sizes or running:
        while sizes and free:
            slot, size = free.popleft(), sizes.pop()
            exec_s = COSTS.exec_s / (FACTOR if fast[slot] else 1.0)
            needs_s = COSTS.boot_s + COSTS.start_s + size * (exec_s + COSTS.copy_s) + COSTS.end_s
            lives_s = float(LIFE.sample(rng, 1)[0])
            ends_s = now_s + COSTS.wait_s + min(needs_s, lives_s)
            heapq.heappush(running, (ends_s, slot, size, lives_s < needs_s))
            worker_s += min(needs_s, lives_s)
            useful_s += 0.0 if lives_s < needs_s else size * exec_s
        now_s, slot, size, killed = heapq.heappop(running)
        free.append(slot)
        if killed:
            kills += 1
            sizes.append(size)
    return now_s, useful_s / worker_s, kills


def row(name: str, chunk: int | None, wall_s: float, goodput: float | None, kills: int) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        "way": name,
        "chunk": chunk,
        "hours": round(wall_s / 3_600, 3),
        "TFLOPS": round(IMAGES * IMAGE_FLOP / wall_s / 1e12, 2),
        "goodput": None if goodput is None else round(goodput, 3),
        "kills": kills,
    }
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()

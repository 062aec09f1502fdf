"""The paper's experiment in simulation: 2,600 machines that live 45 minutes, 12% with AVX, 1.8 million images once.

The paper reports 0.87 hours, 3.1 times as fast as a Titan, and 12 TFLOPS, which is a peak. Here all working machines
together have that peak. The paper does not name its network. Its figures bound the cost of an image from above: the
Titan trains 185 images a second, and at the peak all machines would train one in 20.9 GFLOP. No variant can finish
sooner than the paper's run at that cost. An image of AlexNet, the usual network of the time, costs a fifth.

    python -m benchmarks.paper_experiment [large]

`large` also measures a replica of 100 MB, which takes much longer.
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.arguments import sized, words
from benchmarks.table import Cell, write
from chunk_model.families import Normal
from chunk_model.goodput import Costs
from chunk_model.paper import deterministic_chunk
from gridml.protocol.messages import NO_PUSH
from master.backends.script import ScriptedLives
from master.simulation import cost_only_worker
from master.simulation.result import result_of
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings

CORES, EPOCH = 2_600, 1_800_000  # and images, of the paper
WORKERS, IMAGES = sized((CORES, EPOCH), (4, 2_800))
LIFE = Normal(2_700.0, 600.0)  # the mean is the paper's, the deviation ours
HOURS, PEAK_FLOPS = 0.87, 12e12  # of the paper
AVX, FACTOR = 0.12, 4.0  # the share is the paper's, the factor ours
PLAIN_FLOPS = PEAK_FLOPS / (CORES * (1 - AVX + AVX * FACTOR))
IMAGE_FLOP = PEAK_FLOPS * HOURS * 3_600 / EPOCH  # at most: if the peak had lasted
# Three times the 724 million multiply-adds of the layers, forward (Krizhevsky, Sutskever and Hinton, 2012, Figure 2).
ALEXNET_FLOP = 3 * 2 * 724e6
FASTER = 3.1  # than one Titan, says the paper
TITAN_RATE = EPOCH / (HOURS * FASTER * 3_600)  # images a second
TITAN_FLOPS = 4.5e12  # in single precision, by its data sheet
SEEDS = sized(9, 1)
COSTS = Costs(
    exec_s=IMAGE_FLOP / PLAIN_FLOPS, copy_s=0.01, start_s=1.0, end_s=1.0, push_s=0.5, wait_s=20.0, boot_s=30.0
)
REPLICAS = {25: 0.14, 100: 0.9}  # MB: CPU seconds to read, merge and answer a push of it (results/limits.md)
USUAL, LARGE = REPLICAS


@dataclass(frozen=True)
class Way:
    """A way to size chunks."""

    name: str
    chunk: int | None  #: vertices; None: chosen by the run
    pushes: bool  #: replicas are pushed within a chunk
    chunks_per_job: int = 0
    replica: int = USUAL  #: MB
    image_flop: float = IMAGE_FLOP

    @property
    def costs(self) -> Costs:
        """The costs on a machine without AVX."""
        return replace(COSTS, exec_s=self.image_flop / PLAIN_FLOPS)


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch."""

    wall_s: float
    goodput: float | None  #: the useful share of the machines' time
    kills: int  #: workers killed
    leases: int  #: leases begun
    pushes: int  #: pushes merged


def main() -> None:
    asked = words(__doc__, choices=["large"])
    paper = deterministic_chunk(LIFE.mean(), COSTS)
    ways = (
        Way("gridml", None, True),
        Way("gridml, no pushes", None, False),
        Way("gridml, half of the paper's size, a job each", paper // 2, False, 1),
        Way("gridml, AlexNet", None, True, image_flop=ALEXNET_FLOP),
        Way("gridml, no pushes, AlexNet", None, False, image_flop=ALEXNET_FLOP),
        *(Way(f"gridml, a replica of {LARGE} MB", None, True, replica=LARGE) for _ in asked),
    )
    rows = [measure(way) for way in sized(ways, ways[1:2])]
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
            f"the paper: {HOURS} h, {FASTER} times as fast as a Titan, and {PEAK_FLOPS / 1e12:g} TFLOPS at the peak. "
            f"So the Titan trains {TITAN_RATE:.0f} images a second; Titans: the same, of a row. Here all working "
            f"machines together have that peak ({PLAIN_FLOPS / 1e9:.1f} GFLOPS each, {FACTOR:g} times that with AVX)",
            f"GFLOP: of an image. The paper does not name its network. {IMAGE_FLOP / 1e9:.1f} is too much: it fills "
            f"{HOURS} h at the peak, so no row with it can be as fast as the paper, and the Titan would reach "
            f"{TITAN_RATE * IMAGE_FLOP / TITAN_FLOPS:.0%} of its data sheet's {TITAN_FLOPS / 1e12:g} TFLOPS. With "
            f"{ALEXNET_FLOP / 1e9:.1f}, as AlexNet's layers have, it would reach "
            f"{TITAN_RATE * ALEXNET_FLOP / TITAN_FLOPS:.0%}",
            f"assumed: lives normal(45m,10m); the mean is the paper's; seconds: t_x {COSTS.exec_s:.2f} "
            f"without AVX, t_c {COSTS.copy_s:g}, t_s {COSTS.start_s:g}, t_e {COSTS.end_s:g}, a push "
            f"{COSTS.push_s:g}, a job's boot {COSTS.boot_s:g}, the queue {COSTS.wait_s:g}; workers get no notice of an "
            "eviction",
            f"merging: a push keeps the master busy for {REPLICAS[USUAL]:g} s, as measured with {USUAL} MB "
            f"({REPLICAS[LARGE]:g} s: {LARGE} MB; limits.md), one after another; busy: the share of the epoch in which "
            "it merges",
            f"the paper's size: n = T/(t_c + t_x) = {paper:,}; half of it, in gridml from the first lease to the last "
            "(checked), is pushed once it is fully trained. leases: all that were granted; those beyond the pushes "
            "were lost. By the whole of it gridml had not finished after 5.9 h, with 1,314 images left: an idle "
            "machine ages, so the last chunks, which are as long as a mean life, are killed again and again",
            "the paper's way: a job for each chunk, all of one size; another job repeats a killed one (played by a "
            f"loop in this file, median of {SEEDS} seeds). gridml's own chunks shrink at the end of an epoch",
            "TFLOPS: of credited images over the epoch's wall time; goodput: their share of the machines' time, idling "
            "included (the paper's way: of the time of jobs)",
            "left out: the network (the replica goes to every machine at first, 65 GB of 25 MB each), reading and "
            "cutting the images, evaluation, and the quality of the merged replica: averaging cannot use as many "
            "workers on one epoch (averaging.md; all are requested here, --steps-each 0)",
        ],
    )


def measure(way: Way) -> dict[str, Cell]:
    """Simulate one epoch."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    try:
        program = folder / "imagenet.py"
        program.write_text(cost_only_worker.source(IMAGES, 1))
        scenario = Scenario(
            ScriptedLives(WORKERS, LIFE, seed=1, late=0, graceful_share=0.0),
            way.costs,
            MachineSpeeds(AVX, FACTOR),
            turn_s=1.0,
            chunks_per_job=way.chunks_per_job,
            merge_s=REPLICAS[way.replica],
        )
        settings = Settings(
            program,
            backend="simulated",
            workers=WORKERS,
            chunk=way.chunk,
            push_every=None if way.pushes else NO_PUSH,
            steps_each=0,
            silent_s=7_200.0,
        )
        report = result_of(play_scenario(settings, scenario, folder / "run"), folder / "run").report
        leases, pushes = check_chunks(folder / "run", way)
    finally:
        shutil.rmtree(folder)
    assert report.duplicated == report.lost == 0 and report.credited == IMAGES
    return row(way, Epoch(report.wall_s, report.goodput, report.kills, leases, pushes))


def check_chunks(root: Path, way: Way) -> tuple[int, int]:
    """Return the number of leases, and of merged pushes. Raises AssertionError if a chunk does not have the requested
    size, or was pushed in parts."""
    with opened(root) as ledger:
        sizes = [stop - start for start, stop in ledger.execute("SELECT start, stop FROM leases")]
        pushes = int(ledger.execute("SELECT sum(pushes) FROM versions").fetchone()[0])
    if way.chunk is not None:
        rest = IMAGES % way.chunk
        assert set(sizes) <= {way.chunk, rest}, f"chunks of {sorted(set(sizes))[:5]} vertices"
        assert pushes == -(-IMAGES // way.chunk), f"{pushes} pushes"
    return len(sizes), pushes


def as_in_the_paper(name: str, chunk: int) -> dict[str, Cell]:
    """Return the table's line of the paper's setting: jobs of one chunk each. The next job of a machine gets a new
    life, and a killed job is lost whole."""
    played = sorted(_jobs(chunk, seed) for seed in range(SEEDS))
    wall_s, goodput, kills = played[SEEDS // 2]
    chunks = -(-IMAGES // chunk)
    return row(Way(name, chunk, False, 1), Epoch(wall_s, goodput, kills, chunks + kills, chunks))


def _jobs(chunk: int, seed: int) -> tuple[float, float, int]:
    """Return (seconds until all images are credited, goodput, kills)."""
    rng = np.random.default_rng(seed)
    fast = rng.random(WORKERS) < AVX
    sizes = [chunk] * (IMAGES // chunk) + ([IMAGES % chunk] if IMAGES % chunk else [])
    free = deque(range(WORKERS))
    running: list[tuple[float, int, int, bool]] = []  # a heap of (end of a job in s, machine, images, is killed)
    now_s = merged_s = worker_s = useful_s = 0.0
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
        else:
            merged_s = max(merged_s, now_s) + REPLICAS[USUAL]
    return merged_s, useful_s / worker_s, kills


def row(way: Way, epoch: Epoch) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        "way": way.name,
        "GFLOP": round(way.image_flop / 1e9, 1),
        "chunk": way.chunk,
        "hours": round(epoch.wall_s / 3_600, 3),
        "Titans": round(IMAGES / epoch.wall_s / TITAN_RATE, 2),
        "TFLOPS": round(IMAGES * way.image_flop / epoch.wall_s / 1e12, 2),
        "goodput": None if epoch.goodput is None else round(epoch.goodput, 3),
        "kills": epoch.kills,
        "leases": epoch.leases,
        "pushes": epoch.pushes,
        "busy": round(epoch.pushes * REPLICAS[way.replica] / epoch.wall_s, 3),
    }
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()

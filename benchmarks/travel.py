"""Measure the bytes of traffic per credited vertex, and the accuracy that is lost by sending fewer.

    python -m benchmarks.travel [SEED ...]

Real training of four workers on simulated machines: the real master, the real session, torch; only the time is
simulated. A push costs the same time whatever it carries, so that only its content differs. `all`: every tensor of a
vertex travels with each push and each answer; `changed`: only changed tensors; int8, int4: compressed steps; bf16
down: answers also bring weights in bfloat16.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

from benchmarks.arguments import sized, whole_numbers
from benchmarks.table import Cell, write
from chunk_model.goodput import Costs
from gridml.caching.master_copy import MasterCopy
from gridml.protocol.compression import BFLOAT16, FORMATS, NONE
from gridml.protocol.push import PushContent, ReplicaPart
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.replica import Replica
from master.store.settings import Settings
from remote.stepped import Trainer

HERE = Path(__file__).parent
LENET, TRANSFORMER, FROZEN = "LeNet, 6,000 of MNIST", "transformer, AdamW", "frozen backbone, 25 million"
PROGRAMS = {
    TRANSFORMER: HERE / "programs" / "rows_transformer.py",
    FROZEN: HERE / "programs" / "frozen_backbone.py",
    LENET: HERE / "programs" / "small_lenet.py",
}
COSTS = Costs(exec_s=0.001, start_s=0.5, push_s=0.02, boot_s=1.0)
WORKERS, ALL, CHANGED = 4, "all", "changed"
SHORT = f"int4, {BFLOAT16} down"
CARRIED = {LENET: (ALL, *FORMATS, SHORT), TRANSFORMER: (ALL, *FORMATS, SHORT), FROZEN: (ALL, CHANGED)}


@dataclass(frozen=True)
class Measured:
    """The last accuracy of a run, and its traffic."""

    accuracy: float
    credited: int
    pushes: int
    bytes_up: int
    bytes_down: int


@contextlib.contextmanager
def everything_travels() -> Iterator[None]:
    """Send all tensors with each push and each answer."""
    with (
        mock.patch.object(MasterCopy, "carry", lambda _, part, compress: (PushContent(part), ReplicaPart())),
        mock.patch.object(Replica, "_changed", lambda _, key, tensors, since: tensors),
    ):
        yield


def play(task: str, carried: str, seed: int) -> Measured:
    """Train to the end."""
    program = PROGRAMS[task]
    scenario = Scenario(Steady(WORKERS), COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=seed)
    settings = Settings(
        program,
        "simulated",
        WORKERS,
        seed=seed,
        options=SimulatedOptions(None, None),
        compress=NONE if carried in (ALL, CHANGED) else carried.partition(",")[0],
        compress_down=BFLOAT16 if carried == SHORT else NONE,
    )
    whole = everything_travels() if carried == ALL else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, whole:
        root = Path(folder) / "run"
        play_scenario(settings, scenario, root, trainer=Trainer(program, COSTS, seed))
        return measured(root)


def measured(root: Path) -> Measured:
    """Return the result of a run from its ledger."""
    with opened(root) as ledger:
        metrics = ledger.execute("SELECT metrics FROM epochs WHERE metrics NOT NULL ORDER BY epoch DESC").fetchone()
        credited, pushes = ledger.execute("SELECT sum(stop - start), count(*) FROM credits").fetchone()
        up, down = ledger.execute("SELECT sum(bytes_up), sum(bytes_down) FROM workers").fetchone()
    return Measured(json.loads(metrics[0])["accuracy"], credited, pushes, up, down)


def main() -> None:
    seeds = whole_numbers(__doc__, *sized((1, 2, 3), (1,)))
    rows: list[dict[str, Cell]] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        runs = {
            (task, carried): [
                pool.submit(play, task, carried, seed) for seed in (seeds[:1] if task == FROZEN else seeds)
            ]
            for task in sized([*PROGRAMS], [LENET])
            for carried in sized(CARRIED[task], CARRIED[task][:1])
        }
        by_value: list[Measured] = []
        for (task, carried), futures in runs.items():
            results = [future.result() for future in futures]
            by_value = results if carried == ALL else by_value
            rows.append(row(task, carried, results, by_value))
            print(rows[-1], flush=True)
    write(
        "travel",
        "Bytes up and down, and accuracy, by the content of pushes",
        rows,
        [
            f"{WORKERS} workers, seeds {', '.join(map(str, seeds))}; accuracy: of the last epoch, the mean over seeds, "
            "then lowest to highest; of the backbone the first seed alone; against all: points gained or lost, by seed",
            "bytes up: of all messages, per credited vertex; share: relative to `all`",
            "bytes down include the chunks' own rows",
        ],
    )


def row(task: str, carried: str, results: list[Measured], by_value: list[Measured]) -> dict[str, Cell]:
    """Return a line of the table."""
    percent = [100 * result.accuracy for result in results]
    gained = [100 * (mine.accuracy - theirs.accuracy) for mine, theirs in zip(results, by_value, strict=True)]
    up = sum(result.bytes_up for result in results) / sum(result.credited for result in results)
    whole = sum(result.bytes_up for result in by_value) / sum(result.credited for result in by_value)
    pushes = sum(result.pushes for result in results)
    return {
        "task": task,
        "carried": carried,
        "accuracy %": round(statistics.mean(percent), 2),
        "from, to": f"{min(percent):.2f}, {max(percent):.2f}",
        "against all": ", ".join(f"{points:+.2f}" for points in gained),
        "bytes up a vertex": round(up, 1),
        "share": round(up / whole, 4),
        "bytes up a push": round(sum(result.bytes_up for result in results) / pushes),
        "bytes down a push": round(sum(result.bytes_down for result in results) / pushes),
        "vertices a push": round(sum(result.credited for result in results) / pushes),
    }


if __name__ == "__main__":
    main()

"""Measure the real master's decisions per second, and their cost, with 100, 1,000 and 10,000 workers.

The workers only take time. The measurement is of the master with its ledger (transactions like in a run, synchronous
off). Every size runs in a process of its own. The work grows with the workers, so all simulate the same time.

    python -m benchmarks.simulated_scale [--one WORKERS]
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.arguments import parser_of, sized
from benchmarks.table import Cell, write
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from master.backends.script import ScriptedLives
from master.simulation import cost_only_worker
from master.simulation.result import result_of
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings

SIZES = sized((100, 1_000, 10_000), (10,))
VERTICES = 1_000  # of each worker
PUSH_EVERY = 25
TURN_S = 1.0  # of the virtual clock: all messages of a turn are one transaction


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--one", type=int, help="simulate this many workers (the benchmark calls itself with it)")
    one = parser.parse_args().one
    if one is not None:
        print(json.dumps(measure(one)))
        return
    rows: list[dict[str, Cell]] = []
    for workers in SIZES:
        command = [sys.executable, "-m", "benchmarks.simulated_scale", "--one", str(workers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout))
        print(rows[-1], flush=True)
    write(
        "simulated_scale",
        "Decisions a second of the real master, by workers",
        rows,
        [
            "decisions: pushes credited, leases granted and ended, workers requested and ended, all in the ledger",
            "us each: CPU time of the master's code for one of them, without the simulated world around it",
            f"{VERTICES:,} vertices a worker, a push every {PUSH_EVERY}, lives exponential with mean 45 minutes, a "
            f"turn of the master every {TURN_S:g} simulated seconds",
            "MB: peak memory of the process minus that before the simulation",
        ],
    )


def measure(workers: int) -> dict[str, Cell]:
    """Simulate one size."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = Path(tempfile.mkdtemp(prefix="gridml-"))
    try:
        program = folder / "cost.py"
        program.write_text(cost_only_worker.source(VERTICES * workers, 1))
        scenario = Scenario(
            ScriptedLives(workers, Exponential(2700.0), seed=1, late=0),
            Costs(exec_s=0.1, start_s=1.0, push_s=0.05),
            turn_s=TURN_S,
        )
        settings = Settings(program, backend="simulated", workers=workers, push_every=PUSH_EVERY)
        world = play_scenario(settings, scenario, folder / "run")
        result = result_of(world, folder / "run")
    finally:
        shutil.rmtree(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert result.report.duplicated == result.report.lost == 0
    return {
        "workers": workers,
        "vertices": result.report.vertices,
        "kills": result.report.kills,
        "decisions": result.decisions,
        "master s": round(result.master_s, 2),
        "world s": round(result.world_s, 2),
        "decisions/s": round(result.decisions / result.master_s),
        "us each": round(1e6 * result.master_s / result.decisions, 1),
        "MB": round((peak - before) / 1024, 1),
        "simulated s": round(result.report.wall_s),
    }


if __name__ == "__main__":
    main()

"""Measure the distance of honest workers' steps from the limits of the gate and of spot checks: false alarms, and near
misses.

    python -m benchmarks.honest_steps [SEEDS]

Programs of several kinds run with three and eight workers of unequal speed, with and without interruptions.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.hostile_steps import COSTS, PROGRAMS
from benchmarks.table import Cell, write
from chunk_model.families import Exponential
from master.backends.script import ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from remote.stepped import Trainer

TESTS = Path(__file__).parent.parent / "tests" / "programs"
EXAMPLES = Path(__file__).parent.parent / "examples"
FOUND_ON = (PROGRAMS / "small_lenet.py", TESTS / "perceptron.py", EXAMPLES / "recommender.py")
JUDGED_ON = (
    PROGRAMS / "rows_transformer.py",
    TESTS / "mixture.py",
    TESTS / "twins.py",
    TESTS / "tally.py",
    EXAMPLES / "word_counts.py",
)
LIFE_S = 10.0  # mean
CHECKED = 0.1  # share of pushes that are spot checked, in half of the runs
COUNTED = {  # by column, the rows of the ledger that are counted
    "pushes": "credits",
    "blamed": "blames",
    "quarantined": "quarantined",
    "taken back": "events WHERE topic = 'rollback'",
    "repetitions": "events WHERE topic = 'spot check'",
}


def play(program: Path, workers: int, seed: int, *, deaths: bool, checked: float) -> Counter[str]:
    """Play an honest run with spot checks of a share of its pushes, and return the counts of `COUNTED`."""
    script = ScriptedLives(workers, Exponential(LIFE_S), seed) if deaths else Steady(workers)
    scenario = Scenario(script, COSTS, MachineSpeeds(sigma=0.5), travel_s=0.05, seed=seed)
    options = SimulatedOptions(None, None)
    settings = Settings(program, "simulated", workers, seed=seed, steps_each=0, options=options, spot_checks=checked)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        play_scenario(settings, scenario, root, trainer=Trainer(program, COSTS, seed))
        with opened(root) as ledger:
            return Counter(
                {
                    name: int(ledger.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])
                    for name, rows in COUNTED.items()
                }
            )


def main() -> None:
    (count,) = numbers(__doc__, seeds=sized(3, 1))
    rows: list[dict[str, Cell]] = []
    for program in sized((*FOUND_ON, *JUDGED_ON), FOUND_ON[1:2]):
        total: Counter[str] = Counter()
        for seed, workers, deaths, checked in product(range(count), sized((3, 8), (3,)), (False, True), (0.0, CHECKED)):
            total.update(play(program, workers, seed, deaths=deaths, checked=checked), runs=1)
        row: dict[str, Cell] = {
            "program": program.stem,
            "bounds were": "found on it" if program in FOUND_ON else "judged on it",
            "runs": total["runs"],
        }
        rows.append(row | {name: total[name] for name in COUNTED})
        print(rows[-1], flush=True)
    write(
        "honest_steps",
        "False alarms of the gate in honest runs",
        rows,
        [
            "3 and 8 workers whose speeds vary log-normally by 0.5, with machines that stay and with lives of 10 s on "
            "average",
            "blamed: pushes that were shortened or refused because a majority of other workers disagrees",
            f"half of the runs with --spot-checks {CHECKED}; repetitions: of pushes, by other workers",
        ],
    )


if __name__ == "__main__":
    main()

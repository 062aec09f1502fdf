"""Compare rounds with the default rule where pushes are dear: accuracy, and what workers are worth.

    GRIDML_DATA=DIR python -m benchmarks.averaging.rounds [--workers 4,16] [--task NAME ...] [--costs 40,200]

A push costs the time of 40 or 200 vertices, runs have 20 epochs, and workers are killed after a third of their share of
the run on average. Runs are kept in `benchmarks/results/averaging_runs.jsonl` by their configuration, so an interrupted
comparison resumes, and its table can be completed over several days.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.arguments import sized
from benchmarks.averaging.comparison import loop, make
from benchmarks.averaging.options import counts_of, parser, tasks_of
from benchmarks.averaging.pacing import LONG_EPOCHS, SHORT, mean_curve, shown, worth
from benchmarks.averaging.runs import BUDGET, EXEC_S, TRAVEL_S, Case, Runs, Task
from benchmarks.table import Cell, write

RULES = {"stale_mean": "default", "rounds": "rounds"}
FOUND_ON = "MNIST, LeNet"
JUDGED_ON = ("MNIST, perceptron", "Bible, small transformer")


def main() -> None:
    given = parser("Compare rounds with the default rule where pushes are dear.")
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--costs", default=sized("40,200", "40"), help="vertices whose time a push costs")
    given.add_argument("--kept", action="store_true", help="use the kept runs and make no new ones")
    options = given.parse_args()
    seeds, costs = range(options.seeds), [int(cost) for cost in options.costs.split(",")]
    lines = [
        (task, count, cost)
        for task in tasks_of(options, (FOUND_ON, *JUDGED_ON), FOUND_ON)
        for count in counts_of(options)
        for cost in costs
    ]
    runs = Runs()
    if not options.kept:
        wanted = [case for line in lines for seed in seeds for case in cases_of(*line, seed).values()]
        make(list(dict.fromkeys(wanted)), runs, options.processes)
    rows: list[dict[str, Cell]] = []
    for task, count, cost in lines:
        made = {
            name: [runs[case] for seed in seeds if (case := cases_of(task, count, cost, seed)[name]) in runs]
            for name in ("loop", *RULES.values())
        }
        if all(made.values()):
            alone = mean_curve(made["loop"])
            rows.append(
                {
                    "task": task.name,
                    "W": count,
                    "a push costs": cost,
                    "loop": shown(task, made["loop"]),
                    **{name: shown(task, made[name]) for name in RULES.values()},
                    **{
                        f"worth, {name}": round(worth(task, alone, mean_curve(made[name])), 1)
                        for name in RULES.values()
                    },
                }
            )
    write(
        "averaging_rounds",
        f"Rounds and the default rule over {LONG_EPOCHS} epochs where pushes are dear",
        rows,
        [
            "accuracy in %, otherwise loss; means of the seeds, and their number; a push costs the time of so many "
            "vertices, in which its worker does not train",
            f"real master, sessions, training and merges; time is simulated: {EXEC_S * 1e3:g} ms a vertex whatever the "
            f"batch, speeds log-normal (sigma 0.3), {TRAVEL_S:g} s each way, 0.1 s to begin a chunk, 1 s to boot; "
            "workers are killed after a third of their share on average, half of them without grace, but on the Bible "
            "(a share lasts seconds)",
            "worth: the loop's time over the workers' to the final metric of the one that ends behind, in these runs; "
            "a loop whose learning rate falls over fewer epochs may reach it earlier",
            f"the lengths of rounds were found on {FOUND_ON} and on tasks that are not here",
        ],
    )


def cases_of(task: Task, workers: int, cost: int, seed: int) -> dict[str, Case]:
    """Return the runs of a line of the table, by column."""
    kills = task.name not in SHORT
    interval = round(cost / BUDGET)
    epochs = sized(LONG_EPOCHS, 2)
    each = {
        name: Case(task.name, workers, interval, kills=kills, seed=seed, rule=rule, steps_each=0, epochs=epochs)
        for rule, name in RULES.items()
    }
    return {"loop": replace(loop(task, seed), epochs=epochs), **each}


if __name__ == "__main__":
    main()

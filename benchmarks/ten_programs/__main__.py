"""Ten programs that people write, on four local workers, beside their loops.

    GRIDML_DATA=DIR python -m benchmarks.ten_programs [PROGRAM ...] [--seeds 3]

Each file of this folder has a network, its plain loop and its gridml program. They run for the same number of epochs,
and the metric is the same. Runs are kept in `ten_programs.jsonl`, so that an interrupted benchmark loses none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from math import sqrt
from pathlib import Path
from statistics import mean, variance

from benchmarks import table
from benchmarks.arguments import parser_of, sized

HERE = Path(__file__).parent
GRIDML = (sys.executable, "-P", "-m", "gridml")
WORKERS = sized(4, 2)
FIXED, ALONE, SIMULATED = 'rate="fixed"', "--workers 1", "simulated"
CHEAP = ("--cost", "t_x=0.003,push=0.006,t_s=0.05,boot=1", "--turn", "0.001")  # a push costs as much as two vertices


@dataclass(frozen=True)
class Task:
    """One program."""

    name: str
    what: str
    metric: str
    more_is_better: bool = False
    remedy: str = ""  #: what brings it nearer to its loop, as `run` takes it
    simulated: bool = False  #: it is played on simulated machines with cheap pushes, too


TASKS = {
    task.name: task
    for task in (
        Task("gan", "GAN, digits, two Adams", "distance", remedy=FIXED),
        Task("word2vec", "word2vec, Bible, Adam", "loss"),
        Task("vae", "VAE, digits, Adam", "loss", remedy=FIXED),
        Task("simclr", "SimCLR, CIFAR-10, Adam", "accuracy", more_is_better=True),
        Task("gru", "GRU, sentences, Adam", "accuracy", more_is_better=True, remedy=FIXED, simulated=True),
        Task("gnn", "graph network, SNAP, Adam", "accuracy", more_is_better=True, remedy=FIXED),
        Task("lora", "LoRA, Bible, AdamW", "loss", remedy=FIXED),
        Task("distillation", "distillation, digits, SGD", "accuracy", more_is_better=True),
        Task("pinn", "PINN, heat equation, Adam", "error"),
        Task("amp", "bfloat16, cosine, CIFAR-10, SGD", "accuracy", more_is_better=True, remedy=ALONE),
    )
}


@dataclass(frozen=True)
class Ran:
    """The result of a run."""

    program: str
    workers: int  #: 0: the plain loop
    seed: int
    setting: str  #: "" for default settings
    value: float  #: of the metric
    seconds: float
    training: str = ""  #: what the run's first lines say of the settings that it uses


@cache
def prepare(name: str) -> None:
    """Make the weights from which a program starts, if it has any, in the folder that TRAINED names."""
    if make := getattr(import_module(f"benchmarks.ten_programs.{name}"), "prepare", None):
        make()


def loop(task: Task, seed: int) -> Ran:
    began = time.perf_counter()
    value = import_module(f"benchmarks.ten_programs.{task.name}").loop(seed)[task.metric]
    return Ran(task.name, 0, seed, "", value, round(time.perf_counter() - began, 1))


def run(task: Task, workers: int, seed: int, setting: str = "") -> Ran:
    """Train a program with `gridml run`. `setting` is an argument of `gridml.update`, or options of the command, or
    `SIMULATED` for the same run on simulated machines where a push costs as much time as two vertices."""
    with tempfile.TemporaryDirectory(prefix="gridml-ten-programs-") as name:
        folder = Path(name)
        options = setting.split() if setting.startswith("--") else []
        program = written(task, "" if options or setting == SIMULATED else setting, folder)
        command = ["simulate", *CHEAP] if setting == SIMULATED else ["run", *options]
        began = time.perf_counter()
        places = [str(program), "--run-dir", str(folder / "run")]
        _call(*GRIDML, *command, *places, "--workers", str(workers), "--seed", str(seed))
        seconds = round(time.perf_counter() - began, 1)
        report = json.loads(_call(*GRIDML, "report", str(folder / "run"), "--json"))
        lines = (folder / "run" / "events.log").read_text(encoding="utf-8").splitlines()
    training = next((line.partition(" training ")[2].strip() for line in lines if " training " in line), "")
    return Ran(task.name, workers, seed, setting, report["epochs"][-1]["metrics"][task.metric], seconds, training)


def written(task: Task, argument: str, folder: Path) -> Path:
    """Write a task's program to a folder, with another argument of `gridml.update`; "" for none. Return the file."""
    source = (HERE / f"{task.name}.py").read_text(encoding="utf-8")
    if argument:
        source = source.replace("@gridml.update(batch=BATCH)", f"@gridml.update(batch=BATCH, {argument})")
    program = folder / f"{task.name}.py"
    program.write_text(source, encoding="utf-8")
    return program


def _call(*command: str) -> str:
    """Return the output of a command. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Runs:
    """Finished runs, in an append-only file."""

    def __init__(self) -> None:
        table.results().mkdir(parents=True, exist_ok=True)
        self._path = table.results() / "ten_programs.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        self._kept = {(r.program, r.workers, r.seed, r.setting): r for r in (Ran(**json.loads(x)) for x in lines)}

    def __call__(self, task: Task, workers: int, seed: int, setting: str = "") -> Ran:
        """Return the result of a run, which is made if it is not kept."""
        key = task.name, workers, seed, setting
        if key not in self._kept:
            prepare(task.name)
            self._kept[key] = ran = run(task, workers, seed, setting) if workers else loop(task, seed)
            print(ran, file=sys.stderr, flush=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(ran)) + "\n")
        return self._kept[key]


def line(task: Task, runs: Runs, seeds: int) -> dict[str, table.Cell]:
    """Return a line of the table."""

    def values(workers: int, seeds: int = seeds, setting: str = "") -> list[float]:
        return [runs(task, workers, seed, setting).value for seed in range(seeds)]

    loops, ours = values(0), values(WORKERS)
    apart, late = max(loops) - min(loops), behind(task, loops, ours)
    row: dict[str, table.Cell] = {
        "program": task.what,
        "metric": task.metric,
        "loop": shown(loops),
        f"{WORKERS} workers": shown(ours),
        "behind by": round(late, 4),
        "seeds differ by": round(max(apart, noise(loops, ours)), 4),
        "within": "yes" if late <= max(apart, noise(loops, ours)) else "no",
    }
    if task.remedy:
        helped = values(1) if task.remedy == ALONE else values(WORKERS, setting=task.remedy)
        row |= {"set": task.remedy, "then": shown(helped), "then behind by": round(behind(task, loops, helped), 4)}
    if task.simulated:
        row["cheap pushes"] = shown(values(WORKERS, 1, SIMULATED))
    return row


def behind(task: Task, loops: list[float], ours: list[float]) -> float:
    """Return by how much the mean of `ours` is worse than that of `loops`; negative if it is better."""
    return (mean(loops) - mean(ours)) * (1 if task.more_is_better else -1)


def noise(*samples: list[float]) -> float:
    """Return two standard errors of the difference between the means of two samples; 0 for single runs."""
    return 2 * sqrt(sum(variance(values) / len(values) for values in samples if len(values) > 1))


def shown(values: list[float]) -> str:
    each = f" ({' '.join(f'{value:.4g}' for value in values)})" if len(values) > 1 else ""
    return f"{mean(values):.4g}{each}"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("asked", nargs="*", metavar="PROGRAM", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=sized(3, 1))
    given = parser.parse_args()
    asked = given.asked or sized(list(TASKS), ["pinn"])  # a PINN needs no data
    if unknown := [name for name in asked if name not in TASKS]:
        parser.error(f"got {unknown[0]}, expected {', '.join(TASKS)}")
    if asked != ["pinn"] and not (Path(os.environ.get("GRIDML_DATA", "")) / "snap" / "email-enron.edges.gz").is_file():
        print("skipped: GRIDML_DATA names no folder with snap/email-enron.edges.gz.")
        return
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gridml-ten-programs-") as folder:
        os.environ["TRAINED"] = folder
        runs = Runs()
        rows = [line(TASKS[name], runs, given.seeds) for name in asked]
    table.write("ten_programs", "Ten programs that people write, beside their loops", rows, NOTES)


NOTES = (
    f"loop and {WORKERS} workers: means of three seeds after the same epochs; local workers, default settings of "
    "`gridml run`",
    "seeds differ by: how far the three loops are apart, or two standard errors of the difference of the means if that "
    "is more; within: the workers are behind by no more",
    "the rate of a loop is constant (cosine in the last line); programs have gridml's default schedule, which lowers "
    "the rate over the last 40% of the run",
    f"{FIXED}: an argument of `gridml.update`; {ALONE}: the same program on one worker",
    "cheap pushes: simulated machines on which a push costs as much time as two vertices, so that steps are added; "
    "one seed, no worker killed",
    "left out: times, which other programs on these two cores disturbed (load 5 to 9); kills; longer runs, in which "
    "workers come nearer to their loops",
    "MNIST (4,000 to 8,000 digits), CIFAR-10 (4,000 photos), the King James Bible, and neighbourhoods in four SNAP "
    "graphs; in the two runs whose ledgers were looked at (VAE, graph network) pushes were too dear to add steps",
)

if __name__ == "__main__":
    main()

"""Nine tasks of a new user: lines of code, the time of a first run, and the result.

    python -m benchmarks.new_user [TASK ...]

GRIDML_DATA names a folder with `libsvm/a9a.gz` (and what `gridml.datasets` looks for). Each task is a plain loop in
`loops/` and a program in `tasks/`; networks and data are shared, in `models.py`.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import table
from benchmarks.arguments import sized, words

HERE = Path(__file__).parent
GRIDML = (sys.executable, "-P", "-m", "gridml")
WORKERS = sized(2, 1)
ROWS = sized(8_000_000, 4_096)  # of 1 KB, in a sparse file, which takes no disk space


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    options: tuple[str, ...] = ()  #: of `gridml run`; {before} is the folder of the transformer's run


TASKS = (
    Task("cifar_resnet"),
    Task("transformer"),
    Task("frozen_embedding"),
    Task("sparse_by_vertex"),
    Task("sparse_by_array"),
    Task("wide"),
    Task("warm_start", ("--init-from", "{before}")),
    Task("mixed", ("--device", "auto")),
    Task("on_disk"),
)


def code_lines(path: Path) -> int:
    """Count the lines of a Python file that hold code: neither blank, nor only comments, nor a docstring."""
    lines: set[int] = set()
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            if not (begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(lines)


def timed(command: Sequence[str], environment: dict[str, str]) -> tuple[float, str]:
    """Return (seconds, standard output) of a command. Raises RuntimeError with its output if it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - began, done.stdout


def measured(task: Task, folder: Path) -> dict[str, table.Cell]:
    """Run a task both ways, in `folder`. Return a line of the table."""
    environment = {"TRAINED": str(folder / "trained.pt"), "ROWS": str(folder / "rows.npy")}
    loop_s, printed = timed([sys.executable, "-m", f"benchmarks.new_user.loops.{task.name}"], environment)
    run = folder / task.name
    options = [option.format(before=folder / "transformer") for option in task.options]
    program = HERE / "tasks" / f"{task.name}.py"
    command = [*GRIDML, "run", str(program), "--workers", str(WORKERS), "--run-dir", str(run)]
    run_s, _ = timed([*command, *options], environment)
    _, text = timed([*GRIDML, "report", str(run), "--json"], {})
    report = json.loads(text)
    last = report["epochs"][-1].get("metrics") or {}
    name, value = re.findall(r"(\w+) ([\d.]+)", printed)[-1]
    loop_lines, lines = code_lines(HERE / "loops" / f"{task.name}.py"), code_lines(program)
    return {
        "task": task.name.replace("_", " "),
        "loop's lines": loop_lines,
        "program's": lines,
        "more": lines - loop_lines,
        "loop s": round(loop_s, 1),
        "first run s": round(run_s, 1),
        "epochs": len(report["epochs"]),
        "measure": name,
        "loop": round(float(value), 3),
        "run": round(float(last[name]), 3) if name in last else None,
    }


def main() -> None:
    asked = words(__doc__, choices=[task.name for task in TASKS]) or sized([task.name for task in TASKS], ["on_disk"])
    if asked != ["on_disk"] and not (Path(os.environ.get("GRIDML_DATA", "")) / "libsvm" / "a9a.gz").is_file():
        print("skipped: GRIDML_DATA names no folder with libsvm/a9a.gz.")
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="gridml-new-user-") as name:
        folder = Path(name)
        shape = (ROWS, 1_024)
        np.lib.format.open_memmap(folder / "rows.npy", "w+", np.uint8, shape).flush()
        for task in TASKS:
            if task.name in asked or (task.name == "transformer" and "warm_start" in asked):
                rows.append(measured(task, folder))
                print(rows[-1], file=sys.stderr, flush=True)
    table.write("new_user", "Nine tasks of a new user: a plain loop, and a program on two workers", rows, NOTES)


NOTES = (
    "lines: neither blank, nor comments, nor docstrings; networks and data are shared and counted for neither",
    f"first run: `gridml run` with {WORKERS} workers on these cores, from start to end",
    "loop and run: the last evaluation of each, one seed; the loop uses all cores, by torch's default",
    "a program without a schedule has gridml's default, which lowers the learning rate over the last 40% of the run; "
    "the loop's rate is constant",
    "a loop needs more lines than these to survive the loss of its machine; nothing was killed here",
    "warm start: each stops by its own evaluations, so their epochs differ; the column has those of the run",
    "warm start: the end of a loop depends on noise: at patience 2 simulated runs of one worker stopped at 2.208, "
    "1.791 and 2.206 (three seeds); so patience is 4 in both, and of three loops one still stopped after 8 epochs at "
    "2.217",
    "on disk: 8 million rows of 1 KB in a sparse file, so reading them causes no disk traffic",
    "the device of `mixed` is the CPU if there is no GPU",
)

if __name__ == "__main__":
    main()

"""Compare topic models by stages (`benchmarks.graph_programs.topics`) with tomotopy: CPU seconds to the same perplexity
of held-out texts.

tomotopy trains for some numbers of iterations; for each, the row says after how many passes gridml's perplexity is as
low. Both learn the weights of topics, begin at 0.1 for each with 0.01 for words, and use one thread. tomotopy need not
be installed here: `--tomotopy` names a Python that has it. The texts lie in the folder that GRIDML_DATA names.

    python -m benchmarks.graph_programs.against_tomotopy --tomotopy /tmp/peer/bin/python
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.graph_programs import texts
from benchmarks.graph_programs.one_worker import OneWorker, Reached, compared
from benchmarks.graph_programs.texts import Texts
from benchmarks.table import Cell, write
from gridml.model.program import Program

#: by number of topics: tomotopy's iterations, gridml's passes, how often these are evaluated, and the goal
RUNS: dict[int, tuple[tuple[int, ...], int, int, float]] = sized(
    {1_000: ((10, 20, 30, 50, 75), 76, 4, 0.5), 100: ((50, 100, 150, 200), 200, 5, 1.0)}, {10: ((5, 10), 4, 2, 1.0)}
)
TOMOTOPY = """
import sys, time
import numpy as np, tomotopy

file, topics, *steps = sys.argv[1:]
given = np.load(file)
model = tomotopy.LDAModel(k=int(topics), alpha=0.1, eta=0.01, seed=1)
for start, stop in zip(given["offsets"], given["offsets"][1:]):
    model.add_doc([str(word) for word in given["word"][start:stop]])
model.train(0, workers=1)
cpu_s = done = 0
for step in map(int, steps):
    began = time.process_time()
    model.train(step - done, workers=1)
    cpu_s, done = cpu_s + time.process_time() - began, step
    phi = np.full((int(given["words"]), int(topics)), 1e-9)  # of words that no text has
    phi[[int(word) for word in model.used_vocabs]] = np.array(
        [model.get_topic_word_dist(topic) for topic in range(int(topics))]
    ).T
    np.savez(f"{file}.{step}.npz", phi=phi, alpha=np.asarray(model.alpha), cpu_s=cpu_s)
print(tomotopy.__version__, tomotopy.isa)
"""


def tomotopy(python: str, found: Texts, topics: int, steps: tuple[int, ...]) -> tuple[str, list[Reached]]:
    """Return tomotopy's version, and what it has reached after some iterations."""
    with tempfile.TemporaryDirectory(prefix="tomotopy-") as folder:
        file = Path(folder) / "texts.npz"
        np.savez(file, words=found.words, offsets=found.offsets, word=found.word)
        command = [python, "-c", TOMOTOPY, str(file), str(topics), *map(str, steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        made = []
        for step in steps:
            model = np.load(f"{file}.{step}.npz")
            made.append(Reached(step, float(model["cpu_s"]), found.perplexity(model["phi"], model["alpha"])))
    return done.stdout.strip(), made


def program(topics: int) -> Program:
    """Return the program of the stages for some number of topics."""
    os.environ["TOPICS"] = str(topics)
    os.environ.update({"SMALLEST": "1"} if smallest() else {})
    spec = importlib.util.spec_from_file_location(f"topics_{topics}", Path(__file__).with_name("topics.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    made: Program = module.program
    return made


def passes(found: Texts, topics: int, most: int, every: int) -> tuple[list[Reached], OneWorker]:
    """Return what one worker has reached, after every some passes."""
    made = program(topics)
    OneWorker(made).run_pass()  # compiles
    worker, reached = OneWorker(made), []
    for number in range(1, most + 1):
        worker.run_pass()
        if number % every == 0:
            count = worker.values["Word"]["count"]
            phi = (count + 0.01) / (count.sum(0) + 0.01 * found.words)
            alpha = worker.values["Corpus"]["alpha"][0]
            reached.append(Reached(number, worker.worker_s, found.perplexity(phi, alpha.astype(np.float64))))
    return reached, worker


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tomotopy", metavar="PYTHON", help="a Python interpreter that has tomotopy")
    python = parser.parse_args().tomotopy
    missing = [str(file) for file in texts.files() if not file.is_file()]
    if not smallest() and (python is None or missing):
        where = f"the texts {', '.join(missing)}" if missing else "tomotopy: give --tomotopy PYTHON"
        print(f"skipped: not there: {where}")
        return
    load = os.getloadavg()[0]
    found = texts.drawn(60, 200) if smallest() else texts.newsgroups()
    rows: list[dict[str, Cell]] = []
    notes = []
    for topics, (steps, most, every, goal) in RUNS.items():
        version, theirs = tomotopy(python, found, topics, steps) if python else ("not there", [])
        ours, worker = passes(found, topics, most, every)
        rows += [
            {"topics": topics, **compared("tomotopy", "perplexity", ours, each, 0), "goal": goal} for each in theirs
        ] or [{"topics": topics, "tomotopy": version}]
        notes.append(
            f"{topics:,} topics: {worker.passes * len(found.word) / worker.worker_s / 1e6:.2f} M tokens per CPU-s of "
            f"the worker; perplexity {ours[-1].error:.0f} after {ours[-1].passes} passes in {ours[-1].cpu_s:.1f} "
            f"CPU-s; besides, cutting and encoding the chunk of a pass and taking what comes back took "
            f"{worker.master_s / worker.passes:.2f} CPU-s a pass, which is a master's; tomotopy {version}"
        )
    write(
        "graph_tomotopy",
        "Topic models: CPU seconds to tomotopy's perplexity",
        rows,
        [
            f"{len(found.offsets) - 1:,} texts with {len(found.word):,} tokens of {found.words:,} words, and "
            f"{len(found.held_out)} held out: every other word of each gives its topics, and the others are predicted",
            "gridml: all texts are one mini-batch, so that the words' probabilities are computed once a pass; machine "
            "code cached; its seconds are the worker's: decoding chunks, sampling, copying what a push carries, taking "
            "the reply. Where texts begin, and how weights are learnt (the head of topics.py), was chosen on these "
            "texts; tomotopy has its defaults. One run of each",
            *notes,
            f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


if __name__ == "__main__":
    main()

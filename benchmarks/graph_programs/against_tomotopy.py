"""Compare topic models by stages (`benchmarks.graph_programs.topics`) with tomotopy: CPU seconds to the same perplexity
of held-out texts.

tomotopy trains for some numbers of iterations; for each, the row says after how many passes gridml's perplexity is as
low. Both learn the weights of topics, begin at 0.1 for each with 0.01 for words, give each token a first topic at
random, get the words of a text in ascending order, and use one thread. `--choose` compares settings of both on
one text, of which the best stand in `SIZES`; without it they are judged on the other texts. tomotopy need not be
installed here: `--tomotopy` names a Python that has it. The texts lie in the folder that GRIDML_DATA names.

    python -m benchmarks.graph_programs.against_tomotopy --tomotopy /tmp/peer/bin/python [--choose]
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.graph_programs import texts
from benchmarks.graph_programs.one_worker import OneWorker, Reached, judged, named, tried
from benchmarks.graph_programs.texts import TEXTS, Texts
from benchmarks.graph_programs.topics import Settings
from benchmarks.table import Cell, write

SEEDS = sized((1, 2, 3), (1,))
CHOOSE_ON = "newsgroups"


@dataclass(frozen=True)
class Peer:
    """Settings of tomotopy: after how many iterations it learns weights, and how many come before the first time."""

    interval: int = 10  # tomotopy's own
    burn_in: int = 0


@dataclass(frozen=True)
class Size:
    """What is compared for some number of topics."""

    topics: int
    iterations: tuple[int, ...]  #: of tomotopy, at which it is judged
    most: int  #: passes of gridml, at most
    step: int  #: passes between two evaluations
    goal: float  #: CPU seconds, at most, as a share of tomotopy's
    peer: Peer  #: settings that were the best of `PEERS` on `CHOOSE_ON`
    ours: Settings  #: and of `OURS`


SIZES = sized(
    (
        Size(1_000, (25, 50, 75), 120, 2, 0.5, Peer(interval=5), Settings(damped=0.5, floor=1e-2, few=3)),
        Size(100, (50, 100, 200), 300, 5, 1.0, Peer(interval=5), Settings(damped=0.5, floor=3e-2, few=5)),
    ),
    (Size(10, (5, 10), 4, 2, 1.0, Peer(), Settings()),),
)
PEERS = sized((Peer(), Peer(5), Peer(10, 30)), (Peer(),))
OURS = sized(
    (
        *(Settings(damped=0.5, floor=1e-2, few=few) for few in (0, 3, 5, 10)),
        Settings(damped=0.5, floor=3e-2, few=5),
    ),
    (Settings(), Settings(few=3)),
)
TOMOTOPY = """
import sys, time
import numpy as np, tomotopy

file, topics, seed, interval, burn_in, *steps = sys.argv[1:]
given = np.load(file)
model = tomotopy.LDAModel(k=int(topics), alpha=0.1, eta=0.01, seed=int(seed))
model.optim_interval, model.burn_in = int(interval), int(burn_in)
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


def tomotopy(python: str, found: Texts, size: Size, peer: Peer, seed: int) -> tuple[str, list[Reached]]:
    """Return tomotopy's version, and what it has reached after some iterations."""
    with tempfile.TemporaryDirectory(prefix="tomotopy-") as folder:
        file = Path(folder) / "texts.npz"
        np.savez(file, words=found.words, offsets=found.offsets, word=found.word)
        settings = map(str, (size.topics, seed, peer.interval, peer.burn_in, *size.iterations))
        command = [python, "-c", TOMOTOPY, str(file), *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        made = []
        for step in size.iterations:
            model = np.load(f"{file}.{step}.npz")
            made.append(Reached(step, float(model["cpu_s"]), found.perplexity(model["phi"], model["alpha"])))
    return done.stdout.strip(), made


def module(topics: int) -> ModuleType:
    """Return the module of the stages for some number of topics."""
    os.environ["TOPICS"] = str(topics)
    spec = importlib.util.spec_from_file_location(f"topics_{topics}", Path(__file__).with_name("topics.py"))
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def passes(
    found: Texts, size: Size, settings: Settings, seed: int, until: float = 0.0
) -> tuple[list[Reached], OneWorker]:
    """Return what one worker has reached after every some passes, until its perplexity is as low as `until`."""
    stages = module(size.topics)
    OneWorker(stages.program(texts.drawn(), settings, seed)).run_pass()  # compiles
    worker, reached = OneWorker(stages.program(found, settings, seed)), []
    for number in range(1, size.most + 1):
        worker.run_pass()
        if number % size.step == 0:
            count = worker.values["Word"]["count"]
            phi = (count + stages.BETA) / (count.sum(0) + stages.BETA * found.words)
            alpha = worker.values["Corpus"]["alpha"][0].astype(np.float64)
            reached.append(Reached(number, worker.worker_s, found.perplexity(phi, alpha), worker.master_s))
            if reached[-1].error <= until:
                break
    return reached, worker


def described(found: Texts) -> str:
    return (
        f"{len(found.offsets) - 1:,} texts with {len(found.word):,} tokens of {found.words:,} words, and "
        f"{len(found.held_out)} held out: every other word of each gives its topics, and the others are predicted"
    )


def choose(python: str | None) -> None:
    """Compare settings of both on one text."""
    found = texts.drawn() if smallest() else TEXTS[CHOOSE_ON]()
    rows: list[dict[str, Cell]] = []
    for size in SIZES:
        theirs: list[Reached] = []
        if python is not None:
            theirs = [tomotopy(python, found, size, each, 0)[1][-1] for each in PEERS]
            ends = [tried("tomotopy", each, "perplexity", last, 0) for each, last in zip(PEERS, theirs, strict=True)]
            rows += [{"topics": size.topics, **end} for end in ends]
        lowest = min((each.error for each in theirs), default=0.0)
        for settings in OURS:
            last = passes(found, size, settings, 0, lowest)[0][-1]
            rows.append({"topics": size.topics, **tried("gridml", settings, "perplexity", last, 0)})
            print(rows[-1], flush=True)
    write(
        "graph_tomotopy_choice",
        f"Topic models: settings of tomotopy and of gridml on {CHOOSE_ON}",
        rows,
        [
            described(found),
            "gridml stops where its perplexity is as low as tomotopy's lowest. Chosen are tomotopy's lowest "
            "perplexity, and gridml's fewest CPU seconds to it; one seed, 0, which judges nothing",
        ],
    )


def judge(python: str | None) -> None:
    """Compare both on texts that chose nothing."""
    rows: list[dict[str, Cell]] = []
    notes, load, version = [], os.getloadavg()[0], "not there"
    for name in sized([each for each in TEXTS if each != CHOOSE_ON], ["drawn"]):
        found = texts.drawn() if smallest() else TEXTS[name]()
        notes.append(f"{name}: {described(found)}")
        for size in SIZES:
            ours, theirs = [], []
            for seed in SEEDS:
                if python:
                    version, reached = tomotopy(python, found, size, size.peer, seed)
                    theirs.append(reached)
                until = min((each.error for each in theirs[-1]), default=0.0) if theirs else 0.0
                reached, worker = passes(found, size, size.ours, seed, until)
                ours.append(reached)
            about: dict[str, Cell] = {"texts": name, "topics": size.topics}
            rows += [{**about, **line} for line in judged("tomotopy", "perplexity", ours, theirs, 0, size.goal)]
            print(*rows[-len(size.iterations) :], sep="\n", flush=True)
            notes.append(
                f"{name}, {size.topics:,} topics: {worker.passes * len(found.word) / worker.worker_s / 1e6:.2f} M "
                f"tokens per CPU-s of the worker; tomotopy: {named(size.peer)}; gridml: {named(size.ours)}"
            )
    write(
        "graph_tomotopy",
        "Topic models: CPU seconds to tomotopy's perplexity",
        rows or [{"tomotopy": "not there"}],
        [
            f"medians of seeds {', '.join(map(str, SEEDS))}; ratios are of one seed. tomotopy {version}. "
            f"Settings were chosen on {CHOOSE_ON} (graph_tomotopy_choice.md)",
            "gridml: its seconds are the worker's: decoding chunks, sampling, copying what a push carries, taking the "
            "reply; machine code cached. With a master: also cutting and encoding the chunk of a pass and taking what "
            "comes back",
            *notes,
            f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tomotopy", metavar="PYTHON", help="a Python interpreter that has tomotopy")
    parser.add_argument("--choose", action="store_true", help="compare settings on one text instead")
    given = parser.parse_args()
    if not smallest() and (given.tomotopy is None or not texts.are_there()):
        where = "tomotopy: give --tomotopy PYTHON" if texts.are_there() else "the texts: set GRIDML_DATA"
        print(f"skipped: not there: {where}")
        return
    if given.choose or smallest():
        choose(given.tomotopy)
    if not given.choose:
        judge(given.tomotopy)


if __name__ == "__main__":
    main()

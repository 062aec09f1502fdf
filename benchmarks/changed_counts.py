"""Bytes and the master's CPU time where pushes and replies carry whole rows of counts, and where only changed elements.

The topic model of examples/lda.py with 100 and with 1,000 topics, on four real workers of this machine. In the rows
"whole" nothing is small enough to travel as changes.

    python -m benchmarks.changed_counts
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from gridml.protocol import bundle

EXAMPLE = Path(__file__).parents[1] / "examples" / "lda.py"
TOPICS, EPOCHS, WORKERS, EVERY, RUNS = sized((100, 1000), (100,)), sized(8, 1), 4, 64, 1
WHOLE = "from gridml.protocol import changes\n\nchanges.OVERHEAD_BYTES = 1 << 62\n\n\n"
_MASTER = """
import resource, sys, time
from pathlib import Path
from master.backends.registry import make
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings

settings = Settings(Path(sys.argv[1]), workers={workers}, epochs={epochs}, seed=1, push_every={every})
with start(settings, Path(sys.argv[2]), Environment(make)) as run:
    before = time.process_time()
    run.finish()
    print(time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    for topics in TOPICS:
        runs = [(how, measured(topics, how)) for _ in range(RUNS) for how in ("whole", "changes")]
        for how in ("whole", "changes"):
            mine = [figures for each, figures in runs if each == how]
            medians = {name: statistics.median(each[name] for each in mine) for name in mine[0]}
            missed = sum(each["miscounted"] for each in mine)
            rows.append({"topics": topics, "rows": how, **medians, "miscounted": int(missed)})
    write(
        "changed_counts",
        f"Counts of topics pushed as whole rows, and as changed elements: {WORKERS} workers, {EPOCHS} epochs",
        rows,
        [
            f"examples/lda.py, a push after each {EVERY} chapters; medians of {RUNS} run of each, in turns",
            "master CPU-s: user and system time of the master's process, from the start of its loop to the run's end",
            "MB: of all messages; miscounted: counts that differ from a recount of the topics, in all runs together",
        ],
    )


def measured(topics: int, how: str) -> dict[str, float]:
    """Run to the end, and return its figures."""
    from master.views.report import report

    with tempfile.TemporaryDirectory(prefix="counts-") as name:
        folder = Path(name)
        program, root = folder / f"lda_{topics}_{how}.py", folder / "run"
        text, found = re.subn(r"(?m)^(TOPICS, .* = )\d+,", rf"\g<1>{topics},", EXAMPLE.read_text())
        assert found == 1, "the example says how many topics it has"
        head, imports, rest = text.partition("import numpy as np\n")
        program.write_text(head + imports + WHOLE * (how == "whole") + rest)
        code = _MASTER.format(workers=WORKERS, epochs=EPOCHS, every=EVERY)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, str(program), str(root)], stdout=subprocess.PIPE, text=True, check=True
        )
        cpu_s, memory = map(float, done.stdout.split()[-2:])
        wall_s, figures = time.perf_counter() - began, report(root)
        return {
            "pushes": figures.pushes,
            "MB up": figures.bytes_up / 1e6,
            "MB up a push": figures.bytes_up / 1e6 / figures.pushes,
            "MB down": figures.bytes_down / 1e6,
            "MB down a push": figures.bytes_down / 1e6 / figures.pushes,
            "master CPU-s": cpu_s,
            "CPU-ms a push": 1000 * cpu_s / figures.pushes,
            "master MB": memory,
            "perplexity": figures.epochs[-1].metrics["perplexity"],
            "miscounted": miscounted(program, root),
            "s": wall_s,
        }


def miscounted(program: Path, root: Path) -> int:
    """Return how many counts of the last version differ from a recount of the topics that came home."""
    from gridml.model.loading import load

    _, final = bundle.decode((root / "final.safetensors").read_bytes())
    words = load(program).build(program).tables["Chapter"].edges["words"].targets
    count = np.zeros_like(final["Word/count"])
    np.add.at(count, (np.asarray(words), np.load(root / "fields" / "Chapter:words.topic.npy")), 1)
    return int((count != final["Word/count"]).sum() + (count.sum(0)[None] != final["Corpus/count"]).sum())


if __name__ == "__main__":
    main()

"""Programs of stages on four firewalled workers of a real HTCondor pool with evictions, and one local worker.

The pool is that of `benchmarks.condor.evictions`. In the rows "brought", the Python of the jobs has numpy alone, and
each start of a job brings numba along. Counts of topics are compared with a recount of the topics that came home with
the chapters.

    python -m benchmarks.condor.stages
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks.arguments import numbers, sized
from benchmarks.condor.evictions import LIFE_S, POLICY, WORKERS, gridml
from benchmarks.table import Cell, write
from gridml.protocol import bundle
from pools import pool
from pools.pool import Pool
from pools.release import NoCondor
from tests.support.bare_python import bare_python

_EXAMPLES = Path(__file__).parents[2] / "examples"
SUBNET = 82
EPOCHS = {"mf": sized(100, 3), "lda": sized(40, 2)}
SEEDS = sized((0, 1, 2), (0,))
OBJECTIVE = {"mf": "rmse", "lda": "perplexity"}
Alone = dict[str, list[float]]  # the objectives of one local worker, by program


def main() -> None:
    numbers(__doc__)
    with tempfile.TemporaryDirectory(prefix="stages-") as name:
        folder = Path(name)
        try:
            with pool.firewalled(folder / "pool", workers=WORKERS, more=POLICY, subnet=SUBNET) as up:
                bare = ("--python", str(bare_python(folder / "bare")))
                by_sftp = ("--carrier", "sftp", "--sftp", f"10.{SUBNET}.0.1")
                # (program, where the job finds numba, folder, options of gridml submit)
                there = [("mf", "there", "mf", ()), ("lda", "there", "lda", ()), ("lda", "there", "sftp", by_sftp)]
                brought: list[tuple[str, str, str, tuple[str, ...]]] = [("lda", "brought", "brought", bare)]
                runs = sized(there + brought, brought)
                trained = dict.fromkeys(program for program, *_ in runs)
                alone = {program: run_here(up, program, folder / f"{program}-alone") for program in trained}
                rows = [run(up, program, numba, folder / name, alone, *more) for program, numba, name, more in runs]
        except NoCondor as why:
            print(f"skipped: {why}")
            return
    write(
        "condor_stages",
        f"Stages on {WORKERS} firewalled workers that live {LIFE_S} s in the mean, by `gridml submit`",
        rows,
        [
            f"mf: examples/mf.py, {EPOCHS['mf']} epochs; lda: examples/lda.py, {EPOCHS['lda']} epochs",
            "numba: there, in the Python of the jobs; or brought along by each start of a job, as that Python lacks it",
            "objective: of held-out data after the last epoch (rmse, perplexity); alone: of one local worker, the mean "
            f"of {len(SEEDS)} seeds, whose largest is by the spread above the smallest; worse: than that mean",
            "miscounted: counts of topics that differ from a recount of the topics that came home; mf has no counts",
            "duplicated, lost: vertices credited twice or never, in all epochs; wasted: trained again",
        ],
    )


def run_here(up: Pool, program: str, root: Path) -> list[float]:
    """Train with one worker on this machine, once for each seed, and return the objectives."""
    file, epochs, found = str(_EXAMPLES / f"{program}.py"), str(EPOCHS[program]), []
    for seed in SEEDS:
        at = str(root / str(seed))
        gridml(up, "run", file, "--workers", "1", "--epochs", epochs, "--seed", str(seed), "--run-dir", at)
        report = json.loads(gridml(up, "report", at, "--json"))
        found.append(float(report["epochs"][-1]["metrics"][OBJECTIVE[program]]))
    return found


def run(
    up: Pool, program: str, numba: str, root: Path, alone: dict[str, list[float]], *options: str
) -> dict[str, Cell]:
    """Run to the end, and return a line of the table."""
    asked = ("submit", str(_EXAMPLES / f"{program}.py"), "--epochs", str(EPOCHS[program]), "--workers", str(WORKERS))
    gridml(up, *asked, "--request-memory", "1GB", "--run-dir", str(root), *options)
    gridml(up, "watch", str(root))
    report = json.loads(gridml(up, "report", str(root), "--json"))
    objective = report["epochs"][-1]["metrics"][OBJECTIVE[program]]
    return {
        "program": program,
        "carrier": "sftp" if "sftp" in options else "chirp",
        "numba": numba,
        "objective": objective,
        "alone": statistics.mean(alone[program]),
        "worse %": 100 * (objective / statistics.mean(alone[program]) - 1),
        "spread %": 100 * (max(alone[program]) / min(alone[program]) - 1),
        "evictions": report["kills"],
        "without farewell": report["sigkill"],
        "pushes": report["pushes"],
        "MB up": report["bytes_up"] / 1e6,
        "MB down": report["bytes_down"] / 1e6,
        **{name: report[name] for name in ("credited", "duplicated", "lost", "wasted")},
        "miscounted": "" if program == "mf" else miscounted(root),
        "min": report["wall_s"] / 60,
    }


def miscounted(root: Path) -> int:
    """Return how many counts of topics in the last version differ from a recount."""
    _, final = bundle.decode((root / "final.safetensors").read_bytes())
    words = _module("lda").graph().tables["Chapter"].edges["words"].targets
    count = np.zeros_like(final["Word/count"])
    np.add.at(count, (np.asarray(words), np.load(root / "fields" / "Chapter:words.topic.npy")), 1)
    return int((count != final["Word/count"]).sum() + (count.sum(0)[None] != final["Corpus/count"]).sum())


def _module(program: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(program, _EXAMPLES / f"{program}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

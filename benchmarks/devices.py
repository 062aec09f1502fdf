"""Measure the overhead of gridml on a GPU: one worker against a plain PyTorch loop, for a ResNet-50 and a transformer
of 124 million parameters, both defined here and fed with random data. Goal: a ratio of at least 0.95.

Without a GPU it measures nothing and says so. With --tiny it runs networks of a few thousand parameters, on the CPU if
there is no GPU, as a check that it works; those figures are not kept.

    python -m benchmarks.devices [--tiny] [REPEATS] [PROGRAM ...]
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.table import RESULTS, Cell, write
from gridml.engine.devices import find_accelerators
from master.backends.registry import make
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings

PROGRAMS = {name: Path(__file__).parent / "programs" / f"{name}.py" for name in ("resnet50", "transformer124m")}
CHUNK_BYTES = 400_000_000
WARM_STEPS = 10  # of a loop, which are not measured: kernels are chosen in them
LOOP, TINY = "--loop", "--tiny"


def main() -> None:
    if sys.argv[1:2] == [LOOP]:
        print(json.dumps(loop(*sys.argv[2:4])))
        return
    parser = parser_of(__doc__)
    parser.add_argument(TINY, action="store_true")
    parser.add_argument("repeats", nargs="?", type=int, help="3; 1 of tiny ones")
    parser.add_argument("programs", nargs="*", help=", ".join(PROGRAMS))
    options = parser.parse_args()
    tiny = options.tiny or smallest()
    here = find_accelerators()
    if here.kind != "cuda" and not tiny:
        print(f"skipped: this machine has {here}; the benchmark takes an NVIDIA GPU and a torch with CUDA.")
        return
    import torch

    if tiny:
        os.environ["GRIDML_TINY"] = "1"  # the programs are those of workers, too
    device = "cuda" if here.kind == "cuda" else "cpu"
    repeats = options.repeats or (1 if tiny else 3)
    rows = [measure(name, repeats, device) for name in options.programs or sized([*PROGRAMS], ["transformer124m"])]
    where = torch.cuda.get_device_name(0) if device == "cuda" else "the CPU"
    with tempfile.TemporaryDirectory(prefix="devices-") as unkept:
        write(
            "devices",
            f"One worker against a plain loop on {where}, torch {torch.__version__}{', tiny networks' * tiny}",
            rows,
            [
                f"medians of {repeats} pairs run in turn; ratio: median over the pairs",
                "vertices per second: of the worker what is credited between its first credit and its last, of the "
                f"loop after {WARM_STEPS} steps; the loop's batches are pinned and copied without blocking",
                f"chunks of up to {CHUNK_BYTES / 1e6:.0f} MB, which hold some batches of such images",
                "goal: ratio ≥ 0.95",
            ],
            Path(unkept) if tiny else RESULTS,
        )


def measure(name: str, repeats: int, device: str) -> dict[str, Cell]:
    """One row: a worker and a loop in turn."""
    pairs = []
    for repeat in range(repeats):
        order = (plain, worker) if repeat % 2 else (worker, plain)
        rates = {call.__name__: call(name, device) for call in order}
        pairs.append((rates["worker"], rates["plain"]))
    return {
        "program": name,
        "worker /s": statistics.median(mine for mine, _ in pairs),
        "loop /s": statistics.median(theirs for _, theirs in pairs),
        "ratio": statistics.median(mine / theirs for mine, theirs in pairs),
        "ratio min": min(mine / theirs for mine, theirs in pairs),
        "ratio max": max(mine / theirs for mine, theirs in pairs),
    }


def worker(name: str, device: str) -> float:
    """Vertices per second of a run with one worker."""
    root = Path(tempfile.mkdtemp(prefix="devices-"))
    try:
        settings = Settings(program=PROGRAMS[name], workers=1, device=device, chunk_bytes=CHUNK_BYTES)
        if "GRIDML_TINY" in os.environ:
            settings = replace(settings, push_every=16)  # several pushes, however short the run
        with start(settings, root / "run", Environment(make)) as run:
            run.finish()
        with sqlite3.connect(f"file:{root / 'run' / 'ledger.db'}?mode=ro", uri=True) as ledger:
            credits = ledger.execute("SELECT at_s, stop - start FROM credits ORDER BY at_s, rowid").fetchall()
        if len(credits) < 2 or credits[-1][0] == credits[0][0]:
            raise SystemExit(f"{name} was credited in {len(credits)} pushes; a rate takes two. Raise its EPOCHS.")
        return float(sum(n for at, n in credits if at > credits[0][0]) / (credits[-1][0] - credits[0][0]))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def plain(name: str, device: str) -> float:
    """Vertices per second of a loop, in a process of its own as a worker is."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.devices", LOOP, name, device], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(json.loads(done.stdout)["rate"])


def loop(name: str, device: str) -> dict[str, float]:
    """Run the plain PyTorch loop that a user would write without gridml."""
    import torch

    program = _loaded(PROGRAMS[name])
    torch.set_num_threads(1)
    model = program.network().to(device)
    optimiser = program.optimiser(model.parameters())
    inputs, targets = (torch.from_numpy(column) for column in program.columns())
    on_gpu = device == "cuda"
    steps, began = 0, 0.0
    for _ in range(program.EPOCHS):
        order = torch.randperm(len(inputs))
        for at in range(0, len(inputs) - program.BATCH + 1, program.BATCH):
            if steps == WARM_STEPS:
                if on_gpu:
                    torch.cuda.synchronize()
                began = time.perf_counter()
            rows = order[at : at + program.BATCH]
            batch, target = (column[rows] for column in (inputs, targets))
            if on_gpu:  # what an index makes of a pinned tensor is not pinned
                batch, target = (part.pin_memory().to(device, non_blocking=True) for part in (batch, target))
            optimiser.zero_grad()
            program.loss_of(model, batch, target).backward()
            optimiser.step()
            steps += 1
    if on_gpu:
        torch.cuda.synchronize()
    return {"rate": (steps - WARM_STEPS) * program.BATCH / (time.perf_counter() - began)}


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

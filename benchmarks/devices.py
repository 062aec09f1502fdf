"""What gridml costs on a GPU: one worker against a plain PyTorch loop, for a ResNet-50 and a transformer of 124 million
parameters, both written here and fed with random data. Goal: a ratio of at least 0.95.

Where there is no GPU it says so and measures nothing.

    python -m benchmarks.devices [REPEATS] [PROGRAM ...]
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from benchmarks.table import Cell, write
from gridml.engine.devices import present
from master.backends.registry import make
from master.environment import Environment
from master.launch import start
from master.store.settings import Settings

PROGRAMS = {name: Path(__file__).parent / "programs" / f"{name}.py" for name in ("resnet50", "transformer124m")}
CHUNK_BYTES = 400_000_000
WARM_STEPS = 10  # of a loop, which are not measured: kernels are chosen in them
LOOP = "--loop"


def main() -> None:
    if sys.argv[1:2] == [LOOP]:
        print(json.dumps(loop(sys.argv[2])))
        return
    here = present()
    if here.kind != "cuda":
        print(f"skipped: this machine has {here}; the benchmark takes an NVIDIA GPU and a torch with CUDA.")
        return
    import torch

    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows = [measure(name, repeats) for name in sys.argv[2:] or PROGRAMS]
    write(
        "devices",
        f"One worker against a plain loop on {torch.cuda.get_device_name(0)}, torch {torch.__version__}",
        rows,
        [
            f"medians of {repeats} pairs run in turn; ratio: median over the pairs",
            "vertices per second: of the worker what is credited between its first credit and its last, of the loop "
            f"after {WARM_STEPS} steps; the loop's data is in pinned memory and copied without blocking",
            f"chunks of up to {CHUNK_BYTES / 1e6:.0f} MB, which hold some batches of such images",
            "goal: ratio ≥ 0.95",
        ],
    )


def measure(name: str, repeats: int) -> dict[str, Cell]:
    """One row: a worker and a loop in turn."""
    pairs = []
    for repeat in range(repeats):
        order = (plain, worker) if repeat % 2 else (worker, plain)
        rates = {call.__name__: call(name) for call in order}
        pairs.append((rates["worker"], rates["plain"]))
    return {
        "program": name,
        "worker /s": statistics.median(mine for mine, _ in pairs),
        "loop /s": statistics.median(theirs for _, theirs in pairs),
        "ratio": statistics.median(mine / theirs for mine, theirs in pairs),
        "ratio min": min(mine / theirs for mine, theirs in pairs),
        "ratio max": max(mine / theirs for mine, theirs in pairs),
    }


def worker(name: str) -> float:
    """Vertices per second of a run with one worker."""
    root = Path(tempfile.mkdtemp(prefix="devices-"))
    try:
        settings = Settings(program=PROGRAMS[name], workers=1, device="cuda", chunk_bytes=CHUNK_BYTES)
        with start(settings, root / "run", Environment(make)) as run:
            run.finish()
        with sqlite3.connect(f"file:{root / 'run' / 'ledger.db'}?mode=ro", uri=True) as ledger:
            credits = ledger.execute("SELECT at_s, stop - start FROM credits ORDER BY at_s, rowid").fetchall()
        return float(sum(n for at, n in credits if at > credits[0][0]) / (credits[-1][0] - credits[0][0]))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def plain(name: str) -> float:
    """Vertices per second of a loop, in a process of its own as a worker is."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.devices", LOOP, name], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(json.loads(done.stdout)["rate"])


def loop(name: str) -> dict[str, float]:
    """What a user would write without gridml."""
    import torch

    program = _loaded(PROGRAMS[name])
    torch.set_num_threads(1)
    model = program.network().cuda()
    optimiser = program.optimiser(model.parameters())
    inputs, targets = (torch.from_numpy(column).pin_memory() for column in program.columns())
    steps, began = 0, 0.0
    for _ in range(program.EPOCHS):
        order = torch.randperm(len(inputs))
        for at in range(0, len(inputs) - program.BATCH + 1, program.BATCH):
            if steps == WARM_STEPS:
                torch.cuda.synchronize()
                began = time.perf_counter()
            rows = order[at : at + program.BATCH]
            batch, target = (column[rows].cuda(non_blocking=True) for column in (inputs, targets))
            optimiser.zero_grad()
            program.loss_of(model, batch, target).backward()
            optimiser.step()
            steps += 1
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

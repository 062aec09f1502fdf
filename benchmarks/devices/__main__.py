"""Measure gridml on a GPU, and show that runs on it are exact.

    python -m benchmarks.devices [--quick | --learn] [--tiny] [--into FOLDER] [PART ...]

Parts, in this order: transformer124m and resnet50 (one worker against a plain loop), exact (runs, accuracy, bits) and
kills (workers killed in a copy) at once, memory (of the device, that runs out), stops (how long a snapshot and a merged
replica stop training), shared (four and two workers on one GPU). `--quick` measures each once; `--learn` trains
simulated workers at real length instead.

The table is written after every line, so that a machine that is taken away leaves what was measured; a part that fails
leaves a line, and its traceback in `devices_failures.txt`. Needs Python, torch and the base dependencies, an NVIDIA
GPU, and MNIST below GRIDML_DATA or in the cache; no network and no installation (`PYTHONPATH=.`). Without a GPU nothing
is measured. `--tiny` runs all parts with small networks, on the CPU if there is no GPU, as a check that they work;
those figures are not kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.arguments import parser_of, sized, smallest
from benchmarks.devices import exact, failures, learning, shared, speed, stops
from benchmarks.devices.measured import ALONE, Line, Place, used_mb
from benchmarks.table import RESULTS, write
from gridml.engine.devices import find_accelerators

LEARN = "learn"
PARTS: dict[str, Callable[[Place], Iterator[Line]]] = {
    "transformer124m": speed.transformer124m,
    "resnet50": speed.resnet50,
    "shared": shared.lines,
    "stops": stops.lines,
    "exact": exact.lines,
    "kills": failures.kills,
    "memory": failures.memory,
}
# What may be cut off comes last. Those that measure no time run at once.
GROUPS = (("transformer124m",), ("resnet50",), ("exact", "kills"), ("memory",), ("stops",), ("shared",), (LEARN,))
SMALL = ("transformer124m", "stops", "kills")  # of the smallest form

RUN_ALONE: dict[str, Callable[..., object]] = {
    "speed": speed.run_alone,
    "stops": stops.run_alone,
    "exact": exact.run_alone,
    "failures": failures.run_alone,
}
NOTES = [
    "loop: the plain PyTorch loop over the same batches, in a process of its own; its "
    f"batches are pinned and copied without blocking; rates after {speed.WARM_STEPS} steps",
    "one worker: vertices credited between its first credit and its last, default settings but the bytes of a chunk "
    f"({speed.CHUNK_BYTES / 1e6:.0f} MB); starting, and compiling, are left out",
    "stop: time that the GPU does nothing for training, between the step before and the step after, by the device's "
    "own events",
    "several workers: vertices that all train a second while all train; workers share the GPU without MPS",
    "memory: of the whole device, by nvidia-smi, less what was in use before",
    "random data: accuracy is measured only where a line names it",
]


def main() -> None:
    if sys.argv[1:2] == [ALONE]:
        part, arguments = sys.argv[2:]
        print(json.dumps(RUN_ALONE[part](*json.loads(arguments))))
        return
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="measure everything once: about ten minutes")
    parser.add_argument("--learn", action="store_true", help="train at real length, until --minutes are over")
    parser.add_argument("--minutes", type=float, default=60.0, help="for --learn; lines begun later are left out")
    parser.add_argument("--tiny", action="store_true", help="see that it works: figures say nothing and are not kept")
    parser.add_argument("--into", type=Path, help=f"folder for the table; {RESULTS.name} by default")
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"got {', '.join(sorted(unknown))}, expected {', '.join(PARTS)}")
    tiny = options.tiny or smallest()
    here = find_accelerators()
    if here.kind != "cuda" and not tiny:
        print(f"skipped: this machine has {here}; the benchmark takes an NVIDIA GPU and a torch with CUDA.")
        return
    if tiny:
        os.environ["GRIDML_TINY"] = "1"  # read by the programs, in workers too
    place = Place(
        "cuda" if here.kind == "cuda" else "cpu", tiny, options.quick or tiny, options.minutes * 60, used_mb()
    )
    parts = {name: PARTS[name] for name in options.parts or sized(tuple(PARTS), SMALL)}
    if options.learn:
        parts = {LEARN: learning.lines}
    with tempfile.TemporaryDirectory(prefix="devices-") as unkept:
        folder = Path(unkept) if tiny and options.into is None else options.into or RESULTS
        if not measure(place, parts, folder, "devices_learning" if options.learn else "devices"):
            sys.exit(1)


def measure(place: Place, parts: dict[str, Callable[[Place], Iterator[Line]]], folder: Path, name: str) -> bool:
    """Write the whole table after every line; return whether every part came to its end."""
    import torch

    title = f"gridml on {place.name}, torch {torch.__version__}{', tiny networks' * place.tiny}"
    done: list[Line] = []
    failed: list[str] = []
    writing = threading.Lock()

    def add(line: Line) -> None:
        with writing:
            done.append(line)
            with contextlib.redirect_stdout(io.StringIO()):
                write(name, title, [each.row for each in done], NOTES, folder)
            print(f"{line.part}: {line.measured}: {line.result}", flush=True)

    def measure_part(part: str) -> None:
        began = time.monotonic()
        try:
            for line in parts[part](place):
                add(line)
        except Exception as error:
            failed.append(part)
            add(Line(part, "", f"failed: {type(error).__name__}: {str(error)[:200]}"))
            traceback.print_exc()
            with (folder / f"{name}_failures.txt").open("a") as kept:
                kept.write(f"{part}\n{traceback.format_exc()}\n")
        print(f"{part} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    for group in GROUPS:
        with ThreadPoolExecutor(len(group)) as pool:
            list(pool.map(measure_part, [part for part in group if part in parts]))
    return not failed


if __name__ == "__main__":
    main()

"""Measure two and four workers on one GPU that train the transformer and push its 500 MB every 30 seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from benchmarks.devices.measured import PROGRAMS, DeviceMemory, Line, Place, folder
from benchmarks.devices.speed import loop_of
from master.backends.registry import make
from master.launch import start
from master.ports.environment import Environment
from master.simulation.result import verify_credits
from master.store.settings import Settings
from master.views.report import report

NAME = "transformer124m"
PUSH_S, RUN_S = 30.0, 60.0  # of training: two pushes each
CHUNK_BYTES = 800_000_000
WARM_STEPS = 3  # of every worker, which are not counted: the module is compiled in them
MIN_GOODPUT = 0.9


def lines(place: Place) -> Iterator[Line]:
    for workers in (4, 2):
        yield shared(workers, *loop_of(NAME, place), place)


def shared(workers: int, rate: float, loop_mb: float, place: Place) -> Line:
    """A run of this many workers beside a loop of `rate` sequences per second, which took `loop_mb` of the device."""
    batch = 4 if place.tiny else 16
    each = 64 if place.tiny else int(rate * PUSH_S / workers) // batch * batch
    count = 768 if place.tiny else round(RUN_S / PUSH_S) * workers * each
    settings = Settings(
        program=PROGRAMS / f"{NAME}.py",
        workers=workers,
        device=place.device,
        epochs=1,
        chunk=each,
        chunk_bytes=CHUNK_BYTES,
        push_every=each,
        steps_each=0,
    )
    with folder() as root, DeviceMemory() as used:
        (root / "times").mkdir()
        with (
            mock.patch.dict(os.environ, {"STEP_TIMES": str(root / "times"), "COUNT": str(count)}),
            start(settings, root / "run", Environment(make)) as run,
        ):
            run.finish()
        exact, shown = verify_credits(root / "run"), report(root / "run")
        together = rate_while_all_train(root / "times", workers)
        sizes = batch_sizes(root / "times")
    goodput = together / rate
    return Line(
        "shared",
        f"{workers} workers on one GPU, a push every {PUSH_S:g} s each: of the loop's sequences per second",
        f"{together:,.0f} / {rate:,.0f} = {goodput:.3f}; {exact.credits} pushes, {exact.credited:,} of {count:,} "
        f"credited, {sum(row.duplicated + row.lost for row in shown.epochs)} twice or lost; batches of {sizes}; device "
        f"memory {used.peak_mb:,.0f} MB, of the loop {loop_mb:,.0f} MB",
        f"≥ {MIN_GOODPUT}, all credited once",
        goodput >= MIN_GOODPUT and exact.credited == count,
    )


def steps_of(folder: Path) -> list[list[tuple[float, int]]]:
    """Return (time, vertices) of every step but the first ones, by worker."""
    found = []
    for file in sorted(folder.iterdir()):
        lines = [line.split() for line in file.read_text().splitlines()]
        found.append([(float(at), int(count)) for at, count in lines][WARM_STEPS:])
    return [steps for steps in found if steps]


def rate_while_all_train(folder: Path, workers: int) -> float:
    """Return the vertices per second of all workers between the first step of the last one to begin and the last step
    of the first one to end."""
    steps = steps_of(folder)
    if len(steps) != workers:
        raise RuntimeError(f"{len(steps)} of {workers} workers trained for long enough")
    begin, end = max(of[0][0] for of in steps), min(of[-1][0] for of in steps)
    if end <= begin:
        raise RuntimeError("the workers did not train at the same time")
    return sum(count for of in steps for at, count in of if begin <= at < end) / (end - begin)


def batch_sizes(folder: Path) -> str:
    """Return the sizes of batches that were trained."""
    return ", ".join(map(str, sorted({count for of in steps_of(folder) for _, count in of})))

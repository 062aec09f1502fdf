"""Compare one worker with a plain PyTorch loop: a ResNet-50 and a transformer of 124 million parameters."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.credited_rate import credited_rate
from benchmarks.devices.measured import PROGRAMS, DeviceMemory, Line, Place, alone, folder, loaded
from master.backends.registry import make
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings

UNITS = {"resnet50": ("images", 1), "transformer124m": ("tokens", 1024)}  # units of a vertex
CHUNK_BYTES = 400_000_000
WARM_STEPS = 10  # of a loop, which are not measured: kernels are chosen in them
LOOP_S, RUN_S = 6.0, 18.0  # of training
MIN_RATIO = 0.95


def resnet50(place: Place) -> Iterator[Line]:
    return lines("resnet50", place)


def transformer124m(place: Place) -> Iterator[Line]:
    return lines("transformer124m", place)


def lines(name: str, place: Place) -> Iterator[Line]:
    unit, each = UNITS[name]
    rates, memory = compare(name, place)
    loop, mine = statistics.mean(rates["loop"]), statistics.mean(rates["worker"])
    ratio, apart = mine / loop, max(rates["loop"]) / min(rates["loop"])
    yield Line(
        name,
        f"one worker against a loop, {unit} per second",
        f"{mine * each:,.0f} / {loop * each:,.0f} = {ratio:.3f}"
        + (f" (loops differ by {apart - 1:.1%})" if len(rates["loop"]) > 1 else ""),
        f"≥ {MIN_RATIO}",
        ratio >= MIN_RATIO,
    )
    yield Line(
        name,
        "device memory of a worker, of a loop",
        f"{memory['worker']:,.0f} MB, {memory['loop']:,.0f} MB",
    )


def compare(name: str, place: Place) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return (vertices per second by "worker" and "loop", peak memory in MB by the same)."""
    rate, used_mb = loop_of(name, place)
    rates: dict[str, list[float]] = {"worker": [], "loop": [rate]}
    memory = {"worker": 0.0, "loop": used_mb}
    for which in ["worker"] if place.quick else ["worker", "worker", "loop", "loop"] * 2:
        with DeviceMemory() as used:
            rate = worker(name, place, rates["loop"][0]) if which == "worker" else plain(name, place)
        rates[which].append(rate)
        memory[which] = max(memory[which], used.peak_mb)
    return rates, memory


@functools.cache
def loop_of(name: str, place: Place) -> tuple[float, float]:
    """Return (vertices per second of a loop, its peak memory of the device in MB), measured once."""
    with DeviceMemory() as used:
        rate = plain(name, place)
    return rate, used.peak_mb


def plain(name: str, place: Place) -> float:
    """Return the vertices per second of a loop, in a process of its own as a worker is."""
    return float(alone("speed", name, place.device, 0.2 if place.tiny else LOOP_S)["rate"])


def worker(name: str, place: Place, rate: float) -> float:
    """Return the vertices per second of a run with one worker, which takes `RUN_S` at `rate` vertices per second."""
    program = loaded(PROGRAMS / f"{name}.py")
    epochs = 2 if place.tiny else max(2, math.ceil(rate * RUN_S / program.COUNT))
    settings = Settings(
        program=PROGRAMS / f"{name}.py", workers=1, device=place.device, chunk_bytes=CHUNK_BYTES, epochs=epochs
    )
    if place.tiny:
        settings = replace(settings, push_every=16)  # several pushes in a short run
    with folder() as root:
        with start(settings, root / "run", Environment(make)) as run:
            run.finish()
        return credited_rate(root / "run")


def run_alone(name: str, device: str, seconds: float) -> dict[str, float]:
    """Run the plain PyTorch loop that a user would write without gridml, for `seconds` after its warm-up."""
    import torch

    program = loaded(PROGRAMS / f"{name}.py")
    torch.set_num_threads(1)
    model = program.network().to(device)
    optimiser = program.optimiser(model.parameters())
    inputs, targets = (torch.from_numpy(column) for column in program.columns())
    on_gpu = device == "cuda"
    steps, began = 0, math.inf
    while time.perf_counter() < began + seconds:
        order = torch.randperm(len(inputs))
        for at in range(0, len(inputs) - program.BATCH + 1, program.BATCH):
            if time.perf_counter() > began + seconds:
                break
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

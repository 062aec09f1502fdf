"""Measure for how long a snapshot, and a merged replica that comes back, stop the training of the transformer.

An engine as in a worker trains in this process. The device records an event after every step; a stop is the time
between two of them less that of a usual step.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from benchmarks.devices.measured import PROGRAMS, Line, Place, alone, shown
from gridml.engine.engine import Snapshot

PROGRAM = PROGRAMS / "transformer124m.py"
ROUNDS, STEPS = 6, 4
MAX_STOP_MS = 20.0


def lines(place: Place) -> Iterator[Line]:
    found = alone("stops", place.device, 3 if place.tiny else ROUNDS)
    name = f"a replica of {found['replica_mb']:,.0f} MB"
    worst = max(found["snapshot_ms"][1:])
    yield Line(
        "stops",
        f"{name}: a snapshot stops training for",
        f"{statistics.median(found['snapshot_ms']):.1f} ms (the first {found['snapshot_ms'][0]:.1f}, "
        f"of the others at most {worst:.1f}); it is on the host after {shown(found['arrival_ms'], 'ms')}",
        f"< {MAX_STOP_MS:g} ms",
        statistics.median(found["snapshot_ms"]) < MAX_STOP_MS,
    )
    yield Line(
        "stops",
        f"{name}: taking others' work in stops training for",
        f"{statistics.median(found['rebase_ms']):.0f} ms (the first {found['rebase_ms'][0]:.0f}); "
        f"a step takes {found['step_ms']:.1f} ms",
    )
    yield Line(
        "stops",
        f"{name}: of the host, before a snapshot, in it, in taking work in",
        f"{shown(found['drain_ms'], 'ms')}; {shown(found['capture_ms'], 'ms')}; {shown(found['adopt_ms'], 'ms')}",
    )
    yield Line(
        "stops",
        f"{name}: allocated on the device at most, in training, with snapshots",
        f"{found['trained_mb']:,.0f} MB, {found['snapshots_mb']:,.0f} MB",
    )


def run_alone(device: str, rounds: int) -> dict[str, Any]:
    """Train, take snapshots and adopt replicas; return what each stopped and took, in milliseconds."""
    import torch

    from gridml.engine.devices import Device
    from gridml.model.loading import load
    from gridml.protocol.push import ReplicaPart
    from master.evaluation.metrics import first_chunk, start_engine
    from master.store.versions import initial

    torch.set_num_threads(1)
    on_gpu = device == "cuda"
    program = load(PROGRAM)
    batch = program.shape.batch or 1
    graph = program.build(PROGRAM)
    engine, begun = start_engine(
        program, first_chunk(program, graph, 4 * batch), initial(graph, 0), Device("cuda:0" if on_gpu else "cpu")
    )
    newest = ReplicaPart({key: {n: t.copy() for n, t in tensors.items()} for key, tensors in begun.modules.items()})
    assert engine.chunk is not None
    at, whole = 0, engine.chunk.count - engine.chunk.count % batch

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def trained(steps: int) -> list[Any]:
        """Train this many batches; return the device's event after each."""
        nonlocal at
        events = []
        for _ in range(steps):
            engine.train(at, at + batch, 1.0)
            at = (at + batch) % whole
            events.append(Event(on_gpu))
        return events

    trained(3)
    wait()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    usual = trained(4 * STEPS)
    wait()
    steps_ms = [one.until(other) for one, other in pairwise(usual)]
    step_ms = statistics.median(steps_ms)
    trained_mb = torch.cuda.max_memory_allocated() / 1e6 if on_gpu else 0.0
    found: dict[str, list[float]] = {
        name: [] for name in ("snapshot_ms", "arrival_ms", "rebase_ms", "drain_ms", "capture_ms", "adopt_ms")
    }
    for _ in range(rounds):
        before = trained(STEPS)
        began = time.perf_counter()
        wait()
        drained = time.perf_counter()
        snapshot = engine.snapshot()
        taken = time.perf_counter()
        arrived: list[float] = []
        courier = threading.Thread(target=wait_for, args=(snapshot, arrived))
        courier.start()
        after = trained(STEPS)
        courier.join()
        wait()
        found["snapshot_ms"].append(before[-1].until(after[0]) - step_ms)
        found["drain_ms"].append((drained - began) * 1e3)
        found["capture_ms"].append((taken - drained) * 1e3)
        found["arrival_ms"].append((arrived[0] - taken) * 1e3)
        before = trained(STEPS)
        merged = engine.received(newest)  # on the courier's thread, in a worker
        wait()
        began = time.perf_counter()
        engine.rebase(snapshot, merged, 2)
        found["adopt_ms"].append((time.perf_counter() - began) * 1e3)
        after = trained(STEPS)
        wait()
        found["rebase_ms"].append(before[-1].until(after[0]) - step_ms)
    return {
        **found,
        "step_ms": step_ms,
        "replica_mb": sum(t.nbytes for tensors in begun.modules.values() for t in tensors.values()) / 1e6,
        "trained_mb": trained_mb,
        "snapshots_mb": torch.cuda.max_memory_allocated() / 1e6 if on_gpu else 0.0,
    }


def wait_for(snapshot: Snapshot, arrived: list[float]) -> None:
    """Do the courier's part: wait for a copy on another thread."""
    snapshot.wait()
    arrived.append(time.perf_counter())


class Event:
    """The time at which the device has computed all that it was given so far; of the CPU, the present."""

    def __init__(self, on_gpu: bool) -> None:
        import torch

        self._at_s = time.perf_counter()
        self._event: Any = None
        if on_gpu:
            cuda: Any = torch.cuda  # whose events are untyped
            self._event = cuda.Event(enable_timing=True)
            self._event.record()

    def until(self, other: Event) -> float:
        """Milliseconds from this event to another."""
        if self._event is None or other._event is None:
            return (other._at_s - self._at_s) * 1e3
        return float(self._event.elapsed_time(other._event))

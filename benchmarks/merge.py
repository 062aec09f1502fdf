"""Compare the merge with memcpy of the same bytes: gate and average in one pass, one thread, through `RuleSet`.

A stale replica is merged by `stale_mean`: it reads v, b and p, writes the result, and computes Σ(p−b)² and finiteness
in the same pass. A copy reads once and writes once, so bandwidth alone would give 2 streams over 4 = 0.5. Calls are
repeated in turn, so that other load affects all of them, each with its own arrays warm in the caches.

    python -m benchmarks.merge
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from gridml.aggregates import Merge, RuleSet, VertexState, stale_mean
from gridml.protocol import bundle

Array = NDArray[Any]
SIZES = sized(((1, 1, 2001), (25, 10, 101), (100, 60, 31)), ((1, 1, 3),))
"""Megabytes of a replica, the number of tensors they are spread over, and repeats: about 0.1 s or more of each call."""
STALE = Merge(version=9, base=3, vertices=512, credited_by_others=1536, live=4)
FRESH = Merge(version=9, base=9, vertices=512, credited_by_others=0, live=4)


def main() -> None:
    numbers(__doc__)
    rows = [measure(megabytes, tensors, repeats) for megabytes, tensors, repeats in SIZES]
    write(
        "merge",
        "Merging a float32 replica against memcpy of the same bytes",
        rows,
        [
            "merge: stale_mean at τ = 3, a whole push through RuleSet, into preallocated arrays, one thread",
            "fast-forward: the same for a replica whose base is the current version (out = p, with the gate's sums)",
            "push: the cost of a push without training, medians of 9; it includes the master's fsync",
            "memcpy: numpy.copyto, tensor by tensor, one thread",
            "medians of repeats taken in turn, after a warm-up; ratio = memcpy/merge; goal ≥ 0.4",
        ],
    )


def measure(megabytes: int, count: int, repeats: int) -> dict[str, Cell]:
    """Return a line of the table: milliseconds of a copy, a merge and a fast-forward of `count` tensors."""
    random = np.random.default_rng(megabytes)
    elements = megabytes * 1_000_000 // 4 // count
    master, replica, base, out, copied = (
        {f"layer{i}.weight": random.standard_normal(elements, dtype=np.float32) for i in range(count)} for _ in range(5)
    )
    rules = RuleSet(dict.fromkeys(master, stale_mean()))
    state, room = VertexState(master), VertexState(out)

    def copy() -> None:
        for name, array in replica.items():
            np.copyto(copied[name], array)

    def merge(how: Merge) -> Callable[[], None]:
        def call() -> None:
            if rules.merge(state, replica, base, how, out=room).not_finite is not None:
                raise AssertionError("a finite replica was called not finite")

        return call

    copying, merging, forwarding = _medians([copy, merge(STALE), merge(FRESH)], repeats)
    with tempfile.TemporaryDirectory(prefix="merge-") as folder:
        sending, receiving = _push(Path(folder), rules, state, replica, base, room)
    return {
        "MB": megabytes,
        "tensors": count,
        "repeats": repeats,
        "memcpy ms": copying * 1e3,
        "merge ms": merging * 1e3,
        "ratio": copying / merging,
        "fast-forward ms": forwarding * 1e3,
        "fast-forward ratio": copying / forwarding,
        "push: worker ms": sending * 1e3,
        "push: master ms": receiving * 1e3,
    }


def _push(
    folder: Path,
    rules: RuleSet,
    master: VertexState,
    replica: dict[str, Array],
    base: dict[str, Array],
    out: VertexState,
) -> tuple[float, float]:
    """Return the median seconds of a whole push on the worker (snapshot, bundle, SHA-256, file) and on the master
    (read, SHA-256, parse, merge, new version with SHA-256 and fsync)."""
    sent, received = [], []
    for _ in range(9):
        start = time.perf_counter()
        payload = bundle.encode({}, {name: array.copy() for name, array in replica.items()})
        sha256 = bundle.digest(payload)
        bundle.write_atomic(folder / "sync.safetensors", payload, durable=False)
        sent.append(time.perf_counter() - start)
        start = time.perf_counter()
        arrived = (folder / "sync.safetensors").read_bytes()
        if bundle.digest(arrived) != sha256:
            raise AssertionError("a bundle came back altered")
        merged = rules.merge(master, bundle.decode(arrived)[1], base, STALE, out=out)
        version = bundle.encode({}, merged.state.tensors)
        bundle.digest(version)
        bundle.write_atomic(folder / "version.safetensors", version)
        received.append(time.perf_counter() - start)
    return statistics.median(sent), statistics.median(received)


def _medians(calls: list[Callable[[], None]], repeats: int) -> list[float]:
    """Return the median seconds of each call, taken in turn. An unmeasured call right before warms its arrays."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, seconds, strict=True):
            call()
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


if __name__ == "__main__":
    main()

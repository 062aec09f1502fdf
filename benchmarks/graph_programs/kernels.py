"""Compare the kernel that is generated from `learn` of examples/mf.py with one written by hand for the same arrays.

Both go over the same ratings (synthetic, with popular items) in the same order, in the same process, in turn. CPU
seconds, one thread. `start` is what a process pays until the stage can run, with the machine code cached: beyond the
imports of gridml's engine and numba, which are listed beside it.

    python -m benchmarks.graph_programs.kernels
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from gridml.codegen.cache import module_of
from gridml.codegen.kernel import FAST, kernel_of
from gridml.model.loading import load
from gridml.model.phases import Stages

Array = NDArray[Any]
MF = Path(__file__).parents[2] / "examples" / "mf.py"
USERS, ITEMS, RATINGS = sized((70_000, 10_000, 4_000_000), (50, 20, 500))
REPEATS, STARTS = sized((9, 5), (1, 1))
RIDGE = np.float32(0.06)
START = """
import json, sys, time
began = time.process_time()
import numba
import gridml
from gridml.engine.engine import Engine
from gridml.model.loading import load
imported = time.process_time()
from pathlib import Path
program = load(Path(sys.argv[1]))
loaded = time.process_time()
from gridml.model.chunk import Chunk, ChunkEdges, ChunkTable
import numpy as np
ids = np.arange(1)
floats = {"bias": np.zeros(1, np.float32), "p": np.zeros((1, 32), np.float32)}
tables = {"User": ChunkTable("User", ids, floats), "Item": ChunkTable("Item", ids, {}),
          "Shared": ChunkTable("Shared", ids, {})}
one = np.zeros(1, np.int64)
edges = {"User/rated": ChunkEdges("Item", one, np.array([0, 1]), weight=np.zeros(1, np.float32)),
         "User/@Shared": ChunkEdges("Shared", one)}
engine = Engine(program)
engine.begin(Chunk("User", tables, edges))
engine.compile()
print(json.dumps([imported - began, loaded - imported, time.process_time() - loaded]))
"""


@njit(nogil=True, fastmath=set(FAST), error_model="numpy")
def by_hand(
    offsets: Array, items: Array, stars: Array, bias: Array, p: Array, bias_of: Array, q: Array, mean: Any, rate: Any,
    ridge: Any, out: Array,
) -> None:  # fmt: skip
    """Matrix factorisation with biases, as a person would write it."""
    rank, loss = p.shape[1], 0.0
    for user in range(len(offsets) - 1):
        for edge in range(offsets[user], offsets[user + 1]):
            item = items[edge]
            error = stars[edge] - mean - bias[user] - bias_of[item]
            for f in range(rank):
                error -= p[user, f] * q[item, f]
            loss += error * error
            bias[user] += rate * (error - ridge * bias[user])
            bias_of[item] += rate * (error - ridge * bias_of[item])
            for f in range(rank):
                a, b = p[user, f], q[item, f]
                p[user, f] = a + rate * (error * b - ridge * a)
                q[item, f] = b + rate * (error * a - ridge * b)
    out[0] += loss


def data() -> dict[str, Array]:
    """Return arrays by name: ratings of users in order, and factors before training."""
    rng = np.random.default_rng(0)
    user = np.sort(rng.integers(0, USERS, RATINGS))
    item = (ITEMS * rng.random(RATINGS) ** 2).astype(np.int32)
    start = np.random.default_rng(1)
    return {
        "offsets": np.searchsorted(user, np.arange(USERS + 1)).astype(np.int64),
        "ends": item,
        "weight": rng.normal(0, 1, RATINGS).astype(np.float32),
        "p": start.normal(0, 0.1, (USERS, 32)).astype(np.float32),
        "q": start.normal(0, 0.1, (ITEMS, 32)).astype(np.float32),
        "user": np.zeros(USERS, np.float32),
        "item": np.zeros(ITEMS, np.float32),
        "loss": np.zeros(1),
    }


def generated(*, exact: bool) -> Callable[[dict[str, Array]], None]:
    """Return a call of the generated kernel."""
    shape = load(MF).shape
    assert isinstance(shape, Stages)
    kernel = kernel_of(shape.stages[0], exact=exact)
    call = module_of(kernel.text, "learn").kernel
    columns = {
        "at.loss": "loss", "item.bias": "item", "item.q": "q", "rating.weight": "weight", "user.bias": "user",
        "user.p": "p",
    }  # fmt: skip
    scalars = {"at.mean": np.float32(0), "at.rate": np.float32(0.02)}

    def run(d: dict[str, Array]) -> None:
        names = [str(column.access) for column in kernel.columns]
        given = [scalars[name] if name in scalars else d[columns[name]] for name in names]
        edges = d["offsets"][:-1], d["offsets"][1:], d["ends"]
        call(0, USERS, *edges, *given, *(number for _, number in kernel.numbers))

    return run


def hand(d: dict[str, Array]) -> None:
    by_hand(
        d["offsets"], d["ends"], d["weight"], d["user"], d["p"], d["item"], d["q"], np.float32(0), np.float32(0.02),
        RIDGE, d["loss"],
    )  # fmt: skip


def main() -> None:
    numbers(__doc__)
    kernels = {"by hand": hand, "generated": generated(exact=False), "generated, exact": generated(exact=True)}
    cpu_s: dict[str, list[float]] = {name: [] for name in kernels}
    loss = {}
    for call in kernels.values():
        call(data())  # compiles, and warms up
    for _ in range(REPEATS):
        for name, call in kernels.items():
            d = data()
            began = time.process_time()
            call(d)
            cpu_s[name].append(time.process_time() - began)
            loss[name] = float(d["loss"][0])
    rows: list[dict[str, Cell]] = []
    for name, seconds in cpu_s.items():
        rates = [RATINGS / each / 1e6 for each in seconds]
        rows.append({
            "kernel": name,
            "M ratings per CPU-s": round(statistics.median(rates), 1),
            "best": round(max(rates), 1),
            "by hand": round(statistics.median(h / g for h, g in zip(cpu_s["by hand"], seconds, strict=True)), 3),
            "squared error of a pass": round(loss[name], 1),
        })  # fmt: skip
    starts = [start() for _ in range(STARTS + 1)][1:]
    imports, loading, ready = (round(statistics.median(each), 3) for each in zip(*starts, strict=True))
    write(
        "graph_kernels",
        "A generated kernel against one written by hand",
        rows,
        [
            f"{RATINGS:,} ratings, {USERS:,} users, {ITEMS:,} items, rank 32; medians of {REPEATS} turns, one thread; "
            f"by hand: the median ratio of speeds within a turn, goal at least 0.95",
            f"cached start: {ready} CPU-s until the stage can run, beyond {imports} for importing gridml's engine and "
            f"numba, and {loading} for loading the program; median of {STARTS} processes; goal at most 0.4",
            f"load of the machine before and after: {LOAD[0]:.1f}, {os.getloadavg()[0]:.1f}",
        ],
    )


def start() -> list[float]:
    done = subprocess.run([sys.executable, "-c", START, str(MF)], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


LOAD = os.getloadavg()

if __name__ == "__main__":
    main()

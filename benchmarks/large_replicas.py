"""Replicas of 100 MB and more: memory, goodput and the cost of a push, with two local workers at default settings.

For comparison, a plain loop runs over the same batches of the same network. Each runs in a process of its own, whose
anonymous memory (RssAnon) is sampled continuously. The last case is a small head on a frozen embedding of 24 MB, which
must not travel: the bytes pushed per vertex are compared with those of the head alone.

    python -m benchmarks.large_replicas [MB ...]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.arguments import sized, smallest, whole_numbers
from benchmarks.table import Cell, markdown, write
from master.backends.registry import make
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.views.report import report

PROGRAMS = Path(__file__).parent / "programs"
SIZES = sized((100, 500, 2000), (1,))  # MB
MEMORY = 11  # memory of a run, in replicas: about 20 GB for one of 2 GB
RUN_S, RUN_MB = (
    sized(60.0, 0.5),
    500,
)  # the approximate training time of a run on two workers; longer in proportion for replicas of more MB
LOOP_S = sized(12.0, 0.5)  # of the plain loop
SAMPLE_S = 0.02  # between two samples of the memory of a process
BATCH, FEATURES, INNER = 256, 784, sized(5_000, 50)  # of wide_net
WORKERS = sized(2, 1)
MIN_GOODPUT, MAX_REPLICAS, MAX_FROZEN = 0.85, 3.0, 1.2  # of 100 MB; of memory beyond the loop's; ratio of bytes pushed


@dataclass(frozen=True)
class Loop:
    """The result of a plain loop."""

    rate: float  #: samples per second
    peak_mb: float  #: anonymous memory


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    goodput: float
    pushes: float
    bytes_up: float
    credited: float
    wall_s: float
    master_push_s: float  #: CPU seconds of the master per push
    worker_push_s: float  #: CPU seconds of the worker per push
    travel_s: float  #: from sending a push to its answer
    cpu_s: float
    load: float


class Peaks(threading.Thread):
    """A sampler of the peak anonymous memory, in MB, of process `master` and of the largest of its workers."""

    def __init__(self, master: int) -> None:
        super().__init__(daemon=True)
        self.master_mb = self.worker_mb = 0.0
        self._master = master
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.master_mb = max(self.master_mb, anonymous_mb(self._master))
            self.worker_mb = max([self.worker_mb, *(anonymous_mb(process) for process in _workers(self._master))])

    def end(self) -> None:
        self._ended.set()
        self.join()


def anonymous_mb(process: int) -> float:
    """Return the MB of a process that no file backs, 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / 1e6 if "RssAnon:" in status else 0.0


def _workers(master: int) -> list[int]:
    """Return the workers of a master. Linux lists children by the thread that started them."""
    workers = []
    for children in Path(f"/proc/{master}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                if b"--name=" in Path(f"/proc/{child}/cmdline").read_bytes():
                    workers.append(int(child))
        except OSError:
            continue
    return workers


def main() -> None:
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6
    asked = whole_numbers(__doc__)
    sizes = asked or [mb for mb in SIZES if mb * MEMORY < memory_mb]
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory(prefix="large-") as folder:
        inside, _ = frozen("inside", Path(folder))
        head, master_mb = frozen("outside", Path(folder))
        for mb in sizes:
            rows.append(measure(mb, master_mb, Path(folder)))
            print(rows[-1], flush=True)
    ratio = inside / head
    notes = [
        f"two local workers on this machine, default settings, batches of {BATCH}; an epoch of some {RUN_S:.0f} s of "
        f"training, boots included; proportionally longer for more than {RUN_MB} MB",
        "MB: peak anonymous memory (RssAnon), sampled every 20 ms; replicas: memory in replicas, beyond that of the "
        "plain loop, which holds model, gradients and optimiser; of the master beyond the samples, the replica "
        f"itself, and the {master_mb:.0f} MB of a master whose replica has 5 kB; at most {MAX_REPLICAS:g}",
        f"goodput: from gridml report; at least {MIN_GOODPUT:.0%} for 100 MB",
        "push s: CPU seconds of the master for a push and its answer, of a worker, and from sending to the answer",
        f"a frozen embedding of 24 MB with a small head: {inside:,.0f} bytes pushed per vertex, {head:,.0f} by the "
        f"head alone: {ratio:.2f} times as many; at most {MAX_FROZEN:g}",
    ]
    if asked:
        print("\n".join([*markdown(rows), *notes]))
    else:
        write("large_replicas", "Large replicas: memory, goodput, and the cost of a push", rows, notes)
    missed = [row for row in rows if max(_number(row["replicas"]), _number(row["of master"])) > MAX_REPLICAS]
    missed += [row for row in rows if row["MB"] == 100 and _number(row["goodput"]) < MIN_GOODPUT]
    if not smallest() and (missed or ratio > MAX_FROZEN):
        raise SystemExit(f"a bound is missed: {missed or ratio}")


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


def measure(mb: int, master_mb: float, folder: Path) -> dict[str, Cell]:
    """Return the table's line of a replica of `mb` MB. A master with a tiny replica takes `master_mb`."""
    wide = {"WIDE_OUTER": str(_outer(mb))}
    loop = Loop(**_child(["loop"], wide)[0])
    run_s = RUN_S * max(1.0, mb / RUN_MB)
    count = max(2, round(run_s * loop.rate * min(WORKERS, os.cpu_count() or 1) / BATCH)) * BATCH
    answer, peaks = _child(["run", "wide_net.py", str(folder / f"run-{mb}")], {**wide, "WIDE_ROWS": str(count)})
    run = Run(**answer)
    return {
        "MB": mb,
        "loop MB": round(loop.peak_mb),
        "worker MB": round(peaks.worker_mb),
        "replicas": round((peaks.worker_mb - loop.peak_mb) / mb, 2),
        "master MB": round(peaks.master_mb),
        "of master": round((peaks.master_mb - master_mb - count * FEATURES * 4 / 1e6) / mb - 1, 2),
        "goodput": round(run.goodput, 3),
        "samples": int(run.credited),
        "run s": round(run.wall_s),
        "pushes": int(run.pushes),
        "push s: master": round(run.master_push_s, 3),
        "worker": round(run.worker_push_s, 3),
        "answered": round(run.travel_s, 2),
        "CPU s": round(run.cpu_s),
        "load": round(run.load, 1),
    }


def _outer(mb: int) -> int:
    """Return the width of wide_net's second layer for a size in MB of float32."""
    return max(1, round((mb * 250_000 - (FEATURES + 1) * INNER - 10) / (INNER + 11)))


def frozen(place: str, folder: Path) -> tuple[float, float]:
    """Return (bytes pushed per vertex, peak MB of the master), with the embedding `inside` or `outside` of the
    program."""
    answer, peaks = _child(["run", "frozen_embedding.py", str(folder / place)], {"EMBEDDING": place})
    run = Run(**answer)
    return run.bytes_up / run.credited, peaks.master_mb


def _child(arguments: list[str], environment: dict[str, str]) -> tuple[dict[str, float], Peaks]:
    """Run this file in another process. Return its result, and the peak memory of it and its workers."""
    command = [sys.executable, "-m", "benchmarks.large_replicas", "--", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        peaks = Peaks(process.pid)
        peaks.start()
        said, _ = process.communicate()
        peaks.end()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    answer: dict[str, float] = json.loads(said.splitlines()[-1])
    return answer, peaks


def plain_loop() -> Loop:
    """Train wide_net for `LOOP_S` in a usual PyTorch loop."""
    import torch
    import torch.nn.functional as F

    from benchmarks.programs.wide_net import Wide

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = Wide()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
    features, labels = torch.randn(8 * BATCH, FEATURES), torch.randint(0, 10, (8 * BATCH,))
    peaks, began, done = Peaks(os.getpid()), 0.0, -1
    peaks.start()
    while not began or time.perf_counter() - began < LOOP_S:
        at = (done + 1) % 8 * BATCH
        loss = F.cross_entropy(network(features[at : at + BATCH]), labels[at : at + BATCH])
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        began, done = began or time.perf_counter(), done + 1  # the first step allocates and is not timed
    rate = done * BATCH / (time.perf_counter() - began)
    peaks.end()
    return Loop(rate, peaks.master_mb)


def run(program: str, root: Path) -> Run:
    """Run one master at default settings in this process."""
    began = resource.getrusage(resource.RUSAGE_SELF)
    with start(Settings(PROGRAMS / program, workers=WORKERS), root, Environment(make)) as running:
        running.finish()
        master_push_s = running.parts.exchange.pace.push_s
        measures = running.parts.leases.sizing.measures
    shown = report(root)
    assert shown.duplicated == shown.lost == 0 and shown.credited == shown.vertices
    ended, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime + workers.ru_utime + workers.ru_stime
    return Run(
        goodput=shown.goodput or 0.0,
        pushes=shown.pushes,
        bytes_up=shown.bytes_up,
        credited=shown.credited,
        wall_s=shown.wall_s,
        master_push_s=master_push_s,
        worker_push_s=measures.push_s("") or 0.0,
        travel_s=measures.travel_s(""),
        cpu_s=cpu_s,
        load=os.getloadavg()[0],
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--", "loop"]:
            print(json.dumps(asdict(plain_loop())))
        case ["--", "run", program, root]:
            print(json.dumps(asdict(run(program, Path(root)))))
        case _:
            main()

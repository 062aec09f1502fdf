"""Show what becomes of a run whose workers are killed in the middle of a copy, or whose device has no memory left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.devices.measured import (
    ALONE,
    PROGRAMS,
    ROOT,
    Line,
    Place,
    environment,
    folder,
    gridml,
    used_mb,
    wait_until,
)
from gridml.model.device_memory import CUDA, PRIVATE_USE
from master.simulation.result import verify_credits
from master.views.report import report

KILLS = 6
WIDE = {"WIDE_OUTER": "19200", "WIDE_ROWS": "65536"}  # of wide_net: a replica of 400 MB; not if it is tiny
KEPT_FREE = 300_000_000  # bytes that the other process leaves, too few for a process to begin on the device
LIMIT_S = 150.0


def kills(place: Place) -> Iterator[Line]:
    yield killed(place)


def memory(place: Place) -> Iterator[Line]:
    if place.device == CUDA:  # else there is no memory to run out of
        yield taken_by_another()
        yield too_large()


def killed(place: Place) -> Line:
    """Two workers, the first of which kill themselves while a snapshot is copied to the host."""
    wanted = 2 if place.tiny else KILLS
    on_gpu = place.device == CUDA
    with folder() as root:
        more = {"DEATHS": str(root), "KILLS": str(wanted), **WIDE, **({} if on_gpu else {"PRETEND": "1"})}
        device, every, epochs = CUDA if on_gpu else PRIVATE_USE, *(("256", "6") if place.tiny else ("1024", "1"))
        asked = ("--device", device, "--workers", "2", "--push-every", every, "--epochs", epochs)
        program = PROGRAMS / "dies_in_copy.py"
        ended = gridml(
            "run", str(program), *asked, "--run-dir", str(root / "run"), "--json", limit_s=LIMIT_S, more=more
        )
        if ended.status:
            raise RuntimeError(f"the run with kills ended with {ended.status}: {ended.errors[-2000:]}")
        died = sum((root / str(number)).exists() for number in range(wanted))
        exact, shown = verify_credits(root / "run"), report(root / "run")
    freed = wait_until(lambda: used_mb() <= place.idle_mb + 100, 60.0)
    return Line(
        "kills",
        f"{wanted} workers end by SIGKILL while a snapshot is on its way from the device",
        f"{died} died so; {exact.credited:,} of {shown.vertices * exact.epochs:,} credited once, "
        f"{shown.duplicated + shown.lost} twice or lost, {shown.wasted:,} trained again; the device's memory "
        f"is {'free again' if freed else f'not free: {used_mb() - place.idle_mb:,.0f} MB'}",
        "all killed, all credited once",
        died == wanted and exact.credited == shown.vertices * exact.epochs and freed,
    )


def too_large() -> Line:
    """A batch that no card holds."""
    with folder() as root:
        ended = gridml(
            *("run", str(PROGRAMS / "resnet50.py"), "--device", CUDA, "--workers", "1", "--chunk-bytes", "1GB"),
            *("--run-dir", str(root / "run"), "--json"),
            limit_s=LIMIT_S,
            more={"BATCH": "4096"},
        )
        credited = verify_credits(root / "run").credited
    words = ended.json.get("error", "") if ended.status else "the run ended as if nothing was wrong"
    return Line(
        "memory",
        "ResNet-50 with a batch of 4,096: what the run says",
        f"exit {ended.status}: {words}; {credited:,} credited",
        "says what to do, credits nothing",
        ended.status != 0 and "smaller batch" in words and not credited,
    )


def taken_by_another() -> Line:
    """Another process holds the device's memory when the run begins, and frees it after the first failure."""
    with folder() as root, ThreadPoolExecutor(1) as pool:
        holding, release = root / "holding", root / "release"
        holder = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.devices", ALONE, "failures", json.dumps([str(holding), str(release)])],
            env=environment(),
            cwd=ROOT,
        )
        try:
            if not wait_until(holding.exists, 60.0):
                raise RuntimeError("the process that takes the memory did not begin")
            run = root / "run"
            asked = ("--device", CUDA, "--workers", "1", "--epochs", "1", "--run-dir", str(run), "--json")
            ended = pool.submit(gridml, "run", str(ROOT / "examples" / "mnist.py"), *asked, limit_s=LIMIT_S)
            failed = wait_until(lambda: bool(events(run, "device")) or ended.done(), 60.0)
            release.touch()
            status = ended.result().status
        finally:
            release.touch()
            holder.wait(30)
        words, credited = events(run, "device"), verify_credits(run).credited
    return Line(
        "memory",
        "another process holds the device's memory, until the run's first worker has failed: what the run says",
        f"{words[0] if words else 'nothing'}; exit {status}, {credited:,} of 60,000 credited once",
        "goes on, all credited once",
        failed and status == 0 and credited == 60_000 and bool(words),
    )


def events(run: Path, topic: str) -> list[str]:
    """Return the texts of a run's events of one topic."""
    log = run / "events.log"
    lines = log.read_text().splitlines() if log.exists() else []
    parts = [line.split(maxsplit=3) for line in lines]  # date, time, topic, text
    return [words[3] for words in parts if len(words) == 4 and words[2] == topic]


def run_alone(holding: str, release: str) -> None:
    """Hold the device's memory, but for a rest, until the file `release` exists."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - KEPT_FREE), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    Path(holding).touch()
    while not Path(release).exists():
        time.sleep(0.1)
    del held

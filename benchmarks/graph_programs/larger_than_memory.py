"""Train on a graph that is larger than the memory of master and workers: `gridml.graph_from` reads a file, and `gridml
run` factorises the ratings in it, or takes them for words of texts and draws a topic of each, which comes home.

The kernel limits each process to less private memory than the arrays of the graph (RLIMIT_DATA: heap and stacks, as
far as they are reserved), so that one that read the graph into memory would fail. Where cgroups can be made, another
run has one for all its processes together, in which the pages of mapped files count too. Memory is sampled: anonymous,
and backed by files, whose pages the kernel takes back on demand.

    python -m benchmarks.graph_programs.larger_than_memory
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import gridml
from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write

PROGRAMS = {
    "factors": (Path(__file__).with_name("ratings_of_file.py"), "Shared.credited"),
    "topics": (Path(__file__).with_name("texts_of_file.py"), "Corpus.credited"),
}
USERS, ITEMS, RATINGS = sized((400_000, 20_000, 64_000_000), (200, 50, 4_000))
EACH_MB, TOGETHER_MB = 500, 500  # of one process; of all processes of a run, with the pages of files
CHUNK = "8MB"  # cutting takes five times the size of a chunk (memory.md), which is 32 MB by default
RUNS = sized(  # (program, workers, whether the limit is that of all processes together)
    [("factors", 1, False), ("factors", 2, False), ("factors", 1, True), ("topics", 1, False), ("topics", 1, True)],
    [("factors", 1, False), ("topics", 1, False)],
)
AT_ONCE = 1 << 20  # ratings that are written together
SAMPLE_S = 0.02
GROUPS = Path("/sys/fs/cgroup")
MB = 1e6


def write_ratings(path: Path) -> None:
    """Write lines of a fixed width: u0000001, i000001 and 3.5, in random order of users."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, RATINGS, AT_ONCE):
            n = min(AT_ONCE, RATINGS - start)
            lines = np.frombuffer(b"u0000000\ti000000\t0.0\n", np.uint8)[None].repeat(n, 0)
            columns = ((rng.integers(0, USERS, n), 1, 7), ((ITEMS * rng.random(n) ** 2).astype(np.int64), 10, 6))
            for values, first, digits in columns:
                for place in range(digits):
                    lines[:, first + digits - 1 - place] += (values // 10**place % 10).astype(np.uint8)
            stars = rng.integers(1, 11, n)
            lines[:, 17] += (stars // 2).astype(np.uint8)
            lines[:, 19] += (stars % 2 * 5).astype(np.uint8)
            file.write(lines.tobytes())


class Peaks(threading.Thread):
    """A sampler of the memory of a process and its descendants, by role: its peaks in MB, [anonymous, of files]."""

    def __init__(self, master: int) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, list[float]] = {}
        self._master = master
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for process in family(self._master):
                try:
                    status = Path(f"/proc/{process}/status").read_text()
                    role = role_of(process)
                except OSError:
                    continue  # it has ended
                if "RssAnon:" in status:
                    peak = self.peaks.setdefault(role, [0.0, 0.0])
                    for at, name in enumerate(("RssAnon:", "RssFile:")):
                        peak[at] = max(peak[at], int(status.partition(name)[2].split()[0]) * 1024 / MB)

    def end(self) -> None:
        self._ended.set()
        self.join()


def family(process: int) -> Iterator[int]:
    """Yield a process and its descendants. Linux lists children by the thread that started them."""
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:
            continue
        for child in found:
            yield from family(int(child))


def role_of(process: int) -> str:
    """Return what a process is. One that the master has just forked is still the master, until it runs its program."""
    command = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    name = next((word.removeprefix("--name=") for word in command if word.startswith("--name=")), None)
    return f"worker {name}" if name else "master" if "gridml" in command else " ".join(command[1:3])


@contextmanager
def group(mb: int) -> Iterator[Path | None]:
    """Yield the file of a new cgroup of `mb` MB, to which a process writes 0 to enter it; None if none can be made."""
    made = None
    for root, limit in ((GROUPS / "memory", "memory.limit_in_bytes"), (GROUPS, "memory.max")):  # versions 1 and 2
        place = root / f"gridml-{os.getpid()}"
        try:
            place.mkdir()
            (place / limit).write_text(str(int(mb * MB)))
            made = place
            break
        except OSError:
            if place.is_dir():
                place.rmdir()
    try:
        yield made and made / "cgroup.procs"
    finally:
        while made is not None and made.is_dir():
            with suppress(OSError):  # a process that was killed is still in it
                made.rmdir()


def limited(command: list[str], entered: Path | None, **options: Any) -> subprocess.Popen[str]:
    """Start a process within the limit of each process, or in a cgroup."""

    def bound() -> None:
        if entered is None:
            resource.setrlimit(resource.RLIMIT_DATA, (int(EACH_MB * MB),) * 2)
        else:
            entered.write_text("0")

    return subprocess.Popen([sys.executable, *command], preexec_fn=bound, text=True, **options)


def holds(entered: Path | None) -> bool:
    """Return True if a process that takes as much memory as the limit fails."""
    mb = EACH_MB if entered is None else TOGETHER_MB
    return limited(["-c", f"b'x' * {int(mb * MB)}"], entered, stderr=subprocess.DEVNULL).wait() != 0


def forget(folder: Path) -> None:
    """Drop the pages of files from memory, since a cgroup has those only that it read first."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def trained(folder: Path, ratings: Path, name: str, workers: int, entered: Path | None) -> Peaks | None:
    """Run a program within a limit, and check what it has counted. None: the kernel killed it."""
    program, count = PROGRAMS[name]
    cache = ratings.with_name("cache")  # so that only the first run reads the text
    environment = {**os.environ, "EDGES": str(ratings), "GRIDML_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = ["-m", "gridml", "run", str(program), f"--workers={workers}", "--steps-each=0", "--json"]
    with (folder / "output").open("w+") as output:
        command += [f"--chunk-bytes={CHUNK}", f"--run-dir={folder / 'run'}"]
        process = limited(command, entered, env=environment, stdout=output, stderr=output)
        peaks = Peaks(process.pid)
        peaks.start()
        process.wait()
        peaks.end()
        output.seek(0)
        if process.returncode == -signal.SIGKILL:
            return None
        if process.returncode:
            raise SystemExit(f"gridml run ended with {process.returncode}: {output.read()[-3000:]}")
    found = gridml.load(folder / "run")
    if found[count].tolist() != [RATINGS]:
        raise SystemExit(f"got {found[count]} edges counted in a pass, expected {RATINGS:,}")
    if name == "topics" and (np.bincount(found["Text.words.topic"]) != found["Corpus.count"][0]).any():
        raise SystemExit("counts of topics are not those of the topics that came home")
    return peaks


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory(prefix="larger-") as name:
        ratings = Path(name) / "ratings.tsv"
        write_ratings(ratings)
        for task, workers, together in RUNS:
            with tempfile.TemporaryDirectory(dir=name) as folder, group(TOGETHER_MB) as made:
                if together and made is None:
                    rows.append({"program": task, "limit": "no cgroup could be made"})
                    continue
                entered = made if together else None
                forget(Path(name))
                if not holds(entered):
                    raise SystemExit("the kernel does not keep to the limit")
                began = resource.getrusage(resource.RUSAGE_CHILDREN)
                sampled = trained(Path(folder), ratings, task, workers, entered)
                ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
            limit = f"{TOGETHER_MB} MB, all" if together else f"{EACH_MB} MB, each"
            row: dict[str, Cell] = {"program": task, "limit": limit, "workers": workers, "CPU-s": round(cpu_s)}
            if sampled is None:
                rows.append({**row, "process": "killed by the kernel"})
            for process, (anonymous, of_files) in sorted(sampled.peaks.items() if sampled else ()):
                row = {**row, "process": process, "peak MB, anonymous": round(anonymous), "of files": round(of_files)}
                rows.append(row)
                print(row, flush=True)
        size = ratings.stat().st_size / MB
    write("graph_larger_than_memory", "A graph larger than memory", rows, notes(size))


def notes(size: float) -> list[str]:
    """Return what stands below the table. `size` is that of the text, in MB."""
    return [
        f"{RATINGS:,} ratings by {USERS:,} users of {ITEMS:,} items: a text of {size:,.0f} MB, read by "
        f"gridml.graph_from, and arrays of {(RATINGS * 8 + USERS * 8) / MB:.0f} MB, without factors. Topics: the "
        f"same lines as texts and words, and {RATINGS * 4 / MB:.0f} MB of topics, which change",
        f"{EACH_MB} MB, each: RLIMIT_DATA of the master and of each worker. {TOGETHER_MB} MB, all: a cgroup with "
        "master, workers and the pages of all files that they read or write. A process that takes as much fails "
        "within either",
        f"chunks of {CHUNK} at most: with the default of 32 MB a master of 300 MB failed as it cut one; "
        "factors of rank 16, 20 topics, two passes; every edge was counted once in each, and counts of topics are "
        "those of the topics that came home. The first run reads the text, and the others find its arrays. CPU-s: "
        "of all processes",
        f"peaks of RssAnon and RssFile, sampled every {SAMPLE_S * 1e3:.0f} ms; of files: also of libraries; the "
        "kernel takes these pages back when it needs them",
    ]


if __name__ == "__main__":
    main()

"""Kill the master and cut the power of its disk, resume after each, and check that the run ends exact.

There are three kinds, all on a run whose result reveals every vertex that was trained twice, never, or from a wrong
value (`benchmarks/programs/chain.py`, `chain_bsp.py`):

- SIGKILL of a master at a random instant or at one of its crash points, one after another until the run has finished.
  Its workers are stepped in its process and die with it; the ledger and every file are synchronised as always.
- the content of the disk at every operation on a file, one by one, copied during a run.
- power cuts: the blocks of the disk at a random instant under a real master with real worker processes, on a disk that
  keeps every block it was sent, and on one that loses unflushed blocks (`benchmarks/loop_disks.py`).

    python -m benchmarks.crashes [KILLS [CUTS]]
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.arguments import parser_of, sized
from benchmarks.exact_run import (
    CHAINS,
    GRIDML,
    MEMORY,
    Outcome,
    Result,
    begin,
    drive,
    environment_of,
    go_on,
    isolated,
    new_world,
    settings_of,
    shell,
    wrong_on_disk,
)
from benchmarks.loop_disks import NoDisks, disk
from benchmarks.table import Cell, write
from master.launch import resume, start
from master.simulation.scenario import POINTS

LIFE_S = 0.7  # the longest life of a master, about the duration of a run
BATCH_S = 0.04  # of the real workers, so that a run lasts some seconds
CUT_EVERY_S = 0.15
BY_COMMAND = 10  # one in this many power cuts is followed by the real command with real workers, which takes seconds
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "shutil.rmtree")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=sized(1000, 2))
    parser.add_argument("cuts", nargs="?", type=int, default=sized(200, 2))
    options = parser.parse_args()
    rows, notes, bad = [], [], []
    folder = Path(tempfile.mkdtemp(prefix="crashes-", dir=MEMORY))
    try:
        for program in sized(CHAINS, CHAINS[:1]):
            begin(program, folder / program.stem)  # warm-up: forked processes inherit what it compiles
            results = list(kills(program, folder, options.kills // 2, seed=1))
            killed, ended = Counter(point for point, _ in results), [r for _, r in results if r is not None]
            rows.append(row(f"SIGKILL at a random instant, {program.stem}", killed["an instant"], ended))
            at_points = sum(killed.values()) - killed["an instant"]
            rows.append(row(f"SIGKILL at a crash point, {program.stem}", at_points, ended))
            bad += [result for result in ended if result.outcome is not Outcome.EXACT]
            results_at = list(every_operation(program, folder, sized(1, 60)))
            rows.append(row(f"at each operation on a file, {program.stem}", len(results_at), results_at))
            bad += [result for result in results_at if result.outcome is not Outcome.EXACT]
        for volatile in (False, True):
            name = "power cut, unflushed blocks lost" if volatile else "power cut, every block kept"
            try:
                cut = list(power_cuts(folder / "disk", options.cuts // 2, volatile=volatile, seed=1))
            except NoDisks as error:
                notes.append(f"{name}: skipped: {error}")
                continue
            rows.append(row(name, len(cut), cut))
            bad += [result for result in cut if result.outcome is not Outcome.EXACT]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for result in bad:
        print(f"{result.outcome}: {result.text}")
    write("crashes", "Masters killed and disks cut off: how the run ended", rows, notes)
    sys.exit(bool(bad))


def row(what: str, times: int, results: list[Result]) -> dict[str, Cell]:
    """Return a line of the table: the number of interruptions, and the outcomes of the runs."""
    counts = Counter(result.outcome for result in results)
    others = sum(counts.values()) - counts[Outcome.EXACT]
    return {"what": what, "times": times, "runs ended": len(results), "exact": counts[Outcome.EXACT], "others": others}


# --- kills


def kills(program: Path, folder: Path, count: int, seed: int) -> Iterator[tuple[str, Result | None]]:
    """Kill masters `count` times. Yield where each was killed, and the result if it finished its run instead."""
    rng, done, root = random.Random(seed), 0, folder / "run"
    while done < count:
        shutil.rmtree(root, ignore_errors=True)
        for life in itertools.count(1):
            point = rng.choice(("an instant", rng.choice(POINTS)))
            late = rng.randint(1, 12) if point != "an instant" else rng.uniform(0.0, LIFE_S)
            result = one_life(program, root, life, (point, late) if done < count else None)
            done += result is None
            yield point, result
            if result is not None:
                break


def one_life(program: Path, root: Path, life: int, end: tuple[str, float] | None) -> Result | None:
    """Run a master in a process of its own until its `end`: a number of seconds ("an instant"), or a number of visits
    of a crash point. Return None if it was killed there, otherwise the outcome of the run."""

    def live() -> Result:
        world = new_world(program, life)
        left = end[1] if end is not None else 0.0

        def reached(point: str) -> None:
            nonlocal left
            if end is not None and point == end[0]:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        environment = replace(environment_of(world, reached), durable=True)
        if (root / "ledger.db").exists():
            run = resume(root, environment)
        else:
            shutil.rmtree(root, ignore_errors=True)
            run = start(settings_of(program), root, environment)
        drive(world, run)
        problem = wrong_on_disk(program, root)
        return Result(Outcome.EXACT if problem is None else Outcome.WRONG, problem or "")

    if end is not None and end[0] == "an instant":
        result = isolated(live, limit_s=end[1])  # killed from outside, so that it can hit SQLite's code, too
        return None if result.outcome is Outcome.STUCK else result
    result = isolated(live)
    return None if result == Result(Outcome.CRASHED, signal.SIGKILL.name) else result


# --- the disk at each operation


def every_operation(program: Path, folder: Path, every: int = 1) -> Iterator[Result]:
    """Play a run; resume copies of its disk that are taken at every `every`-th operation on a file."""
    root, images = folder / "played", folder / "images"
    images.mkdir()
    copying, count = False, 0  # `copying`: the copy itself operates on files and must not be copied

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal copying, count
        if copying or event not in OPERATIONS or not str(arguments[0]).startswith(str(root)):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        copying = True
        count += 1
        with contextlib.suppress(FileNotFoundError):
            if count % every == 0 and (root / "ledger.db").exists():
                shutil.copytree(root, images / f"{count:05d}")
        copying = False

    def play() -> Result:
        sys.addaudithook(audit)  # hooks cannot be removed; this process is forked for this play
        world = new_world(program)
        drive(world, start(settings_of(program), root, environment_of(world)))
        return Result(Outcome.EXACT)

    shutil.rmtree(root, ignore_errors=True)
    yield isolated(play)
    for image in sorted(images.iterdir()):
        yield isolated(lambda image=image: go_on(program, image, None))  # type: ignore[misc]
        shutil.rmtree(image)
    shutil.rmtree(images)


# --- power cuts


def power_cuts(folder: Path, count: int, *, volatile: bool, seed: int) -> Iterator[Result]:
    """Cut the power `count` times under real masters and workers, and resume each from the remaining disk.

    Raises NoDisks.
    """
    rng, program, done = random.Random(seed), CHAINS[0], 0
    with disk(folder, volatile=volatile) as made:
        while done < count:
            clones: list[Path] = []
            with running(program, made.root / f"run{done}") as (process, root):
                while process.poll() is None and done + len(clones) < count:
                    time.sleep(rng.uniform(0, 2 * CUT_EVERY_S))
                    if (root / "ledger.db").exists():
                        clones.append(made.cut(f"cut{done + len(clones)}"))
            for number, clone in enumerate(clones, done):
                with made.after_cut(clone) as place:
                    left = folder / "left"
                    shutil.copytree(place / root.name, left)
                yield resumed(program, left, by_command=number % BY_COMMAND == 0)
                shutil.rmtree(left)
            done += len(clones)
            shutil.rmtree(root)


@contextlib.contextmanager
def running(program: Path, root: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a run of real processes; kill it at the end of the context."""
    command = [str(GRIDML), "run", str(program), "--workers", "2", "--chunk", "120", "--push-every", "40",
               "--run-dir", str(root)]  # fmt: skip
    environment = {**shell(), "CHAIN_S": str(BATCH_S)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process, root
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def resumed(program: Path, root: Path, *, by_command: bool) -> Result:
    """Resume a run by the command, or in a fork of this process, and compare it with the expected result."""
    if not (root / "ledger.db").exists():
        return Result(Outcome.EXACT, "it had not begun")
    if not by_command:
        return isolated(lambda: go_on(program, root, None))
    done = subprocess.run(
        [str(GRIDML), "resume", str(root)], env=shell(), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        return Result(Outcome.UNADVISED, done.stderr)
    problem = wrong_on_disk(program, root)
    return Result(Outcome.EXACT if problem is None else Outcome.WRONG, problem or "")


if __name__ == "__main__":
    main()

"""Damage files and fill disks, and check how a run continues.

Every class of positions in every file that a master reads gets flipped bits, and every file is deleted, emptied,
truncated, lengthened and zeroed, at five moments of a run. Then the run is resumed, the advice of errors is followed,
and the result is compared with the expected one (`benchmarks/exact_run.py`, `benchmarks/damage.py`). For half of the
damages the workers have outlived their master.

A full disk is filled just before a run writes a file of some kind; then space is freed again.

    python -m benchmarks.disks [SAMPLES]
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.arguments import parser_of, sized
from benchmarks.damage import Damage, damages
from benchmarks.exact_run import (
    CHAINS,
    MEMORY,
    MOMENTS,
    Moment,
    Outcome,
    Result,
    drive,
    environment_of,
    go_on,
    interrupt,
    isolated,
    new_world,
    settings_of,
)
from benchmarks.loop_disks import NoDisks, small_disk
from benchmarks.table import Cell, write
from gridml.errors import GridmlError, StorageError
from master.launch import start

GOOD = (Outcome.EXACT, Outcome.ADVISED, Outcome.LOST)
SMALL_MB = 3
# By kind of write, the audit event or crash point just before it: the disk is filled there.
WRITTEN = {
    "a version": r"open .*/versions/\.v",
    "a patch": r"open .*/fields/\.?patch",
    "a field": r"open .*/fields/.*\.npy",
    "the ledger's copy": r"sqlite3.connect .*ledger\.backup\.tmp",
    "the trained replica": r"open .*/\.?final\.safetensors",
    "the ledger": r"point before-commit",
    "the ledger after an epoch": r"point after-commit",
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("samples", nargs="?", type=int, default=1, help="flipped bits in each class of positions")
    options = parser.parse_args()
    results: dict[str, list[Result]] = defaultdict(list)
    notes, folder = [], Path(tempfile.mkdtemp(prefix="disks-", dir=MEMORY))
    try:
        for program in sized(CHAINS, CHAINS[:1]):
            for moment in sized(MOMENTS, MOMENTS[:1]):
                for damage, result in damaged(program, moment, folder, options.samples, 1, sized(None, 2)):
                    results[class_of(damage)].append(result)
                    if result.outcome not in GOOD:
                        where = f"{program.stem}, {moment.name}: {damage.file}, {damage.position}, {damage.how}"
                        print(f"{where}: {result.outcome}\n{result.text}", flush=True)
        try:
            for what, result in full_disks(folder):
                results[f"disk full before {what}"].append(result)
        except NoDisks as error:
            notes.append(f"full disks: skipped: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [row(name, results[name]) for name in sorted(results)]
    rows.append(row("all", [result for ends in results.values() for result in ends]))
    notes.append("begun anew: refused, because neither the file is left nor a copy of the ledger that does without it")
    write("disks", "Damaged files and full disks: how the run ended", rows, notes)
    sys.exit(any(result.outcome not in GOOD for ends in results.values() for result in ends))


def row(name: str, results: list[Result]) -> dict[str, Cell]:
    """Return a line of the table: the runs by outcome."""
    counts = Counter(result.outcome for result in results)
    return {
        "damaged": name,
        "times": len(results),
        "exact": counts[Outcome.EXACT],
        "exact after advice": counts[Outcome.ADVISED],
        "begun anew": counts[Outcome.LOST],
        "silently wrong": counts[Outcome.WRONG],
        "others": sum(counts[other] for other in (Outcome.UNADVISED, Outcome.CRASHED, Outcome.STUCK)),
    }


def class_of(damage: Damage) -> str:
    """Return the line of the table that a damage belongs to. Files of one kind share a line, and so do the tables of
    the ledger, except for their cells."""
    name = re.sub(r"v\d{8}", "v*", re.sub(r"patch-\d{8}", "patch-*", damage.file))
    name = re.sub(r"(\w+)\.(\w+)(@\d+)?(\.\w+)?\.npy", "*.npy", name)
    name = name.replace("chain_bsp.py", "chain.py")
    position = damage.how if damage.position == "whole file" else damage.position
    tree, colon, part = position.partition(": ")
    if name.endswith(".db") and part in ("page header", "cell pointers", "free bytes", "inner cells"):
        position = f"{'an index' if tree.startswith('index') else 'a table'}{colon}{part}"
    return f"{name}, {position}"


def damaged(
    program: Path, moment: Moment, folder: Path, samples: int, seed: int, most: int | None = None
) -> Iterator[tuple[Damage, Result]]:
    """Interrupt a run at a moment. Yield every damage to its disk (at most `most`, chosen at random), and the result of
    resuming the damaged run."""
    rng = random.Random(seed)
    root, image, case = folder / "root", folder / "image", folder / "case"
    for old in (root, image, case):
        shutil.rmtree(old, ignore_errors=True)
    world = interrupt(program, root, image, moment)
    every = list(damages(image, samples, rng))
    for damage in every if most is None else rng.sample(every, min(most, len(every))):
        survivors = world if rng.random() < 0.5 else None

        def play(damage: Damage = damage, survivors: object = survivors) -> Result:
            damage.do(case)
            return go_on(program, case, world if survivors is not None else None)

        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(image, case)
        yield damage, isolated(play)


def full_disks(folder: Path) -> Iterator[tuple[str, Result]]:
    """Yield the kind of write that found the disk full, and the result of the run. Raises NoDisks."""
    for program in sized(CHAINS, CHAINS[:1]):
        for what, event in sized([*WRITTEN.items()], [*WRITTEN.items()][:1]):
            for nth in sized((1, 5), (1,)):
                with small_disk(SMALL_MB, folder / "small") as place:
                    result = isolated(lambda: fill_before(program, place / "run", event, nth))  # noqa: B023
                yield what, result


def fill_before(program: Path, root: Path, event: str, nth: int) -> Result:
    """Fill the disk of `root` before the nth occurrence of an event, free the space once the master has ended, and
    resume the run.

    Must be called in a process of its own, because its audit hook cannot be removed.
    """
    filler, seen, filling = root.parent / "filler", 0, False

    def audit(name: str, subject: object) -> None:
        nonlocal seen, filling
        if filling or not (root / "ledger.db").exists() or not re.match(event, f"{name} {subject}"):
            return
        filling = True
        seen += 1
        if seen == nth:
            fill(filler)
        filling = False

    sys.addaudithook(lambda name, arguments: audit(name, arguments[0]) if name in ("open", "sqlite3.connect") else None)
    world, said = new_world(program), ""
    try:
        drive(world, start(settings_of(program), root, environment_of(world, lambda point: audit("point", point))))
    except StorageError as error:
        said = str(error)
        if "make room" not in said:
            return Result(Outcome.UNADVISED, said)
    except GridmlError as error:
        return Result(Outcome.UNADVISED, f"{type(error).__name__}: {error}")
    filler.unlink(missing_ok=True)
    filling = True  # never fill the disk again
    result = go_on(program, root, None)
    if result.outcome is Outcome.EXACT and said:
        return Result(Outcome.ADVISED, said)
    return result


def fill(filler: Path) -> None:
    """Fill the disk to the last byte."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while os.write(file.fileno(), bytes(size)):
                    pass


if __name__ == "__main__":
    main()

"""Damaged files and full disks: a run ends exact, or is refused with advice that works."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.damage import damages
from benchmarks.disks import GOOD, WRITTEN, class_of, damaged, fill_before
from benchmarks.exact_run import (
    CHAINS,
    LIMIT_S,
    MEMORY,
    MOMENTS,
    Moment,
    Outcome,
    go_on,
    interrupt,
    isolated,
    shell,
    wrong_on_disk,
)
from benchmarks.loop_disks import NoDisks, small_disk
from master.simulation.world import World

CHAIN = CHAINS[0]
KILLED = MOMENTS[1]


@pytest.fixture(scope="module")
def killed() -> Iterator[tuple[World, Path]]:
    """A killed run with its surviving workers; only forks of this process may resume it."""
    with tempfile.TemporaryDirectory(prefix="gridml-", dir=MEMORY) as made:
        world = interrupt(CHAIN, Path(made) / "root", Path(made) / "image", KILLED)
        yield world, Path(made) / "image"


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
@pytest.mark.parametrize("program", CHAINS, ids=lambda program: program.stem)
def test_damage_drawn(program: Path, moment: Moment, folder: Path) -> None:
    for damage, result in damaged(program, moment, folder, samples=1, seed=7, most=5):
        assert result.outcome in GOOD, (damage, result)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
@pytest.mark.parametrize("program", CHAINS, ids=lambda program: program.stem)
def test_every_class_of_positions(program: Path, moment: Moment, folder: Path) -> None:
    bad = [
        (damage.file, damage.position, damage.how, result)
        for damage, result in damaged(program, moment, folder, samples=1, seed=1)
        if result.outcome not in GOOD
    ]
    assert not bad, bad


@pytest.mark.parametrize(
    "damage",
    [
        "ledger.db-wal, last commit: data",
        "ledger.db-wal, last frames: checksum",
        "ledger.db-wal, middle frames: salt",
        "ledger.db-wal, emptied",
        r"fields/\*.npy, cut in half",
        r"fields/\*.npy, emptied",
        r"fields/\*.npy, values",
        r"fields/patch-\*.safetensors, deleted",
        r"versions/v\*.safetensors, tensors",
    ],
)
@pytest.mark.parametrize("survive", [True, False])
def test_fields_and_credits_agree_whatever_is_lost(
    damage: str, survive: bool, killed: tuple[World, Path], folder: Path
) -> None:
    """Regression: a run with rolled-back credits but not fields, or vice versa, finished with wrong results."""
    world, image = killed
    one = next(d for d in damages(image, 1, random.Random(3)) if re.fullmatch(damage, class_of(d)))
    shutil.copytree(image, folder / "case")
    one.do(folder / "case")
    result = isolated(lambda: go_on(CHAIN, folder / "case", world if survive else None))
    assert result.outcome in GOOD, (one, result)


@pytest.mark.real
@pytest.mark.parametrize("name", ["ledger.db", "fields/patch-*", "versions/v*"])
def test_advice_as_a_person_follows_it(name: str, killed: tuple[World, Path], folder: Path) -> None:
    """The advised commands are run literally, with real workers."""
    image = folder / "image"
    shutil.copytree(killed[1], image)
    damaged_file = max(image.glob(name))
    damaged_file.write_bytes(damaged_file.read_bytes()[:100])
    refused = gridml_resume(image)
    advice = re.search(r"Restore it: (.*?)  \(", " ".join(refused.stderr.split(" ")))
    assert refused.returncode and advice, refused.stderr
    done = subprocess.run(
        ["sh", "-c", advice[1]], env=shell(), capture_output=True, text=True, timeout=4 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert wrong_on_disk(CHAIN, image) is None


def gridml_resume(root: Path) -> subprocess.CompletedProcess[str]:
    command = ["gridml", "resume", str(root)]
    return subprocess.run(command, env=shell(), capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)


@pytest.mark.parametrize("what", WRITTEN)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_full_disk_is_said_and_loses_nothing(what: str, nth: int, folder: Path) -> None:
    try:
        with small_disk(3, folder / "small") as place:
            result = isolated(lambda: fill_before(CHAIN, place / "run", WRITTEN[what], nth))
    except NoDisks as error:
        pytest.skip(str(error))
    assert result.outcome in (Outcome.EXACT, Outcome.ADVISED), result
    assert result.outcome is Outcome.ADVISED or nth > 1, "the disk was never full"

"""A run is rolled back to a version that is kept, and goes on from there to an exact end."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chunk_model.goodput import Costs
from gridml.errors import LedgerError, RunError, StorageError, UsageError
from gridml.protocol import bundle
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.launch import resume
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import World, play_scenario
from master.store.credits import rollback_points
from master.store.ledger import Ledger
from master.store.reader import opened
from master.store.rundir import MasterLock, RunDirectory
from master.store.settings import Settings
from master.store.versions import Versions
from master.sync.version_use import MAX_BYTES, MIN_ROLLBACK_VERSIONS, rollback_versions
from master.takeover import offered, rollback
from remote.stepped import Trainer

COSTS = Costs(exec_s=0.01, start_s=0.5, push_s=0.02)


@pytest.fixture
def play(tmp_path: Path, programs: Path) -> Callable[..., Path]:
    """Return a function that plays a program to its end with three workers, and returns the run."""

    def play(name: str, workers: int = 3) -> Path:
        file, root = programs / f"{name}.py", tmp_path / "run"
        settings = Settings(file, "simulated", workers, chunk=200, options=SimulatedOptions(None, None))
        play_scenario(settings, Scenario(Steady(workers), COSTS), root, trainer=Trainer(file, COSTS))
        return root

    return play


def go_on(root: Path, programs: Path, name: str) -> None:
    """Resume a run on other machines."""
    file = programs / f"{name}.py"
    settings = Settings(file, "simulated", 3, chunk=200, options=SimulatedOptions(None, None))
    world = World(settings, Scenario(Steady(3), COSTS, seed=1), Trainer(file, COSTS))
    run = resume(root, world.environment(lambda topic, text, facts: None))
    world.drive(run)
    with run:
        run.finish()


def counted(root: Path) -> np.ndarray:
    return bundle.decode((root / "final.safetensors").read_bytes())[1]["Word/count"]


@pytest.mark.parametrize("which", ["e1", "e2", "newest but one", "oldest", "newest"])
def test_what_is_undone_is_trained_again_and_the_end_is_exact(
    play: Callable[..., Path], programs: Path, which: str
) -> None:
    root = play("tallies")
    expected = counted(root)
    with opened(root) as db:
        kept = rollback_points(db)
    to = {"newest but one": kept[1], "oldest": kept[-1], "newest": kept[0]}.get(which)
    done = rollback(root, which if to is None else f"v{to.version}", lambda: 2e6)
    exact = verify_credits(root)
    assert exact.credited == done.point.credited == 6000 - done.undone.vertices
    with opened(root) as db:
        by_worker = "(SELECT worker, sum(stop - start) AS own FROM credits GROUP BY worker)"
        wrong = f"SELECT count(*) FROM workers LEFT JOIN {by_worker} USING (worker) WHERE credited != coalesce(own, 0)"
        assert db.execute(wrong).fetchone()[0] == 0, "what each worker was credited"
    if which[0] == "e":
        assert exact.finished == int(which[1]) == done.point.epoch + 1
    assert not (root / "final.safetensors").exists()
    go_on(root, programs, "tallies")
    assert verify_credits(root).credited == 6000
    np.testing.assert_array_equal(counted(root), expected)
    with opened(root) as db:
        rows = db.execute(
            "SELECT metrics, (SELECT sum(stop - start) FROM credits WHERE credits.version <= epochs.version), vertices "
            "FROM epochs ORDER BY epoch"
        ).fetchall()
    for epoch, (metrics, credited, vertices) in enumerate(rows):
        assert json.loads(metrics)["counted"] == 4 * credited, "evaluate sees what was credited until then, and no more"
        assert (epoch + 1) * vertices <= credited < (epoch + 2) * vertices
    # Two of the workers begin the next epoch before one ends.
    assert [json.loads(metrics)["counted"] for metrics, _, _ in rows] == [9600, 16800, 24000]


def test_twice_back_is_exact_too(play: Callable[..., Path], programs: Path) -> None:
    root = play("tallies")
    expected = counted(root)
    for to in ("e2", "e1"):
        rollback(root, to, lambda: 2e6)
    go_on(root, programs, "tallies")
    rollback(root, "e2", lambda: 3e6)
    go_on(root, programs, "tallies")
    np.testing.assert_array_equal(counted(root), expected)


def test_a_number_is_never_given_twice(play: Callable[..., Path]) -> None:
    root = play("tallies")
    with opened(root) as db:
        newest = max(point.version for point in rollback_points(db))
    rollback(root, "e1", lambda: 2e6)
    with opened(root) as db:
        kept = rollback_points(db)
        leases = db.execute("SELECT count(*) FROM leases WHERE closed_s IS NULL").fetchone()[0]
    assert kept[0].version == newest + 1, "its replica is that of e1, its number new"
    assert max(point.version for point in kept[1:]) < newest and leases == 0
    _, new = bundle.decode((root / "versions" / f"v{newest + 1:08d}.safetensors").read_bytes())
    assert (new["@changed/Word"] == newest + 1).all(), "every worker lacks all of it"


def test_fields_go_back_no_further_than_they_are_kept(play: Callable[..., Path], programs: Path) -> None:
    root = play("counts")
    before = verify_credits(root)
    with pytest.raises(UsageError, match="are kept only since version"):
        rollback(root, "e1")
    assert verify_credits(root) == before


@pytest.mark.parametrize("name", ["counts", "tallies"])
def test_only_what_can_be_gone_back_to_is_offered(play: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """Neither versions older than the fields of local vertices, nor those whose files are damaged or gone."""
    root = play(name)
    with opened(root) as db:
        points = [point.version for point in rollback_points(db)]
    if name == "tallies":
        (root / "versions" / f"v{points[2]:08d}.safetensors").unlink()
        (root / "versions" / f"v{points[3]:08d}.safetensors").write_bytes(b"damaged")
    found = [point.version for point in offered(root)]
    assert 0 < len(found) < len(points)
    with pytest.raises(UsageError) as refused:
        rollback(root, "v99999")
    named = re.findall(r"v(\d+)", str(refused.value).partition("a version")[2])
    assert sorted(map(int, named)) == sorted(found)
    for version in points:
        copy = shutil.copytree(root, tmp_path / f"to-{version}")
        with contextlib.nullcontext() if version in found else pytest.raises((UsageError, LedgerError)):
            rollback(copy, f"v{version}")


TROUBLES: dict[str, tuple[object, str]] = {
    "a version": (bundle, "write_atomic"),
    "the copy of the ledger": (Ledger, "_copy"),
    "versions that are undone": (Versions, "remove"),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("what", TROUBLES)
def test_a_disk_that_refuses_a_rollback_harms_nothing(
    play: Callable[..., Path], programs: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    root = play("tallies")
    expected = counted(root)

    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(root / "versions"))

    with monkeypatch.context() as patch, pytest.raises(StorageError) as refused:
        patch.setattr(*TROUBLES[what], refuse)
        rollback(root, "e1")
    assert f"then: gridml rollback {root} --to e1" in str(refused.value)
    verify_credits(root)
    if number == errno.EIO:
        rollback(root, "e1")
    go_on(root, programs, "tallies")
    np.testing.assert_array_equal(counted(root), expected)


@pytest.mark.parametrize("to", ["e9", "v99999", "x", "", "e", "v", "-1", "e0", "last"])
def test_what_is_not_kept_is_refused_with_what_is(play: Callable[..., Path], to: str) -> None:
    root = play("tallies")
    with pytest.raises(UsageError, match=r"expected the end of an epoch \(e1 e2 e3\) or a version \(v"):
        rollback(root, to)


def test_not_under_a_master_and_only_a_run(play: Callable[..., Path], tmp_path: Path) -> None:
    root = play("tallies")
    lock = MasterLock(RunDirectory(root))
    with pytest.raises(RunError, match="another master holds"):
        rollback(root, "e1")
    lock.release()
    with pytest.raises(LedgerError, match="is not a run"):
        rollback(tmp_path, "e1")


# --- which versions are kept


def test_ends_of_epochs_and_a_series_that_thins_out_are_kept() -> None:
    kept: set[int] = set()
    for newest in range(1000):
        kept = rollback_versions({*kept, newest}, [100, 333], newest, 1)
    assert {100, 333, 997, 998, 999} <= kept
    assert len(kept) < 25
    ages = sorted(999 - v for v in kept)
    assert all(later <= 3 * earlier + 3 for earlier, later in itertools.pairwise(ages))


def test_bytes_are_bounded_and_the_newest_stay() -> None:
    kept = rollback_versions(range(1000), range(0, 1000, 10), 999, MAX_BYTES // 8)
    assert len(kept) == 8
    assert {990, 999, 998} <= kept
    assert len(rollback_versions(range(1000), range(0, 1000, 10), 999, 10 * MAX_BYTES)) == MIN_ROLLBACK_VERSIONS

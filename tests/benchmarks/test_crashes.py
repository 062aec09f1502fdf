"""Kills of the master and power cuts of its disk, a few of each: `python -m benchmarks.crashes` does a thousand."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.crashes import every_operation, kills, power_cuts
from benchmarks.exact_run import CHAINS, Outcome, Result, begin
from benchmarks.loop_disks import NoDisks, disk, mounted


@pytest.mark.parametrize("program", CHAINS, ids=lambda program: program.stem)
def test_kills(program: Path, folder: Path) -> None:
    begin(program, folder / "warm")
    ends = list(kills(program, folder, 6, seed=2))
    assert sum(result is None for _, result in ends) == 6
    assert {result for _, result in ends if result is not None} == {Result(Outcome.EXACT)}


@pytest.mark.parametrize("program", CHAINS, ids=lambda program: program.stem)
def test_what_is_on_the_disk_at_an_operation_on_a_file(program: Path, folder: Path) -> None:
    begin(program, folder / "warm")
    results = list(every_operation(program, folder, every=23))
    assert len(results) > 5
    assert set(results) == {Result(Outcome.EXACT)}


@pytest.mark.real
@pytest.mark.parametrize("volatile", [False, True])
def test_power_cuts(volatile: bool, folder: Path) -> None:
    try:
        results = list(power_cuts(folder / "disk", 4, volatile=volatile, seed=4))
    except NoDisks as error:
        pytest.skip(str(error))
    assert len(results) == 4
    assert {result.outcome for result in results} == {Outcome.EXACT}, results


def test_what_a_power_cut_leaves(folder: Path) -> None:
    """Synchronised data survives a power cut, and the disk is removed even after an error."""
    try:
        for volatile, fails in itertools.product((False, True), (False, True)):
            place = folder / f"disk{volatile}{fails}"
            try:
                with disk(place, volatile=volatile) as made:
                    with (made.root / "kept").open("wb") as file:
                        file.write(b"kept")
                        file.flush()
                        os.fsync(file.fileno())
                    (made.root / "late").write_bytes(b"late")
                    clone = made.cut("one")
                    (made.root / "kept").write_bytes(b"later")
                    with made.after_cut(clone) as left:
                        assert (left / "kept").read_bytes() == b"kept"
                        assert not (left / "late").exists() or (left / "late").read_bytes() == b""
                    if fails:
                        raise InterruptedError
            except InterruptedError:
                assert fails
            assert not place.exists()
            assert str(place) not in Path("/proc/mounts").read_text()
    except NoDisks as error:
        pytest.skip(str(error))


def test_without_root_it_says_why(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NoDisks, match="root"), disk(folder / "disk", volatile=False):
        pass
    assert not list(folder.iterdir())


def test_an_image_that_cannot_be_mounted_leaves_no_folder(folder: Path) -> None:
    (folder / "image").write_bytes(bytes(1 << 16))
    with pytest.raises(subprocess.CalledProcessError), mounted(folder / "image", folder / "place"):
        pass
    assert not (folder / "place").exists()

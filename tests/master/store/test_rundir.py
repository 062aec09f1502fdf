"""One master at a time, and a disk that is recognised."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gridml.errors import RunError, UsageError
from master.store.rundir import MasterLock, RunDirectory, command


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.create()
    return made


def test_a_second_master_is_refused_and_hears_who_holds_the_run(run: RunDirectory) -> None:
    lock = MasterLock(run)
    with pytest.raises(RunError, match=rf"another master holds .*pid {os.getpid()} on \S+\. .*gridml watch"):
        MasterLock(run)
    lock.release()
    lock.release()
    MasterLock(run).release()


def test_the_refused_one_does_not_take_the_name_away(run: RunDirectory) -> None:
    lock = MasterLock(run)
    for _ in range(2):
        with pytest.raises(RunError, match=f"pid {os.getpid()} on"):
            MasterLock(run)
    lock.release()


@pytest.mark.real
def test_the_lock_ends_with_its_process(run: RunDirectory) -> None:
    code = (
        "import sys, pathlib; from master.store.rundir import MasterLock, RunDirectory\n"
        "lock = MasterLock(RunDirectory(pathlib.Path(sys.argv[1]))); print('held', flush=True); sys.stdin.read()"
    )
    held = subprocess.Popen(
        [sys.executable, "-c", code, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"pid {held.pid} on"):
            MasterLock(run)
        held.kill()
    MasterLock(run).release()


def test_a_folder_that_holds_a_run_is_not_taken_for_another(run: RunDirectory) -> None:
    run.create()  # without a ledger no run has begun there
    run.ledger.touch()
    with pytest.raises(UsageError, match="gridml resume"):
        run.create()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be made.*--run-dir"):
        RunDirectory(tmp_path / "file" / "run").create()


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("/dev/vda / ext4 rw 0 0", None),
        ("server:/export {root} nfs4 rw 0 0", "nfs4"),
        ("server:/export {root} nfs rw 0 0", "nfs"),
        ("sshfs {root} fuse.sshfs rw 0 0", "fuse.sshfs"),
        ("overlay {root} fuse.overlayfs rw 0 0", None),
        ("//server/share {root} cifs rw 0 0", "cifs"),
        ("server:/ / nfs rw 0 0\n/dev/vda {root} ext4 rw 0 0", None),  # the innermost mount counts
        ("/dev/vda {root} ext4 rw 0 0\nserver:/ / nfs rw 0 0", None),
        ("/dev/vda / ext4 rw 0 0\nserver:/ {root} lustre rw 0 0", "lustre"),
        ("server:/ {root} nfs rw 0 0\n/dev/vdb {root} ext4 rw 0 0", None),  # mounted over it
        ("server:/ {root}-other nfs rw 0 0\n/dev/vda / ext4 rw 0 0", None),  # a neighbour with the same beginning
        ("nonsense\n\n", None),
        ("", None),
    ],
)
def test_the_kind_of_disk_is_read_from_the_mounts(
    run: RunDirectory, tmp_path: Path, mounts: str, expected: str | None
) -> None:
    file = tmp_path / "mounts"
    file.write_text(mounts.format(root=run.root.resolve()))
    assert run.on_network_disk(file) == expected


def test_names_with_blanks_are_found(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "my runs" / "first")
    run.create()
    file = tmp_path / "mounts"
    file.write_text(f"server:/ {tmp_path.resolve()}/my\\040runs nfs4 rw 0 0\n/dev/vda / ext4 rw 0 0\n")
    assert run.on_network_disk(file) == "nfs4"


def test_where_there_are_no_mounts_to_read_nothing_is_claimed(run: RunDirectory, tmp_path: Path) -> None:
    assert run.on_network_disk(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", ["runs/first", "my runs/it's", "a;b", "$HOME"])
def test_a_hint_can_be_pasted_into_a_shell(name: str) -> None:
    assert shlex.split(command("resume", Path(name))) == ["gridml", "resume", name]
    assert command("resume", Path("runs/first")) == "gridml resume runs/first"


def test_the_readme_says_where_senseless_messages_lie_and_how_to_go_back(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").create()
    readme = (tmp_path / "run" / "README.txt").read_text()
    assert "set-aside/" in readme and "gridml rollback" in readme

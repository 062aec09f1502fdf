"""The kind of disk of a path, from the list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.protocol.payload import network_disk


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("/dev/vda / ext4 rw 0 0", None),
        ("server:/export {folder} nfs4 rw 0 0", "nfs4"),
        ("server:/export {folder} nfs rw 0 0", "nfs"),
        ("sshfs {folder} fuse.sshfs rw 0 0", "fuse.sshfs"),
        ("overlay {folder} fuse.overlayfs rw 0 0", None),
        ("//server/share {folder} cifs rw 0 0", "cifs"),
        ("server:/ / nfs rw 0 0\n/dev/vda {folder} ext4 rw 0 0", None),  # the innermost mount counts
        ("/dev/vda {folder} ext4 rw 0 0\nserver:/ / nfs rw 0 0", None),
        ("/dev/vda / ext4 rw 0 0\nserver:/ {folder} lustre rw 0 0", "lustre"),
        ("server:/ {folder} nfs rw 0 0\n/dev/vdb {folder} ext4 rw 0 0", None),  # mounted over it
        ("server:/ {folder}-other nfs rw 0 0\n/dev/vda / ext4 rw 0 0", None),  # a neighbour with the same beginning
        ("nonsense\n\n", None),
        ("", None),
    ],
)
def test_the_kind_of_disk_is_read_from_the_mounts(tmp_path: Path, mounts: str, expected: str | None) -> None:
    file = tmp_path / "mounts"
    file.write_text(mounts.format(folder=tmp_path.resolve()))
    assert network_disk(tmp_path, file) == expected


def test_names_with_blanks_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "my runs" / "first"
    folder.mkdir(parents=True)
    file = tmp_path / "mounts"
    file.write_text(f"server:/ {tmp_path.resolve()}/my\\040runs nfs4 rw 0 0\n/dev/vda / ext4 rw 0 0\n")
    assert network_disk(folder, file) == "nfs4"


def test_where_there_are_no_mounts_to_read_nothing_is_claimed(tmp_path: Path) -> None:
    assert network_disk(tmp_path, tmp_path / "nowhere") is None

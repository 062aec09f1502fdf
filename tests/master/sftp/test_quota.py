"""Counting the files of a mailbox while others write and the master removes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from master.sftp.jail import Quota, QuotaUsage


def test_what_the_master_takes_while_it_is_counted_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = tmp_path / "w1"
    box.mkdir()
    for name in ("taken", "kept", "new"):
        (box / name).write_bytes(bytes(10))
    scandir = os.scandir

    @contextmanager
    def listed_too_early(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            names = list(entries)
        (box / "taken").unlink()
        yield names

    usage, file = QuotaUsage(tmp_path), os.open(box / "new", os.O_RDWR)
    monkeypatch.setattr("master.sftp.jail.os.scandir", listed_too_early)
    try:
        assert usage.can_write(Quota(longest=20), "w1", file, 20)
    finally:
        os.close(file)

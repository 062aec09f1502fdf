"""What carriers carry is measured by what arrived."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.carriers import arrived, row
from gridml.carriers.mailbox_files import message_name


@pytest.mark.real
@pytest.mark.parametrize("carrier", ["directory", "sftp"])
def test_a_row_says_what_it_took(carrier: str) -> None:
    found = row(carrier, 1, 2)
    assert found["failed"] == 0 and (found["carrier"], found["MB"], found["clients"]) == (carrier, 1, 2)
    for column in ("up MB/s", "down MB/s", "clients s/GB up", "clients s/GB down"):
        assert float(found[column] or 0) > 0
    assert (float(found["server s/GB up"] or 0) > 0) == (int(found["server MB"] or 0) > 0) == (carrier == "sftp")


def test_what_is_damaged_or_not_there_did_not_arrive(tmp_path: Path) -> None:
    name = message_name("sync", 1, b"a message")
    assert not arrived(tmp_path, name)
    (tmp_path / name).write_bytes(b"another")
    assert not arrived(tmp_path, name)
    (tmp_path / name).write_bytes(b"a message")
    (tmp_path / "progress").write_bytes(b"of a heartbeat")
    assert arrived(tmp_path, name)

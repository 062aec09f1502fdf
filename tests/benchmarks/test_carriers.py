"""The benchmark of carriers checks the received content."""

from __future__ import annotations

import multiprocessing
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.carriers import comparison as carriers
from benchmarks.carriers.clients import NotMeasured, Served, Work
from benchmarks.carriers.comparison import MB, arrived, check_room, measure, row
from gridml.carriers.base import name_of
from gridml.protocol.bundle import digest
from pools.release import NoCondor, Release


@pytest.mark.real
@pytest.mark.parametrize(("carrier", "size"), [("directory", 1), ("sftp", 1), ("chirp", 30)])
def test_a_row_says_what_it_took(carrier: str, size: int) -> None:
    try:
        found = row(carrier, size, 2)
    except NoCondor as error:
        pytest.skip(str(error))
    assert found["failed"] == 0 and (found["carrier"], found["MB"], found["clients"]) == (carrier, size, 2)
    for column in ("up MB/s", "down MB/s", "clients s/GB up", "clients s/GB down"):
        assert float(found[column] or 0) > 0
    serves = carrier != "directory"
    assert (float(found["server s/GB up"] or 0) > 0) == (int(found["server MB"] or 0) > 0) == serves
    # Starter and shadow hold only a piece of the message; whole ones would take 200 MB for the two jobs.
    assert int(found["server MB"] or 0) < 150


@pytest.mark.real
def test_a_case_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "LIMIT_S", 0.0)
    with pytest.raises(NotMeasured, match="longer than 0 s"):
        row("directory", 1, 2)
    assert multiprocessing.active_children() == []


def test_what_a_machine_has_no_room_for_is_not_begun(tmp_path: Path) -> None:
    check_room(tmp_path, MB)
    with pytest.raises(NotMeasured, match=r"up to 3e\+09 GB of memory"):
        check_room(tmp_path, 10**18)


def test_a_client_that_ends_amid_its_work_is_not_waited_for(tmp_path: Path) -> None:
    near, far = multiprocessing.Pipe()
    far.send("ready")
    far.close()
    with near, pytest.raises(NotMeasured, match="has ended"):
        measure(Served(tmp_path, lambda work: nullcontext([near])), Work(1, 1, ""))


@pytest.mark.real
def test_where_there_is_no_condor_the_other_carriers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Release:
        raise NoCondor("this machine has no HTCondor")

    written = list[Any]()
    monkeypatch.setattr("pools.pool.find", none)
    monkeypatch.setattr(carriers, "write", lambda *said: written.extend(said))
    monkeypatch.setattr(carriers, "CLIENTS", (1,))
    monkeypatch.setattr(carriers, "SIZES", (1, 10**12))
    carriers.measure_all(["chirp", "directory"])
    _, _, rows, notes = written
    assert [(each["carrier"], each["MB"]) for each in rows] == [("directory", 1)]
    assert "no chirp: this machine has no HTCondor" in notes
    assert notes[-1].startswith("not measured: directory, 1000000000000 MB by 1 clients: it takes up to")


def test_what_is_damaged_or_not_there_did_not_arrive(tmp_path: Path) -> None:
    name = name_of("sync", 1, digest(b"a message"))
    assert not arrived(tmp_path, name)
    (tmp_path / name).write_bytes(b"another")
    assert not arrived(tmp_path, name)
    (tmp_path / name).write_bytes(b"a message")
    (tmp_path / "progress").write_bytes(b"of a heartbeat")
    assert arrived(tmp_path, name)

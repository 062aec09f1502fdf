"""Every carrier fulfils the contract. A new carrier joins by a maker of its two ends in `CARRIERS`."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gridml.carriers import directory as directory_file
from gridml.carriers.chirp import proxy_of_job
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.carriers.file_link import FileMailbox
from gridml.carriers.sftp import SftpLink, connection_of_job
from gridml.protocol import bundle
from gridml.protocol.payload import Pieces
from gridml.testing.carriers import CHECKS, CarrierPair, damage_in_files
from master.sftp.server import MailServer
from master.simulation.faulty_network import FaultyNetwork, VirtualClock
from tests.support.chirp_server import proxy
from tests.support.damage import damage_in_network


@contextmanager
def directory(root: Path) -> Iterator[CarrierPair]:
    yield CarrierPair(DirectoryMailboxes(root), lambda name: DirectoryMailbox(root, name), damage_in_files(root))


@contextmanager
def chirp(root: Path) -> Iterator[CarrierPair]:
    config = root / ".chirp.config"
    with proxy(root, config):
        yield CarrierPair(
            DirectoryMailboxes(root),
            lambda name: FileMailbox(name, lambda: proxy_of_job(config), heartbeat_s=0),
            damage_in_files(root),
        )


@contextmanager
def sftp(root: Path) -> Iterator[CarrierPair]:
    master = DirectoryMailboxes(root)
    server = MailServer(root, "127.0.0.1")
    server.make("w1")
    server.make("w2")
    lines = {name: connection_of_job(root / "sftp" / name) for name in ("w1", "w2")}
    try:
        yield CarrierPair(
            master,
            lambda name: FileMailbox(name, lambda: SftpLink(lines[name]), heartbeat_s=0),
            damage_in_files(root),
        )
    finally:
        for line in lines.values():
            line.close()
        server.close()


@contextmanager
def memory(_: Path) -> Iterator[CarrierPair]:
    network = FaultyNetwork(VirtualClock())
    yield CarrierPair(network.master(), network.worker, damage_in_network(network))


CARRIERS: dict[str, Callable[[Path], AbstractContextManager[CarrierPair]]] = {
    "directory": directory,
    "chirp": chirp,
    "sftp": sftp,
    "memory": memory,
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_is_kept(carrier: str, check: Callable[[CarrierPair], None], tmp_path: Path) -> None:
    with CARRIERS[carrier](tmp_path) as pair:
        check(pair)


@pytest.mark.parametrize("carrier", ["directory", "chirp", "sftp"])
def test_what_arrives_is_hashed_on_its_way(carrier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither end reads a whole payload again for its SHA-256, nor transfers it twice before it was read."""
    payload = bytes(range(256)) * 9_000  # several blocks
    sha256 = bundle.digest(payload)
    with CARRIERS[carrier](tmp_path) as pair:
        pair.master.open("w1")
        worker = pair.worker("w1")
        pair.master.publish("lease-000001", payload)
        pieces = Pieces([payload])
        worker.send(1, pieces)
        written = {path: path.stat().st_ino for path in (tmp_path / "mail" / "w1").glob("sync-*")}

        def unexpected(_: object) -> str:
            raise AssertionError("a payload that has arrived is gone through again")

        monkeypatch.setattr(Pieces, "sha256", property(unexpected))
        (message,) = pair.master.collect()
        assert message.payload == payload
        assert worker.fetch("lease-000001", sha256) == payload
        monkeypatch.undo()
        worker.send(1, pieces)
        assert written == {path: path.stat().st_ino for path in (tmp_path / "mail" / "w1").glob("sync-*")}
        pair.master.answer("w1", 1, payload)
        monkeypatch.setattr(Pieces, "sha256", property(unexpected))
        assert worker.receive(1) == payload
        worker.close()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_viewed_is_what_is_fetched(carrier: str, tmp_path: Path) -> None:
    """A shared file can be read after it was retracted, because its answer may be read later."""
    with CARRIERS[carrier](tmp_path) as pair:
        pair.master.open("w1")
        worker = pair.worker("w1")
        pair.master.publish("version-1", b"version")
        viewed = worker.view("version-1", bundle.digest(b"version"))
        with pytest.raises(ValueError, match="version-1 has another SHA-256"):
            worker.view("version-1", bundle.digest(b"another"))
        pair.master.retract("version-1")
        with pytest.raises(OSError):
            worker.view("version-1", bundle.digest(b"version"))
        assert bytes(viewed) == b"version"
        worker.close()


def test_a_view_takes_no_memory_on_a_local_disk_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads on a network disk are not mapped: another machine may remove a mapped file."""
    master = DirectoryMailboxes(tmp_path)
    master.open("w1")
    master.publish("version-1", b"version")
    for disk, kind in ((None, mmap.mmap), ("nfs4", bytearray)):
        monkeypatch.setattr(directory_file, "network_disk", lambda root, disk=disk: disk)
        worker = DirectoryMailbox(tmp_path, "w1")
        viewed = worker.view("version-1", bundle.digest(b"version"))
        assert isinstance(viewed.obj if isinstance(viewed, memoryview) else viewed, kind)
        worker.close()

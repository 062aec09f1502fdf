"""The Chirp connection: each failure becomes an OSError, and the next command works again."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridml.carriers.chirp import ChirpLink, proxy_of_job
from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.file_link import FileMailbox
from gridml.errors import RunError
from tests.support.chirp_server import proxy


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / ".chirp.config"


@pytest.fixture
def link(tmp_path: Path, config: Path) -> Iterator[ChirpLink]:
    with proxy(tmp_path, config):
        link = ChirpLink(config, timeout_s=5)
        yield link
        link.close()


@contextmanager
def server(answer: Callable[[socket.socket], None], config: Path) -> Iterator[None]:
    """Serve one connection, with the answers of `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config.write_text(f"127.0.0.1 {listening.getsockname()[1]} cookie\n")

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(timeout=60)


def test_what_was_put_is_there_and_nothing_beside_it(link: ChirpLink, tmp_path: Path) -> None:
    folder = tmp_path / "box"
    folder.mkdir()
    link.put("box/message", b"x" * 1_000_003)
    assert link.list("box") == ["message"] and link.get("box/message") == b"x" * 1_000_003
    link.unlink("box/message")
    link.unlink("box/message")  # a second time is no error
    assert list(folder.iterdir()) == []


def test_a_file_is_written_in_one_command(link: ChirpLink, tmp_path: Path) -> None:
    for number in range(3):
        link.write("heartbeat", number.to_bytes(8, "little"))
    assert (tmp_path / "heartbeat").read_bytes() == (2).to_bytes(8, "little")


@pytest.mark.parametrize("count", [0, 99, 100, 101, 130, 200, 1_000, 1_001])
def test_no_command_carries_more_than_a_piece(tmp_path: Path, config: Path, count: int) -> None:
    payload = bytes(i % 251 for i in range(count))
    with proxy(tmp_path, config, largest=100):
        link = ChirpLink(config, timeout_s=5, piece=100)
        link.put("message", payload)
        assert (tmp_path / "message").read_bytes() == payload
        assert link.get("message") == payload
        link.write("message", payload[::-1])
        assert link.get("message") == payload[::-1]
        assert set(link.list(".")) == {"message", config.name}
        link.close()


def test_a_large_file_that_is_refused_is_an_error_and_the_connection_is_good(tmp_path: Path, config: Path) -> None:
    with proxy(tmp_path, config, largest=100):
        link = ChirpLink(config, timeout_s=5, piece=100)
        with pytest.raises(FileNotFoundError):
            link.put("no/such/folder", bytes(101))
        before = link._socket
        link.put("message", bytes(101))
        assert link._socket is before is not None
        link.close()


STATUS = b"0 " * 13 + b"\n"


@contextmanager
def scripted(answers: dict[str, bytes], config: Path) -> Iterator[list[str]]:
    """Serve one answer for each command; yield the list of received commands."""
    commands: list[str] = []

    def obey(connection: socket.socket) -> None:
        with connection.makefile("rb") as received:
            while line := received.readline():
                words = line.split()
                commands.append(words[0].decode())
                if words[0] == b"write":
                    received.read(int(words[2]))
                connection.sendall(answers[commands[-1]])

    with server(obey, config):
        yield commands


def test_a_disk_that_fills_amid_a_large_file_is_reported_as_one(config: Path) -> None:
    answers = {"cookie": b"0\n", "stat": b"0\n" + STATUS, "open": b"7\n" + STATUS, "write": b"-6\n", "close": b"0\n"}
    with scripted(answers, config) as commands:
        link = ChirpLink(config, timeout_s=5, piece=100)
        with pytest.raises(OSError, match="space") as caught:
            link.put("box/message", bytes(101))
        link.close()
    assert caught.value.errno == errno.ENOSPC
    assert commands == ["cookie", "stat", "open", "write", "close"]


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda link: link.get("message"), id="get"),
        pytest.param(lambda link: link.put("message", bytes(101)), id="put_in_pieces"),
        pytest.param(lambda link: link.put("message", b"x"), id="put"),
        pytest.param(lambda link: link.list("box"), id="list"),
    ],
)
def test_without_its_shadow_a_starter_is_not_asked_to_open_a_file(
    act: Callable[[ChirpLink], object], config: Path
) -> None:
    """Names that a starter cannot map are never opened: it would exit, and kill the job."""
    offline = b"-17\n"
    answers = {"cookie": b"0\n", "stat": offline, "putfile": offline, "getdir": offline}
    with scripted(answers, config) as commands:
        link = ChirpLink(config, timeout_s=5, piece=100)
        with pytest.raises(OSError) as caught:
            act(link)
        link.close()
    assert caught.value.errno == errno.EHOSTUNREACH and len(commands) == 2


def test_a_file_that_was_replaced_by_a_longer_one_since_it_was_measured_comes_whole(config: Path) -> None:
    with scripted({"cookie": b"0\n", "stat": b"0\n" + STATUS, "getfile": b"3\nabc"}, config):
        link = ChirpLink(config, timeout_s=5)
        assert link.get("message") == b"abc"
        link.close()


def test_a_missing_file_is_a_missing_file_and_the_connection_is_good(link: ChirpLink, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link.get("nothing")
    with pytest.raises(FileNotFoundError):
        link.put("no/such/folder", b"")
    (tmp_path / "there").write_bytes(b"yes")
    assert link.get("there") == b"yes"
    assert link._socket is not None and link._socket.gettimeout() == 5  # a refusal also ends the longer timeout


def test_a_full_disk_is_reported_as_one(config: Path) -> None:
    def full(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"0\n")
        connection.recv(100)
        connection.sendall(b"-6\n")

    with server(full, config):
        link = ChirpLink(config, timeout_s=5)
        with pytest.raises(OSError, match="space") as caught:
            link.put("box/message", b"abc")
        link.close()
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("nonsense", [b"", b"0\n", b"0\n10\nabc", b"nonsense\n", b"0\n7 7\n"])
def test_a_connection_that_ends_or_makes_no_sense_is_an_error_not_a_wait(nonsense: bytes, config: Path) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(nonsense)

    with server(answer, config):
        link = ChirpLink(config, timeout_s=5)
        with pytest.raises(OSError):
            link.get("message")


def test_after_a_broken_connection_the_next_command_makes_a_new_one(tmp_path: Path, config: Path) -> None:
    (tmp_path / "there").write_bytes(b"yes")
    with proxy(tmp_path, config):
        link = ChirpLink(config, timeout_s=5)
        assert link.get("there") == b"yes"
        assert link._socket is not None
        link._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError):
            link.get("there")
        assert link.get("there") == b"yes"
        link.close()


def test_a_silent_proxy_is_given_up_after_a_while(config: Path) -> None:
    done = threading.Event()
    with server(lambda connection: done.wait(60) and None, config):
        with pytest.raises(TimeoutError):
            ChirpLink(config, timeout_s=0.05).get("message")
        done.set()


def test_a_job_without_chirp_says_what_to_ask_for(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="want_io_proxy"):
        FileMailbox("w1", lambda: proxy_of_job(tmp_path / "none"))


def test_of_many_heartbeats_the_last_one_stays(tmp_path: Path, config: Path) -> None:
    (tmp_path / "mail" / "w1").mkdir(parents=True)
    with proxy(tmp_path, config):
        worker = FileMailbox("w1", lambda: proxy_of_job(config), heartbeat_s=0.01)
        for upto in range(1000):
            worker.beat(1, upto)
        worker.close()
    assert DirectoryMailboxes(tmp_path).heartbeat("w1") == (1, 999, 1000)


def test_a_proxy_that_never_answers_does_not_hold_up_training(tmp_path: Path, config: Path) -> None:
    done = threading.Event()
    with server(lambda connection: done.wait(60) and None, config):
        worker = FileMailbox("w1", lambda: proxy_of_job(config))
        for upto in range(1000):
            worker.beat(1, upto)  # each would take seconds
        done.set()
        worker.close()

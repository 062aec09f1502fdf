"""A live page is only accessible by its address, only requests its own data, and reports errors in one message."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gridml.cli.main import command_line
from gridml.errors import LedgerError, UsageError
from master.store.ledger import Ledger
from master.views.page import page_server
from master.views.page.document import PageFacts, changed_parts, read_page_facts
from master.views.page.page_server import HOST, MAX_CONNECTIONS, MIN_INTERVAL_S, SHARE, CachedFacts, PageServer, serving
from tests.support.effort import examples


@pytest.fixture
def server(finished: Path) -> Iterator[PageServer]:
    with serving(PageServer(finished)) as server:
        yield server


def ask(
    server: PageServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def test_who_has_the_address_gets_the_page_and_what_is_new(server: PageServer) -> None:
    answer, page = ask(server, f"/{server.token}/")
    assert answer.status == 200
    assert 'data-live="yes"' in page
    answer, text = ask(server, f"/{server.token}/data?after=1")
    assert json.loads(text)["events"]["topic"] == ["evicted"]
    assert json.loads(text)["report"]["credited"] == 2000
    kept = ".".join(json.loads(text)["digests"])
    less = json.loads(ask(server, f"/{server.token}/data?after=2&digests={kept}")[1])
    assert not {"report", "progress"} & less.keys() and less["history"] == {}
    assert less["digests"] == json.loads(text)["digests"]
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/data", "/{wrong}/", "/{wrong}/data", "/{token}x/", "/{less}/"])
def test_a_wrong_token_is_refused(server: PageServer, path: str) -> None:
    names = {"token": server.token, "wrong": "x" * len(server.token), "less": server.token[:-1]}
    answer, text = ask(server, path.format(**names))
    assert answer.status == 403
    assert "wrong token" in text and server.token not in text


def test_no_two_pages_have_the_same_token(finished: Path, server: PageServer) -> None:
    other = PageServer(finished)
    other.server_close()
    assert len(other.token) >= 32 and other.token != server.token


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "", "localhost.example.org:80"])
def test_a_name_that_was_bent_to_this_machine_is_refused(server: PageServer, host: str) -> None:
    answer, text = ask(server, f"/{server.token}/data", host=host)
    assert (answer.status, text) == (403, "this page is for browsers of its own machine")


def test_localhost_is_a_name_of_this_machine(server: PageServer) -> None:
    assert ask(server, f"/{server.token}/", host=f"localhost:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_reading_is_there(server: PageServer, method: str) -> None:
    answer, _ = ask(server, f"/{server.token}/data", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


def test_an_address_of_nothing_is_said_so(server: PageServer) -> None:
    assert ask(server, f"/{server.token}/ledger.db")[0].status == 404
    assert ask(server, f"/{server.token}/../../etc/passwd")[0].status == 404


def test_it_can_be_reached_from_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_one_message(finished: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(command_line(), ["watch", str(finished), "--page", "--port", str(port)])
    assert isinstance(ended.exception, UsageError)
    assert str(ended.exception) == (
        f"port {port} of 127.0.0.1 cannot be used: Address already in use. Give another --port, or omit it to use a "
        "free one."
    )


def test_what_is_wrong_with_a_run_is_said_before_there_is_a_page(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a run"):
        page_server.serve_page(tmp_path, 0)
    ended = CliRunner().invoke(command_line(), ["watch", str(tmp_path), "--port", "8000"])
    assert str(ended.exception).startswith("got --port without --page; expected both")


def test_it_says_where_it_is_and_leaves_at_an_interrupt(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    page_server.serve_page(finished, 0, interrupted)
    said = capsys.readouterr()
    assert "is at http://127.0.0.1:" in said.out
    assert "the run continues" in said.err


def test_a_ledger_that_takes_long_to_read_is_read_seldom(finished: Path) -> None:
    now = [0.0]
    read: list[float] = []

    def slowly(root: Path) -> PageFacts:
        read.append(now[0])
        now[0] += 2.0
        return read_page_facts(root)

    kept = CachedFacts(finished, lambda: now[0], slowly)
    for _ in range(100):
        kept.now()
        now[0] += 0.5
    assert len(read) == 3  # at 0, at 22 and at 44 s
    assert all(later - earlier >= 2.0 / SHARE for earlier, later in pairwise(read))
    assert MIN_INTERVAL_S > 0


def test_new_credits_come_with_the_next_request(finished: Path) -> None:
    kept = CachedFacts(finished, iter([0.0, 0.0, 5.0, 5.0]).__next__)
    assert len(kept.now().events.topic) == 2
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        ledger.event(109.0, "warning", "something new")
    ledger.close()
    assert kept.now().after(2).events.text == ["something new"]


def test_of_a_run_that_goes_on_only_the_parts_that_changed_come(finished: Path) -> None:
    before = read_page_facts(finished)
    kept = changed_parts(before, ())["digests"]
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        ledger.set_metrics(1, {"accuracy": 1.0})
    ledger.close()
    answer = changed_parts(read_page_facts(finished), kept)
    assert answer["report"]["epochs"][1]["metrics"] == {"accuracy": 1.0}
    assert answer["history"] == {}


def test_a_ledger_that_cannot_be_read_for_a_while_leaves_what_was_known(finished: Path) -> None:
    """A browser keeps the old data, with the error, and is up to date as soon as the run can be read again."""
    now = [0.0]
    kept = CachedFacts(finished, lambda: now[0])
    page = PageServer(finished, facts=kept)
    ledger, away = finished / "ledger.db", finished / "away.db"
    with serving(page):
        ledger.rename(away)
        assert ask(page, f"/{page.token}/data")[0].status == 503  # there is no data yet
        away.rename(ledger)
        assert ask(page, f"/{page.token}/data")[0].status == 200
        ledger.rename(away)
        now[0] += 1000.0
        for path in ("", "data"):
            answer, text = ask(page, f"/{page.token}/{path}")
            assert answer.status == 200 and "is not a run" in text
        away.rename(ledger)
        now[0] += 1000.0
        answer, text = ask(page, f"/{page.token}/data")
        assert (answer.status, json.loads(text)["trouble"]) == (200, None)


def send(server: PageServer, content: bytes, *, half: bool = False) -> bytes:
    """Send raw bytes; return all that is answered. `half`: close the connection abruptly instead of reading."""
    with socket.create_connection((HOST, server.server_port), timeout=60) as connection:
        if half:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        with contextlib.suppress(OSError):  # it may have answered and closed before all was sent
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
        if half:
            return b""
        answer = b""
        with contextlib.suppress(ConnectionError):
            while got := connection.recv(1 << 16):
                answer += got
        return answer


TAIL = b" HTTP/1.1\r\nHost: {host}\r\n\r\n"
SPECIAL = {  # by name, as some are long
    "nothing": b"",
    "no line": b"\r\n",
    "a word": b"GET",
    "no version": b"GET /\r\n",
    "a late version": b"GET / HTTP/9.9\r\n\r\n",
    "no number": b"GET / HTTP/x\r\n\r\n",
    "no method": b"__class__ / HTTP/1.1\r\n\r\n",
    "an open bracket": b"GET http://[/" + TAIL,
    "a bracket after slashes": b"GET //[" + TAIL,
    "a long number": b"GET /{token}/data?after=" + b"9" * 5000 + TAIL,
    "a long query": b"GET /{token}/data?" + b"&" * 60_000 + TAIL,
    "a long path": b"GET /" + b"x" * 100_000 + TAIL,
    "a long header": b"GET / HTTP/1.1\r\nHost: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
}
REQUESTS = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=100).map(lambda b: b"GET " + b + b" HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    st.binary(max_size=100).map(lambda b: b"GET /{token}/data?" + b + b" HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    st.binary(max_size=100).map(lambda b: b"GET /{token}/ HTTP/1.1\r\nHost: " + b + b"\r\n\r\n"),
    st.binary(max_size=100).map(lambda b: b"GET / HTTP/1.1\r\n" + b + b"\r\n\r\n"),
    st.sampled_from([*SPECIAL]).map(lambda name: name.encode()),
)


def requested(server: PageServer, content: bytes) -> bytes:
    content = SPECIAL.get(content.decode(errors="replace"), content)
    host = f"{HOST}:{server.server_port}".encode()
    return content.replace(b"{host}", host).replace(b"{token}", server.token.encode())


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=REQUESTS, half=st.booleans())
@example(content=b"an open bracket", half=False)
@example(content=b"a long number", half=False)
@example(content=b"GET\t{token}/\x00\n \rHost:{host}", half=False)
def test_whatever_is_sent_is_answered_or_closed_without_a_traceback(
    server: PageServer, capfd: pytest.CaptureFixture[str], content: bytes, half: bool
) -> None:
    """Regression: `GET http://[/` printed a traceback on the terminal of gridml watch --page."""
    answer = send(server, requested(server, content), half=half)
    bare = (b"<!DOC", b"<!doc", b"{", b"this page", b"wrong token", b"only the page")  # a request without a version
    assert not answer or answer.startswith((b"HTTP/", *bare))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("path", "status"), [(b"http://[/", b"403"), (b"\xff", b"403"), (b"/ /", b"400")])
def test_an_address_that_is_none_is_refused(server: PageServer, path: bytes, status: bytes) -> None:
    host = f"{HOST}:{server.server_port}".encode()
    answer = send(server, b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert answer.split()[1] == status


def test_connections_in_number_take_no_more_threads_than_are_allowed(
    server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(2 * MAX_CONNECTIONS):
            opened.enter_context(socket.create_connection((HOST, server.server_port), timeout=60)).sendall(b"GET /")
        threads = [each for each in threading.enumerate() if "process_request" in each.name]
        assert len(threads) <= MAX_CONNECTIONS
    assert ask(server, f"/{server.token}/")[0].status == 200
    assert capfd.readouterr() == ("", "")


def test_an_error_of_its_own_is_one_line_and_only_the_first_of_its_kind(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(root: Path) -> PageFacts:
        raise ZeroDivisionError("a\nbug")

    with serving(PageServer(finished, facts=CachedFacts(finished, read=broken))) as server:
        for _ in range(3):
            with pytest.raises(http.client.RemoteDisconnected):
                ask(server, f"/{server.token}/")
    assert capsys.readouterr().err == "The page's server could not answer a request: ZeroDivisionError: a\\nbug\n"

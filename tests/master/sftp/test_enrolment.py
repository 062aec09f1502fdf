"""A machine without a key enrols once, by its provider's signature; no other client gains access by enrolment."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.carriers.enrolment import (
    MAX_BUNDLE_FILES,
    MAX_LINE_BYTES,
    MAX_LOG_CHARS,
    USER,
    Assignment,
    BundleFile,
    EnrolmentClient,
    Refused,
    new_key,
    read_line,
)
from gridml.carriers.sftp import Credential, SftpConnection, SftpLink, connected, hang_up
from gridml.errors import LedgerError, UsageError
from gridml.protocol.foreign import MAX_MESSAGE_CHARS
from master.sftp import server as mail_server
from master.sftp.identity import MAX_REQUESTS
from master.sftp.roster import End, Instance, Roster
from master.sftp.server import LOGIN_TIMEOUT_S, MAX_ANONYMOUS, MAX_JOB_CONNECTIONS, MailServer
from master.simulation.faulty_network import VirtualClock

TIMEOUT_S, LIMIT_S = 30.0, 60.0
TOKEN = "the token of the fleet"
LAUNCHED_S = 1_700_000_000.0


@pytest.fixture
def roster(fleet: Callable[..., Roster]) -> Roster:
    return fleet()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def server(roster: Roster, tmp_path: Path, clock: VirtualClock) -> Iterator[MailServer]:
    made = MailServer(tmp_path, "127.0.0.1", clock=clock)
    for job in ("w7", "w8"):
        made.make(job)
    yield made
    made.close()


@pytest.fixture
def enrol(server: MailServer, provider: Any) -> Callable[..., Assignment]:
    """A function that enrols a machine with a key: by default i-7, correctly."""

    def ask(
        private_key: str, id: str = "i-7", token: str = TOKEN, signer: Any = provider, **altered: Any
    ) -> Assignment:
        document = provider.document(id, **altered)
        return EnrolmentClient(server.address, private_key, TIMEOUT_S).enrol(token, document, signer.sign(document))

    return ask


def link_of(server: MailServer, job: str, private_key: str) -> SftpLink:
    address = server.address
    credential = Credential(address.host, address.port, address.host_key, job, private_key)
    return SftpLink(SftpConnection(credential, TIMEOUT_S))


def public_half(private_key: str) -> str:
    return str(paramiko.Ed25519Key(file_obj=io.StringIO(private_key)).get_base64())


def wait_until(true: Callable[[], bool]) -> None:
    limit = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if true():
            return
        limit.wait(0.01)
    raise AssertionError(f"did not happen within {LIMIT_S} s")


@pytest.fixture
def inside(server: MailServer) -> Iterator[Any]:
    """A connection of user `enrol` with an unknown key."""
    transport = connected(server.address, USER, new_key(), TIMEOUT_S)
    yield transport
    hang_up(transport)


# --- a machine of the fleet


def test_a_machine_enrols_and_its_key_is_its_jobs(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment]
) -> None:
    key = new_key()
    with pytest.raises(PermissionError, match="refused"):
        link_of(server, "w7", key).list("mail")
    found = enrol(key)
    program = b"print('trains')\n"
    assert found.job == "w7" and found.program == "mnist.py"
    assert found.arguments == ("--seed", "0") and found.environment == {"OMP_NUM_THREADS": "4"}
    kept = roster.enrolment("i-7")
    assert kept is not None and kept.public_key == public_half(key) and kept.address == "127.0.0.1"
    link = link_of(server, "w7", key)
    assert link.list("mail") == ["w7"]
    assert [link.get(file.path) for file in found.files] == [program]
    link.put("mail/w7/message", b"a push")
    assert link.get("mail/w7/message") == b"a push"
    link._connection.close()


def test_each_machine_reaches_its_own_mailbox_alone(server: MailServer, enrol: Callable[..., Assignment]) -> None:
    seven, eight = new_key(), new_key()
    assert (enrol(seven).job, enrol(eight, "i-8").job) == ("w7", "w8")
    with pytest.raises(PermissionError):
        link_of(server, "w8", seven).list("mail")
    link = link_of(server, "w7", seven)
    for ask in (
        lambda: link.list("mail/w8"),
        lambda: link.get("mail/w8/message"),
        lambda: link.write("mail/w8/message", b"x"),
        lambda: link.list(""),
        lambda: link.list("bundle"),
        lambda: link.get("fleet/fleet.json"),
        lambda: link.get("bundle/../fleet/fleet.json"),
        lambda: link.write("bundle/mnist.py", b"x"),
        lambda: link.put("bundle/other.py", b"x"),
    ):
        with pytest.raises(PermissionError):
            ask()
    link._connection.close()


def test_a_daemon_that_starts_again_asks_again_with_the_same_key(
    roster: Roster, enrol: Callable[..., Assignment]
) -> None:
    key = new_key()
    first = enrol(key)
    enrolled = roster.enrolment("i-7")
    assert enrol(key) == first and roster.enrolment("i-7") == enrolled


def test_the_next_master_knows_who_enrolled(
    server: MailServer, enrol: Callable[..., Assignment], tmp_path: Path, clock: VirtualClock
) -> None:
    key = new_key()
    enrol(key)
    before = server.address
    server.close()
    later = MailServer(tmp_path, "127.0.0.1", clock=clock)
    try:
        assert later.address == before
        link = link_of(later, "w7", key)
        assert link.list("mail") == ["w7"]
        link._connection.close()
    finally:
        later.close()


def test_a_machine_may_only_not_be_known_yet(roster: Roster, enrol: Callable[..., Assignment], tmp_path: Path) -> None:
    key = new_key()
    with pytest.raises(Refused, match="not in this fleet") as refused:
        enrol(key, "i-9")
    assert refused.value.retry_s
    roster.keep(Instance("i-9", "w9", "c7i.large", "eu-north-1a", LAUNCHED_S))
    (tmp_path / "bundle" / "bundle.json").rename(tmp_path / "kept")
    with pytest.raises(Refused, match="bundle") as refused:
        enrol(key, "i-9")
    assert refused.value.retry_s and roster.enrolment("i-9") is None
    (tmp_path / "kept").rename(tmp_path / "bundle" / "bundle.json")
    assert enrol(key, "i-9").job == "w9"


def test_a_machine_says_goodbye(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment], tmp_path: Path
) -> None:
    key = new_key()
    enrol(key)
    line = EnrolmentClient(server.address, key, TIMEOUT_S)
    line.goodbye("w7", 0, "the master said \x1b[31mit was enough", evicted=False)
    said = roster.goodbye("i-7")
    assert said is not None and (said.exit_status, said.evicted) == (0, False) and "\x1b" not in said.why
    line.goodbye("w7", 143, "the provider takes it", evicted=True, log="trains\n\x1b[2J" + 9_000 * "\x00")
    log = (tmp_path / "logs" / "w7.log").read_text()
    assert log.startswith("trains\n\\x1b[2J\\x00") and len(log) <= MAX_LOG_CHARS + 1
    said = roster.goodbye("i-7")
    assert said is not None and (said.exit_status, said.evicted) == (143, True)
    with pytest.raises(Refused, match="being reclaimed") as refused:  # though its key is the right one
        enrol(key)
    assert refused.value.retry_s is None


def test_a_goodbye_fits_into_a_line_whatever_the_worker_wrote(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment], tmp_path: Path
) -> None:
    key, log, why = new_key(), "\N{ROCKET}" * MAX_LOG_CHARS, "\N{ROCKET}" * MAX_MESSAGE_CHARS  # 12 bytes each as JSON
    enrol(key)
    EnrolmentClient(server.address, key, TIMEOUT_S).goodbye("w7", 1, why, evicted=False, log=f"{log}the end")
    said = roster.goodbye("i-7")
    assert said is not None and said.why == why
    assert (tmp_path / "logs" / "w7.log").read_text(encoding="utf-8").endswith("the end\n")


# --- rejected clients


def test_a_document_that_another_signed_does_not_enrol(
    roster: Roster, impostor: Any, enrol: Callable[..., Assignment]
) -> None:
    with pytest.raises(Refused, match="signature") as refused:
        enrol(new_key(), signer=impostor)
    assert refused.value.retry_s is None and roster.enrolment("i-7") is None


def test_a_document_that_was_altered_does_not_enrol(server: MailServer, roster: Roster, provider: Any) -> None:
    line = EnrolmentClient(server.address, new_key(), TIMEOUT_S)
    with pytest.raises(Refused, match="signature"):
        line.enrol(TOKEN, provider.document("i-8"), provider.sign(provider.document("i-7")))
    assert roster.enrolment("i-8") is None


def test_a_document_that_is_replayed_does_not_enrol(roster: Roster, enrol: Callable[..., Assignment]) -> None:
    """A client that has seen a machine's document and token still lacks its key."""
    enrol(new_key())
    before = roster.enrolment("i-7")
    with pytest.raises(Refused, match="another key") as refused:
        enrol(new_key())
    assert refused.value.retry_s is None and roster.enrolment("i-7") == before


@pytest.mark.parametrize(
    "altered",
    [
        {"accountId": "210987654321"},
        {"region": "us-east-1"},
        {"imageId": "ami-2"},
        {"pendingTime": "2014-06-05T14:28:02Z"},
        {"pendingTime": "2034-06-05T14:28:02Z"},
        {"instanceId": "../fleet"},
        {"instanceId": None},
    ],
)
def test_a_genuine_document_of_elsewhere_does_not_enrol(
    roster: Roster, enrol: Callable[..., Assignment], altered: dict[str, Any]
) -> None:
    with pytest.raises(Refused):
        enrol(new_key(), **altered)
    assert roster.enrolment("i-7") is None


def test_a_client_without_the_token_gets_no_details(roster: Roster, enrol: Callable[..., Assignment]) -> None:
    refusals = set()
    for altered in ({}, {"id": "i-9"}, {"imageId": "ami-2"}):
        with pytest.raises(Refused) as refused:
            enrol(new_key(), token="a guess", **altered)
        refusals.add((refused.value.why, refused.value.retry_s))
    assert len(refusals) == 1 and "token" in refusals.pop()[0]
    assert roster.enrolment("i-7") is None


def test_a_machine_that_has_ended_is_refused_and_its_connections_end(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment]
) -> None:
    key, other = new_key(), new_key()
    enrol(key)
    enrol(other, "i-8")
    link, stays = link_of(server, "w7", key), link_of(server, "w8", other)
    assert link.list("mail") == ["w7"] and stays.list("mail") == ["w8"]
    transport = link._connection._transport
    roster.keep(End("i-7", 1.0, "interrupted", taken=True))
    wait_until(lambda: not transport.is_active())
    with pytest.raises(PermissionError):
        link_of(server, "w7", key).list("mail")
    with pytest.raises(PermissionError):
        EnrolmentClient(server.address, key, TIMEOUT_S).goodbye("w7", 0, "", False)
    with pytest.raises(Refused, match="has ended"):
        enrol(key)
    assert stays.list("mail") == ["w8"] and roster.goodbye("i-7") is None
    stays._connection.close()


def test_of_two_keys_at_once_one_is_the_first(roster: Roster, enrol: Callable[..., Assignment]) -> None:
    keys = [new_key() for _ in range(8)]

    def attempt(key: str) -> bool:
        try:
            return enrol(key).job == "w7"
        except Refused:
            return False

    with ThreadPoolExecutor(len(keys)) as threads:
        enrolled = list(threads.map(attempt, keys))
    assert enrolled.count(True) == 1
    kept = roster.enrolment("i-7")
    assert kept is not None and kept.public_key == public_half(keys[enrolled.index(True)])


def test_a_job_that_is_over_has_no_files_and_only_says_goodbye(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment]
) -> None:
    key = new_key()
    enrol(key)
    link = link_of(server, "w7", key)
    assert link.list("mail")
    server.remove("w7")
    for ask in (lambda: link.list("mail"), lambda: link.list("mail"), lambda: link.get("bundle/mnist.py")):
        with pytest.raises(OSError):
            ask()
    link._connection.close()
    EnrolmentClient(server.address, key, TIMEOUT_S).goodbye("w7", 0, "the master said it was over", evicted=False)
    assert roster.goodbye("i-7") is not None  # the machine learns it first, and then says goodbye


def test_only_a_machine_of_the_job_says_goodbye_for_it(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment]
) -> None:
    key = new_key()
    enrol(key)
    line = EnrolmentClient(server.address, key, TIMEOUT_S)
    with pytest.raises(PermissionError):
        line.goodbye("w8", 0, "", False)
    with pytest.raises(PermissionError):
        EnrolmentClient(server.address, new_key(), TIMEOUT_S).goodbye("w7", 0, "", False)
    with pytest.raises(Refused, match="unknown request"):
        line.goodbye(USER, 0, "", False)
    assert roster.goodbye("i-7") is None and roster.goodbye("i-8") is None


def test_a_connection_that_breaks_while_a_key_is_shown_is_no_refusal(
    server: MailServer, enrol: Callable[..., Assignment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A goodbye that was refused is not repeated; one that did not arrive is."""
    key = new_key()
    enrol(key)
    authenticate = server.authenticate

    def break_off(user: str, shown: Any) -> Any:
        for connection in server._connections:
            hang_up(connection.transport)
        return authenticate(user, shown)

    monkeypatch.setattr(server, "authenticate", break_off)
    with pytest.raises(ConnectionError):
        EnrolmentClient(server.address, key, TIMEOUT_S).goodbye("w7", 0, "", False)


@pytest.mark.parametrize("where", ["authenticate", "_session"])
def test_a_server_that_is_stopped_is_given_up(server: MailServer, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The server accepts connections but does not answer: during authentication, or for the subsystem."""
    goes_on = threading.Event()
    owner: Any = server if where == "authenticate" else mail_server._ConnectionHandler
    answer = getattr(owner, where)

    def stopped(*arguments: Any) -> Any:
        goes_on.wait(LIMIT_S)
        return answer(*arguments)

    monkeypatch.setattr(owner, where, stopped)
    try:
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(EnrolmentClient(server.address, new_key(), 0.5).enrol, TOKEN, "", "")
            error = asked.exception(LIMIT_S / 2)
    finally:
        goes_on.set()
    assert isinstance(error, TimeoutError | ConnectionError), error


# --- user `enrol` can do nothing else


def test_the_user_enrol_has_no_files_no_shell_and_no_ports(inside: Any, tmp_path: Path) -> None:
    for ask in (
        lambda channel: channel.invoke_subsystem("sftp"),
        lambda channel: channel.exec_command(f"touch {tmp_path}/here"),
        lambda channel: channel.invoke_shell(),
        lambda channel: channel.get_pty(),
    ):
        with pytest.raises(paramiko.SSHException):
            ask(inside.open_session(timeout=TIMEOUT_S))
    with pytest.raises(paramiko.SSHException):
        inside.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1), timeout=TIMEOUT_S)
    with pytest.raises(paramiko.SSHException):
        inside.request_port_forward("127.0.0.1", 0)
    assert not (tmp_path / "here").exists()


def test_without_a_fleet_enrolment_is_refused(tmp_path: Path, provider: Any) -> None:
    (tmp_path / "mail" / "w1").mkdir(parents=True)
    server = MailServer(tmp_path, "127.0.0.1")
    try:
        server.make("w1")
        credential = Credential.read(tmp_path / "sftp" / "w1")
        with pytest.raises(PermissionError):
            EnrolmentClient(server.address, new_key(), TIMEOUT_S).enrol(TOKEN, "", "")
        with pytest.raises(OSError):  # a job's own key does not allow that either
            EnrolmentClient(server.address, credential.private_key, TIMEOUT_S).goodbye("w1", 0, "", False)
    finally:
        server.close()


def test_a_fleets_jobs_have_no_keys_of_the_masters_making(server: MailServer, tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in (tmp_path / "sftp").iterdir()}
    assert set(files) == {"w7", "w8", "server.json"}
    assert "PRIVATE" not in files["w7"] + files["w8"]
    with pytest.raises(UsageError, match="job name"):
        server.make(USER)


def asked(inside: Any) -> Any:
    channel = inside.open_session(timeout=TIMEOUT_S)
    channel.settimeout(TIMEOUT_S)
    channel.invoke_subsystem("enrol")
    return channel


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b"{", b"\xff", b"[" * 50_000, b'{"op": "enrol"}', b'{"op": "list"}',
     b'{"op": "enrol", "fleet_token": 1, "document": "", "signature": ""}',
     b'{"op": "farewell", "exit_status": 0, "why": "", "evicted": true}'],
)  # fmt: skip
def test_what_is_no_request_is_refused(inside: Any, line: bytes) -> None:
    channel = asked(inside)
    channel.sendall(line + b"\n")
    assert "refused" in json.loads(read_line(channel, TIMEOUT_S) or b"{}")


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_that_is_too_long_is_not_read(inside: Any, ending: bytes) -> None:
    channel = asked(inside)
    channel.sendall(b"x" * (MAX_LINE_BYTES + 1) + ending)
    assert channel.recv(1) == b""


def test_there_are_few_requests_on_a_channel(inside: Any) -> None:
    channel = asked(inside)
    for _ in range(MAX_REQUESTS):
        channel.sendall(b"{}\n")
        assert read_line(channel, TIMEOUT_S)
    assert channel.recv(1) == b"" and channel.recv_exit_status() == 0


def test_who_says_nothing_is_shown_out(
    inside: Any, server: MailServer, clock: VirtualClock, enrol: Callable[..., Assignment]
) -> None:
    key = new_key()
    enrol(key)
    link = link_of(server, "w7", key)
    assert link.list("mail")
    clock.now_s = LOGIN_TIMEOUT_S + 1
    wait_until(lambda: not inside.is_active())
    assert link.list("mail") == ["w7"]
    link._connection.close()


def test_strangers_that_hold_the_door_open_keep_no_machine_out(
    server: MailServer, enrol: Callable[..., Assignment]
) -> None:
    crowd = [connected(server.address, USER, new_key(), TIMEOUT_S) for _ in range(MAX_ANONYMOUS + MAX_JOB_CONNECTIONS)]
    assert enrol(new_key()).job == "w7"
    assert sum(transport.is_active() for transport in crowd) <= MAX_ANONYMOUS
    for transport in crowd:
        hang_up(transport)


# --- the machine's side


def test_nothing_is_sent_to_a_server_with_another_key(server: MailServer, roster: Roster, provider: Any) -> None:
    """A false master gets no token, not even from a machine with all credentials."""
    wrong = replace(server.address, host_key=public_half(new_key()))
    document = provider.document()
    with pytest.raises(PermissionError, match="another server"):
        EnrolmentClient(wrong, new_key(), TIMEOUT_S).enrol(TOKEN, document, provider.sign(document))
    assert roster.enrolment("i-7") is None


def test_a_server_that_is_not_there_is_an_error_of_the_system(server: MailServer) -> None:
    server.close()
    with pytest.raises(ConnectionRefusedError):
        EnrolmentClient(server.address, new_key(), TIMEOUT_S).enrol(TOKEN, "", "")


def test_what_is_too_long_is_not_sent(server: MailServer) -> None:
    with pytest.raises(ValueError, match="bytes"):
        EnrolmentClient(server.address, new_key(), TIMEOUT_S).enrol(TOKEN, "x" * MAX_LINE_BYTES, "")


GOOD = {
    "job": "w7",
    "files": [{"name": "a.py", "sha256": "0" * 64}, {"name": "own/b.py", "sha256": "1" * 64}],
    "program": "a.py",
    "arguments": ["--seed", "0"],
    "environment": {"A": "b"},
}


def test_an_assignment_is_read() -> None:
    assert Assignment.of(GOOD) == Assignment(
        "w7", (BundleFile("a.py", "0" * 64), BundleFile("own/b.py", "1" * 64)), "a.py", ("--seed", "0"), {"A": "b"}
    )


@pytest.mark.parametrize(
    "altered",
    [
        {"job": "../w7"}, {"job": 7}, {"files": None}, {"files": [1]}, {"program": None}, {"arguments": [1]},
        {"environment": {"A": 1}}, {"environment": 7},
        {"files": [{"name": "../a", "sha256": "0" * 64}]}, {"files": [{"name": "a/../../b", "sha256": "0" * 64}]},
        {"files": [{"name": "/etc/passwd", "sha256": "0" * 64}]}, {"files": [{"name": "a//b", "sha256": "0" * 64}]},
        {"files": [{"name": "a", "sha256": "short"}]}, {"files": [{"name": "a", "sha256": "../fleet/fleet.json"}]},
        {"files": [{"name": f"a{i}", "sha256": "0" * 64} for i in range(MAX_BUNDLE_FILES + 1)]},
    ],
)  # fmt: skip
def test_what_cannot_be_an_assignment_is_refused(altered: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="assignment"):
        Assignment.of({**GOOD, **altered})


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from([*GOOD, "name", "path", "sha256"]), x), max_leaves=8))  # fmt: skip
def test_nothing_but_a_value_error_comes_of_an_odd_answer(values: Any) -> None:
    if isinstance(values, dict):
        with pytest.raises(ValueError):
            Assignment.of(values)


def test_secrets_stand_in_no_log_and_no_repr(
    server: MailServer, enrol: Callable[..., Assignment], provider: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    logged, logger, key = io.StringIO(), logging.getLogger("gridml.sftp"), new_key()
    handler = logging.StreamHandler(logged)
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        enrol(key)
        with pytest.raises(Refused) as refused:
            enrol(new_key(), token="the token of somebody")
        line = EnrolmentClient(server.address, key, TIMEOUT_S)
        line.goodbye("w7", 1, "why", False)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    secret = key.splitlines()[2]
    seen = logged.getvalue() + repr(line) + repr(refused.value) + "".join(capfd.readouterr())
    assert "enrol" in logged.getvalue()  # it did log
    assert all(text not in seen for text in (TOKEN, "the token of somebody", secret, "PRIVATE"))


def test_keys_are_different_and_only_its_owner_sees_the_roster(server: MailServer, tmp_path: Path) -> None:
    assert new_key() != new_key() and "OPENSSH PRIVATE KEY" in new_key()
    assert (tmp_path / "fleet").stat().st_mode & 0o077 == 0


def test_the_roster_out_of_order_is_no_refusal_for_ever(
    roster: Roster, enrol: Callable[..., Assignment], tmp_path: Path
) -> None:
    (tmp_path / "fleet" / "i-7.instance.json").write_text("{")
    with pytest.raises(Refused, match="cannot read") as refused:
        enrol(new_key())
    assert refused.value.retry_s


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": "i-7"}', '{"of": "a later gridml"}'])
def test_a_damaged_file_of_one_machine_shuts_no_other_out(
    server: MailServer, roster: Roster, enrol: Callable[..., Assignment], tmp_path: Path, content: str
) -> None:
    """The end of a machine is checked while connections are accepted, which must survive a failing check."""
    key, other = new_key(), new_key()
    enrol(key)
    link = link_of(server, "w7", key)
    assert link.list("mail")
    (tmp_path / "fleet" / "i-7.ended.json").write_text(content)
    with pytest.raises(LedgerError, match=r"i-7\.ended\.json is damaged"):
        roster.end("i-7")
    assert enrol(other, "i-8").job == "w8" and link.list("mail") == ["w7"]
    enrolled = link_of(server, "w8", other)
    assert enrolled.list("mail") == ["w8"]
    for each in (link, enrolled):
        each._connection.close()

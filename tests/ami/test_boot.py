"""The daemon as systemd starts it: a real process, a real metadata service, the master's real SSH server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ami import run_files
from gridml.carriers.enrolment import Assignment, BundleFile, EnrolmentClient, new_key
from gridml.errors import RunError, StorageError
from master.sftp.roster import FleetFacts, GoodbyeMessage, Instance, Roster
from master.sftp.server import MailServer
from pools.ec2.metadata_service import ImdsServer, InstanceFacts, Signatory

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
TOKEN = "t0ken-of-the-fleet"
SHOWN = ("cmdline", "environ")  # of a process, in /proc
LAUNCHED_S = 1_775_044_800.0  # in the identity document: 2026-04-01T12:00:00Z
# A stand-in for the packed worker, which also dies with its parent: it prints its arguments and waits for SIGTERM.
WORKER = """
import json, os, signal, sys
from gridml.carriers.sftp import connection_of_job
from gridml.engine.parent import die_with_parent
from pathlib import Path
die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))
job = sys.argv[sys.argv.index("--name") + 1]
link = connection_of_job(Path(job)).session()
with link.open(f"mail/{job}/facts", "w") as file:
    file.write(json.dumps({"arguments": sys.argv[1:], "environment": sorted(os.environ), "cwd": os.listdir()}))
signal.signal(signal.SIGTERM, lambda *_: (link.open(f"mail/{job}/pushed", "w").close(), os._exit(0)))
print("the worker trains", flush=True)
while "--stay" in sys.argv:
    signal.pause()
sys.exit("Unfit: this machine has no torch")
"""


class Site:
    """A run directory with its server, and one instance that boots."""

    def __init__(self, root: Path, signatory: Signatory) -> None:
        self.run, self.folder = root / "run", root / "instance"
        self.folder.mkdir()
        self.roster = Roster(self.run)
        for part in ("mail/w7", "chunks", "bundle"):
            (self.run / part).mkdir(parents=True)
        token = hashlib.sha256(TOKEN.encode()).hexdigest()
        self.roster.create(FleetFacts("a run", token, "123456789012", "eu-west-1", "ami-1", signatory.certificate))
        self.roster.keep(Instance("i-0abc", "w7", "c7i.large", "eu-west-1a", LAUNCHED_S))
        self.facts = InstanceFacts(
            "i-0abc", "c7i.large", "eu-west-1a", "eu-west-1", "ami-1", "123456789012", "127.0.0.1"
        )
        self.imds = ImdsServer(("127.0.0.1", 0), lambda address: self.facts, signatory.sign)
        self.server = MailServer(self.run, "127.0.0.1")
        self.server.make("w7")
        self.output = ""

    def bundle(self, *arguments: str) -> dict[str, str]:
        """Write the run's bundle; return the SHA-256 of each of its files."""
        contents = {run_files.CODE: WORKER, "mnist.py": "trains = True\n", "outbox": "x" * 3_000_000}
        digests = {}
        for name, text in contents.items():
            digests[name] = hashlib.sha256(text.encode()).hexdigest()
            (self.run / "bundle" / digests[name]).write_text(text)
        described = {
            "files": [{"name": name, "sha256": digest} for name, digest in digests.items()],
            "program": "mnist.py",
            "arguments": list(arguments),
            "environment": {"OMP_NUM_THREADS": "2"},
        }
        (self.run / "bundle" / "bundle.json").write_text(json.dumps(described))
        return digests

    @contextlib.contextmanager
    def booted(self, **config: Any) -> Iterator[subprocess.Popen[str]]:
        address = self.server.address
        endpoint = {"run": "a run", "host": address.host, "port": address.port, "host_key": address.host_key}
        path = self.folder / "instance.json"
        path.write_text(json.dumps({**endpoint, "fleet_token": TOKEN, "watch_s": 0.05, **config}))
        command = [sys.executable, "-m", "ami.daemon", "--config", path, "--folder", self.folder]
        with subprocess.Popen(
            [*map(str, command), "--imds", self.imds.url],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SECRET_OF_THE_HOST": "x"},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                with contextlib.suppress(
                    psutil.NoSuchProcess
                ):  # it may have ended already; nothing must outlive the test
                    for child in psutil.Process(process.pid).children(recursive=True):
                        child.kill()
                process.kill()

    def read_until(self, process: subprocess.Popen[str], words: str) -> None:
        """Read the output up to a line with these words."""
        assert process.stdout is not None
        for line in process.stdout:
            self.output += line
            if words in line:
                return
        raise AssertionError(f"it ended without saying {words!r}:\n{self.output}")

    def end(self, process: subprocess.Popen[str]) -> int:
        rest, _ = process.communicate(timeout=LIMIT_S)
        self.output += rest
        return process.returncode

    @property
    def goodbye(self) -> GoodbyeMessage | None:
        return self.roster.goodbye("i-0abc")


@pytest.fixture
def site(tmp_path: Path, signatory: Signatory) -> Iterator[Site]:
    made = Site(tmp_path, signatory)
    with made.imds.running(), contextlib.closing(made.server):
        yield made
    secrets = [TOKEN, "PRIVATE KEY"]
    if (made.folder / "key").exists():
        secrets += (made.folder / "key").read_text().splitlines()[1:-1]
    assert not [secret for secret in secrets if secret in made.output]


def wait_until(true: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if true():
            return
        never.wait(0.01)
    raise AssertionError(f"did not happen within {LIMIT_S} s")


def test_an_instance_enrols_works_and_says_how_that_ended(site: Site) -> None:
    site.bundle("--seed", "3")
    with site.booted() as process:
        assert site.end(process) == 0, site.output
    facts = json.loads((site.run / "mail" / "w7" / "facts").read_text())
    named = ["--name", "w7", "--carrier", "sftp", "--program", "mnist.py", "--seed", "3"]
    assert facts["arguments"] == [*named, "--parent", str(process.pid)]
    assert {"OMP_NUM_THREADS", "HOME", "PATH"} <= set(facts["environment"])
    assert not {"SECRET_OF_THE_HOST", "PYTHONPATH", "NOTIFY_SOCKET"} & set(facts["environment"])
    assert sorted(facts["cwd"]) == ["gridml.pyz", "mnist.py", "outbox", "w7"]
    goodbye = site.goodbye
    assert goodbye is not None and goodbye.exit_status == 1 and not goodbye.evicted
    assert goodbye.why == "the worker ended with status 1: Unfit: this machine has no torch"
    work = site.folder / "work"
    assert [oct(path.stat().st_mode & 0o777) for path in (work, work / "w7", site.folder / "key")] == [
        "0o700",
        "0o600",
        "0o600",
    ]


def test_a_notice_lets_the_worker_push_and_the_instance_wait(site: Site) -> None:
    site.bundle("--stay")
    with site.booted() as process:
        site.read_until(process, "the worker trains")
        site.facts = replace(site.facts, interruption=("terminate", "2026-04-01T12:02:00Z"))
        site.read_until(process, "EC2 reclaims this instance")
        assert (site.run / "mail" / "w7" / "pushed").exists()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)  # the system goes down
        assert site.end(process) == 0
    goodbye = site.goodbye
    assert goodbye is not None and goodbye.evicted and goodbye.exit_status == 0
    assert goodbye.why == "spot interruption: terminate at 2026-04-01T12:02:00Z"


def test_secrets_stand_in_no_argument_list_and_no_environment(site: Site) -> None:
    """The command lines of daemon and worker are read as any user can, their environments as the worker's user can."""
    site.bundle("--stay")
    with site.booted() as process:
        site.read_until(process, "the worker trains")
        children = Path(f"/proc/{process.pid}/task").glob("*/children")  # of each of its threads
        worker = " ".join(each.read_text() for each in children).split()
        assert worker
        shown = [Path(f"/proc/{pid}/{what}").read_bytes() for pid in (process.pid, *worker) for what in SHOWN]
        process.terminate()
        assert site.end(process) == 0
    secrets = [TOKEN, "PRIVATE KEY", *(site.folder / "key").read_text().splitlines()[1:-1]]
    assert any(b"ami.daemon" in text for text in shown) and any(b"gridml.pyz" in text for text in shown)
    assert not [secret for secret in secrets if any(secret.encode() in text for text in shown)]


def test_who_is_to_be_taken_does_not_enrol(site: Site) -> None:
    site.bundle("--stay")
    site.facts = replace(site.facts, interruption=("terminate", "2026-04-01T12:02:00Z"))
    with site.booted() as process:
        site.read_until(process, "EC2 reclaims this instance")
        process.terminate()
        assert site.end(process) == 0
    assert site.roster.enrolment("i-0abc") is None


def test_a_daemon_that_is_killed_takes_its_worker_along_and_enrols_again(site: Site) -> None:
    site.bundle("--stay")
    with site.booted() as process:
        site.read_until(process, "the worker trains")
        (worker,) = psutil.Process(process.pid).children()
        process.kill()
        assert not psutil.wait_procs([worker], LIMIT_S)[1]
    facts = site.run / "mail" / "w7" / "facts"
    facts.unlink()
    first = site.roster.enrolment("i-0abc")
    with site.booted() as process:
        site.read_until(process, "the worker trains")
        process.terminate()
        assert site.end(process) == 0
    assert site.roster.enrolment("i-0abc") == first
    assert site.goodbye is not None and site.goodbye.why == "the instance is shutting down"


def test_a_bundle_that_is_not_the_runs_is_not_run(site: Site) -> None:
    (site.run / "bundle" / site.bundle("--stay")["mnist.py"]).write_text("trains = False\n")
    with site.booted() as process:
        assert site.end(process) == 0
    assert site.goodbye is not None and site.goodbye.exit_status == RunError.exit_status
    assert "mnist.py is not what the master announced: its SHA-256 is" in site.goodbye.why
    assert not (site.run / "mail" / "w7" / "facts").exists()
    assert not (site.folder / "work" / "mnist.py").exists()


def test_another_server_gets_neither_token_nor_document(site: Site, tmp_path: Path) -> None:
    site.bundle("--stay")
    (tmp_path / "other").mkdir()
    with contextlib.closing(MailServer(tmp_path / "other", "127.0.0.1")) as other:
        host_key = other.address.host_key
    with site.booted(host_key=host_key, orphan_s=0.5) as process:
        assert site.end(process) == 0
    assert "another server answers there" in site.output and "nothing was heard" in site.output
    assert site.roster.enrolment("i-0abc") is None


def test_a_master_that_is_not_there_is_given_up(site: Site) -> None:
    with site.booted(port=1, orphan_s=0.5) as process:
        assert site.end(process) == 0
    assert "nothing was heard from the master" in site.output


def test_what_the_user_data_wrote_must_make_sense(site: Site) -> None:
    with site.booted(port="somewhere") as process:
        assert site.end(process) == 2
    assert "instance.json is not what was expected" in site.output


# --- the bundle


@pytest.fixture
def enrolled(site: Site, signatory: Signatory) -> Callable[[], tuple[str, Assignment]]:
    def enrol() -> tuple[str, Assignment]:
        key, document = new_key(), site.facts.document()
        return key, EnrolmentClient(site.server.address, key).enrol(TOKEN, document, signatory.sign(document))

    return enrol


def test_a_transfer_that_broke_off_is_resumed(site: Site, enrolled: Callable[[], tuple[str, Assignment]]) -> None:
    digest = site.bundle()["outbox"]
    key, assignment = enrolled()
    work = site.folder / "work"
    work.mkdir()
    (work / f".{digest}.part").write_text("x" * 2_999_000)
    content = site.run / "bundle" / digest
    with content.open("r+") as file:  # a second fetch would replace it, which the test detects
        file.write("y" * 2_000_000)
    run_files.prepare(assignment, site.server.address, key, work)
    assert (work / "outbox").read_text() == "x" * 3_000_000
    assert sorted(os.listdir(work)) == ["gridml.pyz", "mnist.py", "outbox", "w7"]


def test_a_download_with_a_wrong_beginning_is_restarted(
    site: Site, enrolled: Callable[[], tuple[str, Assignment]]
) -> None:
    digest = site.bundle()["outbox"]
    key, assignment = enrolled()
    work = site.folder / "work"
    work.mkdir()
    (work / f".{digest}.part").write_text("y" * 9_000_000)
    (work / "mnist.py").write_text("of an earlier run")
    run_files.prepare(assignment, site.server.address, key, work)
    assert (work / "outbox").read_text() == "x" * 3_000_000
    assert (work / "mnist.py").read_text() == "trains = True\n"


@pytest.mark.parametrize("name", ["mnist.py", "outbox"])  # a small file and a large one
def test_a_disk_that_is_full_is_no_master_out_of_reach(
    site: Site, enrolled: Callable[[], tuple[str, Assignment]], name: str
) -> None:
    """An instance whose folder cannot hold the bundle leaves instead of retrying forever."""
    digest = site.bundle()[name]
    key, assignment = enrolled()
    work = site.folder / "work"
    work.mkdir()
    (work / f".{digest}.part").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        run_files.prepare(assignment, site.server.address, key, work)


@pytest.mark.parametrize("damage", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_a_key_damaged_by_a_crash_is_replaced(site: Site, damage: str) -> None:
    site.bundle()
    (site.folder / "key").write_text(damage)
    with site.booted(orphan_s=5.0) as process:
        assert site.end(process) == 0, site.output
    assert site.goodbye is not None and "Unfit" in site.goodbye.why


@pytest.mark.parametrize(
    ("names", "program", "why"),
    [
        (["mnist.py"], "mnist.py", "lacks gridml.pyz"),
        (["gridml.pyz"], "mnist.py", "lacks mnist.py"),
        (["gridml.pyz", "mnist.py", "w7"], "mnist.py", "one of the job's"),
        (["gridml.pyz", "mnist.py", "mnist.py"], "mnist.py", "two files of one name"),
    ],
)
def test_a_bundle_that_cannot_be_run(names: list[str], program: str, why: str) -> None:
    files = tuple(BundleFile(name, "0" * 64) for name in names)
    with pytest.raises(RunError, match=why):
        run_files.check(Assignment("w7", files, program))

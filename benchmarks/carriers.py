"""What carriers carry: MB/s up and down, CPU seconds per GB, and the memory of the server.

    python -m benchmarks.carriers [CARRIER ...]

Workers' own mailboxes, in processes of their own, send a message (up) and fetch a chunk (down), all at once: on a disk
that they share (`directory`), by SFTP to the server in a master (`sftp`) and to OpenSSH's sshd with the configuration
that ships (`sshd`; as root only). Everything is on one machine, so client and server share its cores, and the network
is loopback. What arrived is compared with what was sent, each time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.table import Cell, write
from gridml.carriers.base import WorkerMailbox
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.carriers.enrolment import new_key
from gridml.carriers.file_link import FileMailbox
from gridml.carriers.mailbox_files import SUFFIX, message_files, message_name
from gridml.carriers.sftp import Credential, SftpLine, SftpLink
from gridml.protocol import bundle
from pools.sshd import NoSshd, private_sshd

MB = 1_000_000
CASES = ((1, 1), (1, 10), (1, 50), (25, 1), (25, 10), (25, 50), (100, 1), (100, 10))  # MB of a message, clients
AT_LEAST = 50  # MB, each way: small messages are sent repeatedly
PROCESSES = 4  # of clients, at most; more clients share one, a thread each
OWNER = 54321  # of the run directory behind sshd, which lets nobody in to one of root's
SAMPLE_S = 0.2
SPAWN = multiprocessing.get_context("spawn")
Way = Mapping[str, Credential | None]  # by worker, how it gets to its mailbox; None by the disk


@dataclass(frozen=True)
class Served:
    """A run directory and how workers get to it; `pids` are the processes that serve it, without their children."""

    root: Path
    way: Way
    pids: Sequence[int]


@dataclass(frozen=True)
class Transfer:
    """All clients sent or fetched so often: seconds from the first's begin to the last's end, and what it took."""

    seconds: float
    client_cpu_s: float
    server_cpu_s: float


# --- servers


@contextlib.contextmanager
def directory(root: Path, workers: Sequence[str]) -> Iterator[Served]:
    yield Served(root, dict.fromkeys(workers), ())


@contextlib.contextmanager
def embedded(root: Path, workers: Sequence[str]) -> Iterator[Served]:
    near, far = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(root, workers, far))
    process.start()
    far.close()  # so that its end shows
    try:
        near.recv()
        credentials = {worker: Credential.read(root / "sftp" / worker) for worker in workers}
        yield Served(root, credentials, (process.pid or 0,))
        near.send("over")
        process.join(60)
    finally:
        process.kill()


def _serve(root: Path, workers: Sequence[str], told: Connection) -> None:
    from master.sftp.server import MailServer

    server = MailServer(root, "127.0.0.1")
    for worker in workers:
        server.make(worker)
    told.send("ready")
    told.recv()
    server.close()


@contextlib.contextmanager
def sshd(root: Path, workers: Sequence[str]) -> Iterator[Served]:
    import paramiko

    from master.sftp import server as mail_server

    with private_sshd(root.parent / "own", Path(mail_server.__file__).parent / "sshd") as found:
        credentials = {}
        for worker in workers:
            os.chown(root / "mail" / worker, OWNER, OWNER)
            key = new_key()
            account = found.admit(root, worker, paramiko.Ed25519Key(file_obj=io.StringIO(key)).get_base64())
            credentials[worker] = Credential("127.0.0.1", found.port, found.host_key, account, key)
        yield Served(root, credentials, (found.pid,))


CARRIERS: Mapping[str, Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Served]]] = {
    "directory": directory,
    "sftp": embedded,
    "sshd": sshd,
}


# --- clients


def mailbox(root: Path, worker: str, credential: Credential | None) -> WorkerMailbox:
    if credential is None:
        return DirectoryMailbox(root, worker)
    line = SftpLine(credential, timeout_s=120.0)
    return FileMailbox(worker, lambda: SftpLink(line))


def _client(root: Path, way: Way, size: int, times: int, told: Connection) -> None:
    """Some clients, a thread each: `told` says when to send, and when to fetch, and hears what CPU seconds each took
    and how often it failed, then of how many mailboxes the content is not what was sent last."""
    payload, sha256 = bytes(os.urandom(size)), bundle.digest((root / "chunks" / f"chunk{SUFFIX}").read_bytes())
    boxes = [mailbox(root, worker, credential) for worker, credential in way.items()]

    def send(box: WorkerMailbox, number: int) -> None:
        box.send(1, payload[number:] + payload[:number])  # each another, so that it has another name

    def fetch(box: WorkerMailbox, number: int) -> None:
        box.fetch("chunk", sha256)  # raises for what is damaged

    def failures(act: Callable[[WorkerMailbox, int], None], box: WorkerMailbox) -> int:
        failed = 0
        for number in range(1, times + 1):
            try:
                act(box, number)
            except (OSError, ValueError) as error:
                failed += 1
                print(f"{act.__name__}: {error!r}", file=sys.stderr)
        return failed

    with ThreadPoolExecutor(len(boxes)) as threads:
        list(threads.map(lambda box: box.fetch("small", bundle.digest(b"small")), boxes))  # connects
        told.send("ready")
        for act in (send, fetch):
            told.recv()
            before = time.process_time()
            failed = sum(threads.map(functools.partial(failures, act), boxes))
            told.send((time.process_time() - before, failed))
    name = message_name("sync", 1, payload[times:] + payload[:times])
    told.send(sum(not arrived(root / "mail" / worker, name) for worker in way))
    for box in boxes:
        box.close()


def arrived(folder: Path, name: str) -> bool:
    """Whether a mailbox holds one message, of this name, and its content is what the name says."""
    found = message_files(os.listdir(folder), "sync")
    return [each.name for each in found] == [name] and bundle.digest((folder / name).read_bytes()) == found[0].sha256


# --- what it took


class Watch:
    """What processes and all below them take. CPU seconds are kept by process, so that only
    what one took after the last look before its end is lost."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self.most = pids, 0  # bytes of memory (proportional set size), at any look
        self._ticks: dict[int, int] = {}
        self._looking, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        with self._looking:
            memory, found = 0, list(self._pids)
            while found:
                pid = found.pop()
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._ticks[pid] = int(fields[11]) + int(fields[12])
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    memory += next(
                        int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")
                    )
                    found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            self.most = max(self.most, memory)
            return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.cpu_s()


def measure(served: Served, size: int, times: int) -> tuple[list[Transfer], int, int]:
    """Return what sending and fetching took, the most bytes of memory of the server, and how many transfers failed."""
    workers = list(served.way)
    shares = [workers[i::PROCESSES] for i in range(min(PROCESSES, len(workers)))]
    ends, processes = [], []
    for share in shares:
        near, far = SPAWN.Pipe()
        way = {worker: served.way[worker] for worker in share}
        processes.append(SPAWN.Process(target=_client, args=(served.root, way, size, times, far)))
        processes[-1].start()
        far.close()  # so that its end shows
        ends.append(near)
    watch, transfers, failed = Watch(served.pids), list[Transfer](), 0
    try:
        for end in ends:
            end.recv()
        for _ in range(2):
            before, began = watch.cpu_s(), time.monotonic()
            for end in ends:
                end.send("go")
            told = [end.recv() for end in ends]
            seconds = time.monotonic() - began
            failed += sum(each[1] for each in told)
            transfers.append(Transfer(seconds, sum(each[0] for each in told), watch.cpu_s() - before))
        failed += sum(end.recv() for end in ends)
    finally:
        watch.stop()
        for process in processes:
            process.join(60)
            process.kill()
    return transfers, watch.most, failed


def row(carrier: str, megabytes: int, clients: int) -> dict[str, Cell]:
    times = max(1, AT_LEAST // (megabytes * clients))
    workers = [f"w{number}" for number in range(clients)]
    with tempfile.TemporaryDirectory(prefix="carriers-") as folder:
        root = Path(folder) / "run"
        root.mkdir()
        mailboxes = DirectoryMailboxes(root)
        for worker in workers:
            mailboxes.open(worker)
        mailboxes.publish("chunk", os.urandom(megabytes * MB))
        mailboxes.publish("small", b"small")
        for path in (root / "chunks").iterdir():
            path.chmod(0o644)  # sshd's sessions are not root's
        Path(folder).chmod(0o755)
        with CARRIERS[carrier](root, workers) as served:
            (up, down), memory, failed = measure(served, megabytes * MB, times)
    carried = megabytes * clients * times
    made: dict[str, Cell] = {"carrier": carrier, "MB": megabytes, "clients": clients}
    for name, transfer in (("up", up), ("down", down)):
        made[f"{name} MB/s"] = round(carried / transfer.seconds, 1)
    for name, transfer in (("up", up), ("down", down)):
        made[f"server s/GB {name}"] = round(transfer.server_cpu_s / carried * 1000, 2)
        made[f"clients s/GB {name}"] = round(transfer.client_cpu_s / carried * 1000, 2)
    made["server MB"] = round(memory / MB)
    made["failed"] = failed
    return made


def main(carriers: Sequence[str]) -> None:
    rows, notes = [], [
        "up: a message into a mailbox; down: a published chunk; s/GB: CPU seconds, of all clients together and of the "
        "server's processes; server MB: the most that these had (proportional set size)",
        "clients and server share the machine's cores and loopback; what arrived was compared with its SHA-256",
        "other work ran on the machine meanwhile, so that rates differ by a third from one time to the next",
        "left out: 100 MB by 50 clients (those take 10 GB of memory at once), and chirp, whose server is a part of "
        "HTCondor",
    ]  # fmt: skip
    for carrier in carriers or CARRIERS:
        for megabytes, clients in CASES:
            try:
                rows.append(row(carrier, megabytes, clients))
            except NoSshd as error:
                notes.append(f"no {carrier}: {error}")
                break
            print(rows[-1], flush=True)
    write("carriers", "What carriers carry", rows, notes)


if __name__ == "__main__":
    main(sys.argv[1:])

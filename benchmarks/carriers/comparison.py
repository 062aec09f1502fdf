"""Measure carriers: MB/s up and down, CPU seconds per GB, and the memory of the server.

    python -m benchmarks.carriers [CARRIER ...]

Real worker mailboxes, in processes of their own, send a message (up) and fetch a chunk (down) concurrently: on a
shared disk (`directory`), as jobs of an HTCondor pool through their starters and shadows (`chirp`), by SFTP to the
server in a master (`sftp`), and to OpenSSH's sshd with the configuration that ships (`sshd`; root only). Everything
runs on one machine, so client and server share its cores, and the network is loopback. Received content is compared
with what was sent, each time. The notes name cases that exceed the machine's memory or LIMIT_S.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.arguments import sized, words
from benchmarks.carriers.chirp import chirp
from benchmarks.carriers.clients import SMALL, SPAWN, NotMeasured, Served, Work, processes
from benchmarks.table import Cell, write
from gridml.carriers.base import message_files
from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.enrolment import new_key
from gridml.carriers.sftp import Credential
from gridml.protocol import bundle
from pools.release import NoCondor
from pools.sshd import NoSshd, private_sshd

MB = 1_000_000
SIZES, CLIENTS = sized((1, 25, 100), (1,)), sized((1, 10, 50), (1,))  # MB of a message; concurrent clients
MIN_MB = sized(50, 1)  # each way: small messages are sent repeatedly
LIMIT_S = 300.0  # for a case, once its clients are started
COPIES = 3  # of all bytes under way must fit into memory: a client holds two copies while it assembles one
OWNER = 54321  # user and group of the mailboxes behind sshd, which admits no user to a directory of root
SAMPLE_S = 0.2


@dataclass(frozen=True)
class Transfer:
    """One transfer of all clients."""

    seconds: float  #: from the first start to the last end
    client_cpu_s: float
    server_cpu_s: float


# --- servers


@contextlib.contextmanager
def directory(root: Path, workers: Sequence[str]) -> Iterator[Served]:
    yield Served(root, functools.partial(processes, root, dict.fromkeys(workers)))


@contextlib.contextmanager
def embedded(root: Path, workers: Sequence[str]) -> Iterator[Served]:
    near, far = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(root, workers, far))
    process.start()
    far.close()  # otherwise `near` would never reach its end when the server dies
    try:
        near.recv()
        credentials = {worker: Credential.read(root / "sftp" / worker) for worker in workers}
        yield Served(root, functools.partial(processes, root, credentials), (process.pid or 0,))
        near.send("over")
        process.join(60)
    finally:
        process.kill()


def _serve(root: Path, workers: Sequence[str], channel: Connection) -> None:
    from master.sftp.server import MailServer

    server = MailServer(root, "127.0.0.1")
    for worker in workers:
        server.make(worker)
    channel.send("ready")
    channel.recv()
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
        yield Served(root, functools.partial(processes, root, credentials), (found.pid,))


CARRIERS: Mapping[str, Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Served]]] = {
    "directory": directory,
    "chirp": chirp,
    "sftp": embedded,
    "sshd": sshd,
}


# --- costs


class Watch:
    """The CPU and memory of the server processes. CPU seconds are kept by process, so only the time of a process after
    the last sample before its end is lost."""

    def __init__(self, served: Served) -> None:
        self._served, self.peak = served, 0  # bytes of memory (proportional set size) of all processes together
        self._ticks: dict[int, int] = {}  # CPU time by process; those that have ended stay
        self._looking, self._over = threading.Lock(), threading.Event()  # both threads call `cpu_s`
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def cpu_s(self) -> float:
        """Take a sample and return the CPU seconds so far."""
        with self._looking:
            memory, found = 0, list(self._served.pids)
            while found:
                pid = found.pop()
                with contextlib.suppress(OSError):  # it has ended by now
                    found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                    memory += self._sample(pid)
            self.peak = max(self.peak, memory)
            return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _sample(self, pid: int) -> int:
        """Return a process's bytes of memory; 0 if it does not count as the server."""
        program, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        if self._served.programs and program not in self._served.programs:
            return 0
        fields = rest.split()
        self._ticks[pid] = int(fields[11]) + int(fields[12])
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.cpu_s()


def measure(served: Served, work: Work) -> tuple[list[Transfer], int, int]:
    """Return the transfers (sending, fetching), the peak memory of the server in bytes, and the number of failures.
    Raises NotMeasured."""
    with served.clients(work) as ends:
        watch = Watch(served)
        try:
            transfers, failed, sent = _transfers(watch, ends)
        except (EOFError, ConnectionError):
            raise NotMeasured("a client has ended; its output is above") from None
        finally:
            watch.stop()
        failed += sum(not arrived(served.root / "mail" / worker, name) for worker, name in sent.items())
    return transfers, watch.peak, failed


def _transfers(watch: Watch, ends: Sequence[Connection]) -> tuple[list[Transfer], int, dict[str, str]]:
    """Return the transfers (sending, fetching), the number of failures, and by worker the last message's name."""
    transfers, failed, deadline = list[Transfer](), 0, time.monotonic() + LIMIT_S
    for end in ends:
        _receive(end, deadline)
    for _ in range(2):
        before, began = watch.cpu_s(), time.monotonic()
        for end in ends:
            end.send("go")
        reports = [_receive(end, deadline) for end in ends]
        seconds = time.monotonic() - began
        failed += sum(each[1] for each in reports)
        transfers.append(Transfer(seconds, sum(each[0] for each in reports), watch.cpu_s() - before))
    return transfers, failed, {worker: name for end in ends for worker, name in _receive(end, deadline).items()}


def _receive(end: Connection, deadline: float) -> Any:
    """Return the next message of a client. Raises NotMeasured on a timeout, EOFError if the client has ended."""
    if not end.poll(max(0.0, deadline - time.monotonic())):
        raise NotMeasured(f"it took longer than {LIMIT_S:g} s")
    return end.recv()


def arrived(folder: Path, name: str) -> bool:
    """Return True if a mailbox holds exactly one message of this name, whose content matches its digest."""
    found = message_files(os.listdir(folder), "sync")
    return [each.name for each in found] == [name] and bundle.digest((folder / name).read_bytes()) == found[0].sha256


def check_room(folder: Path, size: int) -> None:
    """Raise NotMeasured if memory or the disk of `folder` has no room for `size` bytes under way."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    for what, needed, there in (("memory", COPIES * size, free), ("disk", 2 * size, shutil.disk_usage(folder).free)):
        if there < needed:
            raise NotMeasured(f"it takes up to {needed / 1e9:.3g} GB of {what}, and {there / 1e9:.3g} GB are free")


def row(carrier: str, megabytes: int, clients: int) -> dict[str, Cell]:
    """Measure one case. Raises NotMeasured, NoCondor and NoSshd."""
    times = max(1, MIN_MB // (megabytes * clients))
    workers = [f"w{number}" for number in range(clients)]
    with tempfile.TemporaryDirectory(prefix="carriers-") as folder:
        check_room(Path(folder), megabytes * MB * clients)
        root, chunk = Path(folder) / "run", os.urandom(megabytes * MB)
        root.mkdir()
        mailboxes = DirectoryMailboxes(root)
        for worker in workers:
            mailboxes.open(worker)
        mailboxes.publish("chunk", chunk)
        mailboxes.publish("small", SMALL)
        for path in (root / "chunks").iterdir():
            path.chmod(0o644)  # sshd's sessions run as OWNER, not as root
        Path(folder).chmod(0o755)
        with CARRIERS[carrier](root, workers) as served:
            (up, down), memory, failed = measure(served, Work(megabytes * MB, times, bundle.digest(chunk)))
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


def main() -> None:
    measure_all(words(__doc__, choices=list(CARRIERS)))


def measure_all(carriers: Sequence[str]) -> None:
    rows, notes = [], [
        "up: a message into a mailbox; down: a published chunk; s/GB: CPU seconds, of all clients together and of the "
        "server's processes; server MB: their peak memory (proportional set size)",
        "chirp: each client is a job of a pool on this machine; its server is the job's starter and shadow",
        "clients and server share the machine's cores and loopback; received content was checked by its SHA-256",
    ]  # fmt: skip
    for carrier in carriers or CARRIERS:
        for megabytes, clients in itertools.product(SIZES, CLIENTS):
            try:
                rows.append(row(carrier, megabytes, clients))
            except (NoSshd, NoCondor) as error:
                notes.append(f"no {carrier}: {error}")
                break
            except NotMeasured as error:
                notes.append(f"not measured: {carrier}, {megabytes} MB by {clients} clients: {error}")
                continue
            print(rows[-1], flush=True)
    write("carriers", "Bandwidth and costs of carriers", rows, notes)

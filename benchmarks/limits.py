"""Measure the capacity of one master: pushes and bytes per second, and memory, by replica size and number of workers.

The workers follow the protocol but train nothing: they push one of two replicas that never change. All else is real:
mailboxes on a real disk, decoding, admission, gate, merge, ledger and versions, durable. At most `GROUP` messages wait
at once, and the next ones follow as soon as these are answered, which is the maximum load of a master. The cost of the
workers and their pool is not counted. Every cell (a replica size and a number of workers) runs in a process of its own.

    python -m benchmarks.limits [--one MB WORKERS] [--profile]
"""

from __future__ import annotations

import cProfile
import hashlib
import json
import mmap
import os
import pstats
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import final

import numpy as np

from benchmarks.arguments import parser_of, sized
from benchmarks.table import Cell, write
from chunk_model.goodput import Costs
from gridml.aggregates import kernels
from gridml.carriers.base import SUFFIX, MasterMailboxes
from gridml.carriers.directory import DirectoryMailboxes
from gridml.protocol import bundle
from gridml.protocol.messages import Sync, Verdict, reply_from, to_json
from gridml.protocol.payload import Payload, in_pieces
from gridml.protocol.push import BundleCodec, InProcessPayload, in_process_payload
from master.backends.script import Steady
from master.evaluation.evaluator import InlineEvaluator
from master.launch import start
from master.ports.environment import Environment
from master.run import MasterRun
from master.simulation.cost_only_worker import CostOnlyWorker
from master.simulation.faulty_network import VirtualClock
from master.simulation.scenario import Machine, Scenario
from master.simulation.simulated import Simulated, SimulatedWorker
from master.simulation.workers import Workers, options_of
from master.simulation.world import Inline, World
from master.store.settings import Settings

MEGABYTE = 1_000_000
SIZES, WORKERS = sized((1, 25, 100, 500), (1,)), sized((16, 256, 2_600), (16,))
TENSORS = 60
GROUP = 16  # messages that wait at once
ROUNDS, MIN_PUSHES, MAX_PUSHES = 3, 24, 600  # pushes in a cell: of each worker, and bounds of their sum
PUSH_EVERY, CHUNK = 10, 2_000  # vertices: enough for every worker
MAX_S, MAX_BYTES = 150.0, 30_000 * MEGABYTE  # of a cell: the time of its pushes; the first replicas of its workers
INTERVAL_S = 300.0  # between two pushes of a worker; the table gives the number of workers at this interval
PROGRAM = """
    import numpy as np
    import torch
    import gridml

    def network() -> torch.nn.Module:
        return torch.nn.ParameterList([torch.randn({elements}) for _ in range({tensors})])

    class Network(gridml.Vertex):
        model = gridml.module(network, torch.optim.SGD)

    class Item(gridml.Vertex):
        network = gridml.edge(Network)

    @gridml.update(batch=1)
    def train(items: gridml.Batch[Item], network: Network) -> None:
        pass

    def graph() -> gridml.Graph:
        g = gridml.Graph()
        g.add(Item, {vertices}, network=g.add(Network))
        return g

    program = gridml.Program(graph, train)
"""


class Bodies:
    """Replicas to push, as files: the part of a bundle after its header. They are memory-mapped, because the anonymous
    memory of this process is measured."""

    def __init__(self, folder: Path, elements: int) -> None:
        self._shapes = {f"Network/0/model/{i}": elements for i in range(TENSORS)}
        self._files = []
        for number in range(2):
            random = np.random.default_rng(number)
            path = folder / f"body{number}"
            with path.open("wb") as file:
                for _ in range(TENSORS):
                    file.write((0.1 * random.standard_normal(elements, np.float32)).tobytes())
            body = path.open("rb")
            self._files.append((body, mmap.mmap(body.fileno(), 0, prot=mmap.PROT_READ)))

    def send(self, mail: Path, number: int, sync: Sync) -> int:
        """Put a sync message into a mailbox, with a replica if it is a push. Return its size in bytes."""
        if sync.push is None:
            head, body = bundle.encode(to_json(sync), {}), None
        else:
            head, body = self._head({"gridml": json.dumps(to_json(sync))}), self._files[sync.push.sequence % 2]
        sha256 = hashlib.sha256(head)
        if body is not None:
            sha256.update(body[1])
        temporary = mail / ".sending"
        with temporary.open("wb") as file:
            file.write(head)
            if body is not None:
                file.flush()
                at, length = 0, len(body[1])
                while at < length:
                    at += os.copy_file_range(body[0].fileno(), file.fileno(), length - at, at)
        temporary.replace(mail / f"sync-{number:08d}-{sha256.hexdigest()}{SUFFIX}")
        return len(head) + (0 if body is None else len(body[1]))

    def close(self) -> None:
        for file, mapped in self._files:
            mapped.close()
            file.close()

    def _head(self, message: dict[str, str]) -> bytes:
        header: dict[str, object] = {"__metadata__": message}
        at = 0
        for name, elements in self._shapes.items():
            header[name] = {"dtype": "F32", "shape": [elements], "data_offsets": [at, at + 4 * elements]}
            at += 4 * elements
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


@final
class ObservedMailboxes(DirectoryMailboxes):
    """The master's mailboxes. Each answer is also passed to `handle` as (worker, number, header): the workers need no
    more of it."""

    def __init__(self, root: Path, handle: Callable[[str, int, bytes], None]) -> None:
        super().__init__(root)
        self._handle = handle
        self.bytes_down = 0

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        super().answer(worker, number, payload)
        self.bytes_down += len(payload)
        head = in_pieces(payload).pieces[0]  # it contains the whole header
        length = int.from_bytes(head[:8], "little")
        self._handle(worker, number, bytes(head[8 : 8 + length]))


@final
class MessagingWorkers(Workers):
    """Workers that only exchange messages, over a real disk. `pump` delivers the next messages to the master."""

    def __init__(self, clock: VirtualClock, scenario: Scenario, bodies: Bodies) -> None:
        self.codec = BundleCodec()
        self.pushes = self.bytes_up = self.handed_out = 0  #: merged pushes; bytes sent; leases granted
        self._clock = clock
        self._scenario = scenario
        self._bodies = bodies
        self._hired: dict[str, CostOnlyWorker] = {}
        self._waiting: deque[tuple[str, int, Sync]] = deque()  # (worker, number, message), not yet on the disk
        self._answers: list[tuple[str, int, bytes]] = []  # (worker, number, header), not yet delivered
        self.on_disk = 0  #: messages that the master has not answered yet; at most GROUP
        self.box: ObservedMailboxes | None = None
        self._root = Path()

    sent = lost = 0

    def mailboxes(self) -> MasterMailboxes:
        raise NotImplementedError("they are opened once the run has its directory")

    def open(self, root: Path) -> ObservedMailboxes:
        """Return the master's end."""
        self._root = root
        self.box = ObservedMailboxes(root, lambda *answer: self._answers.append(answer))
        return self.box

    def hire(self, worker: str, machine: Machine) -> SimulatedWorker:
        self._hired[worker] = CostOnlyWorker(
            options_of(worker, machine, self._scenario), self._scenario.costs, _End(self._clock, worker, self._waiting)
        )
        return self._hired[worker]

    def pump(self) -> None:
        """Deliver answers to the workers, and put the next messages into the mailboxes."""
        for worker, number, header in self._answers:
            self.on_disk -= 1
            reply = reply_from(json.loads(json.loads(header)["__metadata__"]["gridml"]))
            self.pushes += reply.verdict is Verdict.MERGED
            if reply.verdict not in (None, Verdict.MERGED):
                raise AssertionError(f"{worker}: {reply.verdict} {reply.reason}")
            self.handed_out += reply.lease is not None
            for answer in (self._root / "mail" / worker).glob("reply-*"):
                answer.unlink()
            self._hired[worker].receive(number, in_process_payload(reply))
        self._answers.clear()
        while self._waiting and self.on_disk < GROUP:
            worker, number, sync = self._waiting.popleft()
            self.bytes_up += self._bodies.send(self._root / "mail" / worker, number, sync)
            self.on_disk += 1


class _End:
    """A worker's end. It queues messages until `pump` writes them to the disk."""

    def __init__(self, clock: VirtualClock, worker: str, waiting: deque[tuple[str, int, Sync]]) -> None:
        self._clock = clock
        self._worker = worker
        self._waiting = waiting

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    def send(self, number: int, payload: bytes) -> None:
        assert isinstance(payload, InProcessPayload) and isinstance(payload.message, Sync)
        self._waiting.append((self._worker, number, payload.message))

    def beat(self, lease: int, upto: int) -> None:
        pass


class PeakMemory(threading.Thread):
    """A sampler of this process's anonymous memory: `peak` is the largest increase over the start, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._first = self._now()
        self.peak = 0

    def run(self) -> None:
        while not self._ended.wait(0.005):
            self.peak = max(self.peak, self._now() - self._first)

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.peak

    @staticmethod
    def _now() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def measure(folder: Path, megabytes: int, workers: int, profile: cProfile.Profile | None = None) -> dict[str, Cell]:
    """Measure one cell in this process."""
    elements = megabytes * MEGABYTE // 4 // TENSORS
    source = folder / "program.py"
    vertices = workers * CHUNK
    source.write_text(textwrap.dedent(PROGRAM).format(elements=elements, tensors=TENSORS, vertices=vertices))
    bodies = Bodies(folder, elements)
    scenario = Scenario(Steady(workers), Costs(exec_s=0.001, start_s=0.0, push_s=0.0))
    settings = Settings(source, "simulated", workers, push_every=PUSH_EVERY, steps_each=0, chunk=CHUNK)
    world = World(settings, scenario)
    world.workers = messaging = MessagingWorkers(world.clock, scenario, bodies)
    environment = Environment(
        lambda settings, directory: Simulated(world.pool, lambda: False, lambda point: None),
        clock=world.clock,
        report=lambda topic, text, facts: print(text, file=sys.stderr) if topic == "warning" else None,
        mailboxes=lambda settings, directory: messaging.open(directory.root),
        executor=Inline,
        logging=Inline,
        evaluator=InlineEvaluator.of,
    )
    with tempfile.TemporaryDirectory(dir=folder) as here:
        prepare()
        memory = PeakMemory()
        run = start(settings, Path(here) / "run", environment)
        world.drive(run)
        memory.start()
        with run:
            row = _driven(run, world, messaging, profile)
            run.leave()
        peak = memory.end()
        bodies.close()
    nbytes = run.parts.store.replica.state.nbytes
    return {"MB": megabytes, "workers": workers, **row, "memory MB": round(peak / MEGABYTE), "replicas": peak / nbytes}


def prepare() -> None:
    """Import torch and compile the kernels, so that their memory and time do not count."""
    import torch

    torch.zeros(1)
    one = np.zeros(1, np.float32)
    kernels.blend(one.copy(), one, one, one, 0.5, 0.5)
    kernels.fast_forward(one.copy(), one, one, 1.0)


@final
class Spent:
    """The time of the master's turns: `wall_s` without the time in which its thread waited for a core, and `cpu_s` of
    all threads."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def turn(self, run: MasterRun) -> bool:
        """Take one turn of the master. Return True if anything happened."""
        wall_s, waited_s, cpu_s = time.perf_counter(), self._waited_s(), time.process_time()
        happened = run.step()
        self.wall_s += time.perf_counter() - wall_s - (self._waited_s() - waited_s)
        self.cpu_s += time.process_time() - cpu_s
        return happened

    @staticmethod
    def _waited_s() -> float:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _driven(
    run: MasterRun, world: World, messaging: MessagingWorkers, profile: cProfile.Profile | None
) -> dict[str, Cell]:
    """Drive the master until every worker has pushed often enough, or for `MAX_S`."""
    box, workers = messaging.box, world.settings.workers
    assert box is not None
    spent, before = Spent(), (0, 0, 0)
    while spent.wall_s < MAX_S and messaging.pushes - before[0] < max(min(ROUNDS * workers, MAX_PUSHES), MIN_PUSHES):
        messaging.pump()
        if messaging.handed_out < workers:  # sending each worker its first replica is not measured
            spent, before = Spent(), (messaging.pushes, messaging.bytes_up, box.bytes_down)
        elif profile is not None:
            profile.enable()
        happened = spent.turn(run)
        if profile is not None:
            profile.disable()
        if not happened or not messaging.on_disk:
            world.rest(0.01)
    after = messaging.pushes, messaging.bytes_up, box.bytes_down
    pushes, up, down = (late - early for late, early in zip(after, before, strict=True))
    return {
        "pushes": pushes,
        "pushes/s": pushes / spent.wall_s,
        "MB/s up": up / spent.wall_s / MEGABYTE,
        "MB/s down": down / spent.wall_s / MEGABYTE,
        "cores": spent.cpu_s / spent.wall_s,
        "workers at most": round(pushes / spent.wall_s * INTERVAL_S),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--one", type=int, nargs=2, metavar=("MB", "WORKERS"), help="one cell, in this process")
    parser.add_argument("--profile", action="store_true", help="profile that cell")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk to measure"
    )
    arguments = parser.parse_args()
    if arguments.one is not None:
        profile = cProfile.Profile(time.thread_time) if arguments.profile else None
        with tempfile.TemporaryDirectory(prefix="limits-", dir=arguments.folder) as folder:
            megabytes, workers = arguments.one
            print(json.dumps(measure(Path(folder), megabytes, workers, profile)))
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    rows: list[dict[str, Cell]] = []
    for megabytes in SIZES:
        for workers in WORKERS:
            rows.append(_cell(megabytes, workers, arguments.folder))
            print(rows[-1], flush=True)
    write("limits", "The capacity of one master, by the size of the replica and the number of workers", rows, NOTES)


def _cell(megabytes: int, workers: int, folder: Path) -> dict[str, Cell]:
    """Measure one cell in a process of its own, or return the reason why it is left out."""
    handed = megabytes * MEGABYTE * workers
    if handed > MAX_BYTES:
        return {"MB": megabytes, "workers": workers, "left out": f"{handed / 1e9:,.0f} GB of first replicas"}
    command = [sys.executable, "-m", "benchmarks.limits", "--one", str(megabytes), str(workers)]
    done = subprocess.run([*command, "--folder", str(folder)], check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Cell] = json.loads(done.stdout)
    return row


NOTES = [
    f"at most {GROUP} messages wait at once; a group of them is one durable version and one transaction",
    "MB/s: of pushes up, each with the whole replica, and of replies down; a reply of more than a megabyte names the "
    "version's file instead, which workers fetch themselves; cores: CPU seconds of all threads per second",
    "seconds: of the master's turns, without the time in which its thread waited for a core",
    f"workers at most: workers that push once in {INTERVAL_S / 60:g} minutes, if the master does nothing else",
    "memory: the peak increase of anonymous memory over the start of the run; replicas: the same in replicas",
    f"{ROUNDS} pushes of each worker, at least {MIN_PUSHES} and at most {MAX_PUSHES}, or as many as arrive in "
    f"{MAX_S:g} s",
]


if __name__ == "__main__":
    main()

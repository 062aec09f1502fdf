"""A hostile worker and two honest ones: LeNet on MNIST on real worker processes, with and without the hostile one.

The hostile worker writes into its own mailbox, in each turn of the master's loop, for as long as the run lasts. When
the master gives it up, another one replaces it on a machine of another name, because an avoided machine gets no more
workers. The messages are spread over the run in proportion to the credits.

    python -m benchmarks.hostile [MESSAGES [SEEDS [EPOCHS]]]
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from gridml.carriers.base import Forwarding, Message
from gridml.carriers.directory import DirectoryMailbox
from gridml.errors import LedgerError
from master.backends.local import Local
from master.backends.local_plugin import worker_command
from master.backends.script import Steady
from master.launch import start
from master.ports.environment import Environment
from master.ports.mailboxes import run_mailboxes
from master.run import MasterRun
from master.simulation.result import verify_credits
from master.state.jobs import Backend, JobEvent, State
from master.store.reader import opened
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.views.report import report
from tests.support.hostile_attacks import ATTACKS
from tests.support.hostile_files import FILE_ATTACKS
from tests.support.hostile_worker import HostileWorker

MNIST = Path(__file__).parents[1] / "examples" / "mnist.py"
SMALL = Path(__file__).parent / "programs" / "adult.py"
HONEST = 2  # workers
MACHINE = "hostile-machine-"  # and a number: each hostile worker has a machine of its own
MAX_PER_TURN = 60  # messages between two polls of the master, which reads only the newest
EARLY = 1.25  # rate of messages relative to that of credits, so that all are sent before the end


@dataclass
class Siege:
    """A machine with hostile workers, one at a time."""

    messages: int  #: to send in all
    seed: int  #: of the attacks
    attacks: Sequence[str] | None = None  #: kinds of attacks; None: all kinds
    root: Path = Path()
    run: MasterRun | None = None
    sent: Counter[str] = field(default_factory=Counter)
    collected: int = 0
    workers: int = 0
    worker: HostileWorker | None = None

    def enter(self, name: str) -> None:
        """Take the place of a worker."""
        mailbox, folder = DirectoryMailbox(self.root, name), self.root / "mail" / name
        self.worker = HostileWorker(name, mailbox, self.seed, folder, self.attacks)
        self.workers += 1

    def leave(self) -> None:
        """End the current worker: the master has given it up."""
        if self.worker is not None:
            self.sent += self.worker.sent
            self.worker.close()
            self.worker = None

    def step(self) -> None:
        """Send the messages that are due, at most `MAX_PER_TURN`."""
        if self.worker is None or self.run is None:
            return
        due = min(1.0, EARLY * self.run.ledger.credited / self.run.total) * self.messages
        for _ in range(MAX_PER_TURN):
            if self.sent.total() + self.worker.sent.total() < due:
                self.worker.step()


class Besieged(Forwarding):
    """The master's mailboxes. The hostile worker writes into its own just before each poll."""

    def __init__(self, siege: Siege, settings: Settings, directory: RunDirectory) -> None:
        super().__init__(run_mailboxes(settings, directory))
        self._siege = siege

    def collect(self) -> list[Message]:
        self._siege.step()
        messages: list[Message] = super().collect()
        worker = self._siege.worker
        self._siege.collected += sum(worker is not None and m.worker == worker.stance.worker for m in messages)
        return messages


class Pool(Backend):
    """Real processes on `HONEST` machines, and one that is hostile."""

    name = "local"

    def __init__(self, siege: Siege, settings: Settings, directory: RunDirectory) -> None:
        siege.root = directory.root
        self._siege = siege
        self._local = Local(worker_command(settings, directory), Steady(HONEST), directory.logs)
        self._living: set[str] = set()
        self._events: list[JobEvent] = []

    def submit(self, worker: str) -> None:
        if len(self._living) < HONEST:
            self._living.add(worker)
            self._local.submit(worker)
            return
        self._siege.enter(worker)
        self._report(worker, State.QUEUED)
        self._report(worker, State.RUNNING)

    def poll(self) -> list[JobEvent]:
        events, self._events = self._events + self._local.poll(), []
        self._living -= {event.worker for event in events if event.state.ended}
        return events

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        hostile = self._siege.worker
        if hostile is not None and hostile.stance.worker == worker:
            self._siege.leave()
            self._report(worker, State.EVICTED)
        else:
            self._local.cancel(worker, grace_s=grace_s)

    def close(self) -> None:
        self._siege.leave()
        self._local.close()

    def _report(self, worker: str, state: State) -> None:
        cancelled = state is State.EVICTED
        machine = f"{MACHINE}{self._siege.workers}"
        self._events.append(JobEvent(time.monotonic(), worker, state, machine, state.value, cancelled=cancelled))


@dataclass(frozen=True)
class Ended:
    """The result of a run."""

    accuracy: float  #: in percent
    seconds: float
    hostile_credits: float  #: the share of credits of hostile workers, in percent


def besieged(settings: Settings, root: Path, siege: Siege | None) -> Ended:
    """Drive a run to its end, with a siege or without. Raises LedgerError if its credits are not exact, and all errors
    of the run."""
    environment = Environment(lambda settings, directory: Pool(siege or Siege(0, 0), settings, directory))
    if siege is not None:
        environment = replace(environment, mailboxes=lambda settings, place: Besieged(siege, settings, place))
    began_s = time.monotonic()
    with start(settings, root, environment) as run:
        if siege is not None:
            siege.run = run
        run.finish()
        total = run.total
    seconds = time.monotonic() - began_s
    exact = verify_credits(root)
    if (exact.credited, exact.finished) != (total, exact.epochs):
        raise LedgerError(f"{exact.credited} of {total} vertices are credited, in {exact.finished} of {exact.epochs}")
    return Ended(100 * report(root).epochs[-1].metrics["accuracy"], seconds, 100 * _hostile_credits(root) / total)


def _hostile_credits(root: Path) -> int:
    with opened(root) as db:
        query = "SELECT sum(stop - start) FROM credits JOIN workers USING (worker) WHERE machine LIKE ?"
        return int(db.execute(query, (f"{MACHINE}%",)).fetchone()[0] or 0)


def compare(messages: int, seed: int, epochs: int) -> list[dict[str, Cell]]:
    """Return a row of the run without a hostile worker, and one of the run with it."""
    rows: list[dict[str, Cell]] = []
    for siege in (None, Siege(messages, seed)):
        root = Path(tempfile.mkdtemp(prefix="hostile-"))
        settings = Settings(sized(MNIST, SMALL), workers=HONEST + (siege is not None), epochs=epochs, seed=seed)
        ended = besieged(settings, root / "run", siege)
        shutil.rmtree(root)
        row: dict[str, Cell] = {
            "hostile": "no" if siege is None else "yes",
            "seed": seed,
            "accuracy": round(ended.accuracy, 2),
            "seconds": round(ended.seconds),
        }
        if siege is not None:
            row |= {
                "messages": siege.sent.total(),
                "sorts": len(siege.sent),
                "collected": siege.collected,
                "hostile workers": siege.workers,
                "their credits %": round(ended.hostile_credits, 2),
            }
        rows.append(row)
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    messages, seeds, epochs = numbers(__doc__, messages=sized(10_000, 100), seeds=sized(3, 1), epochs=sized(6, 1))
    rows = [row for seed in range(seeds) for row in compare(messages, seed, epochs)]
    means = [statistics.mean(float(row["accuracy"] or 0) for row in rows[first::2]) for first in (0, 1)]
    write(
        "hostile",
        f"A hostile worker and two honest ones: LeNet on MNIST, {epochs} epochs",
        rows,
        [
            f"mean accuracy {means[0]:.2f} without, {means[1]:.2f} with it",
            f"messages: of {len(ATTACKS) + len(FILE_ATTACKS)} kinds of attacks, and honest requests "
            "for work; collected: those that the master took out of the mailbox, the newest in each turn",
            "hostile workers: one after another, as the master gave up each; their credits: of the run's vertices",
            "every run credited each of its vertices exactly once (checked in the ledger's rows)",
        ],
    )


if __name__ == "__main__":
    main()

"""The opening of an epoch: while the previous one is still in progress or, on request, once it is closed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gridml.protocol.messages import Sync
from master.leases.epochs import Epochs
from master.leases.leases import Leases
from master.simulation import cost_only_worker
from master.simulation.cost_only_worker import Wire
from master.simulation.faulty_network import VirtualClock
from master.state.worker_records import WorkerTable
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.settings import Settings
from master.store.spec import RunSpec

COUNT, EPOCHS = 100, 3


class Master:
    """Leases of a run without workers, in chunks of half an epoch."""

    def __init__(self, path: Path, *, overlap: bool) -> None:
        program = replace(cost_only_worker.program_of(COUNT, EPOCHS), overlap=overlap)
        settings = Settings(Path("program.py"), backend="simulated", workers=2, chunk=COUNT // 2)
        self.ledger = Ledger(path, shared_disk=False, create=True, durable=False)
        self.workers = WorkerTable(2)
        spec = RunSpec(settings, program, program.graph())
        events = Events(self.ledger, path.with_name("events.log"), lambda *event: None, VirtualClock())
        self.leases = Leases(spec, settings, self.ledger, self.workers, Wire(VirtualClock(), None), events)
        with self.ledger.transaction():
            self.epochs.open_first(0.0)

    @property
    def epochs(self) -> Epochs:
        return self.leases.epochs

    def ask(self, worker: str) -> tuple[int, int] | None:
        """Return the epoch and start of the lease that a worker gets; None if it gets none."""
        with self.ledger.transaction():
            lease = self.leases.grant(self.workers.add(worker), Sync(worker, wants=True), 1.0)
        return None if lease is None else (lease.epoch, lease.start)

    def credit(self, worker: str, *, close: int | None = None) -> None:
        """Train a worker's lease to its end, which closes an epoch."""
        with self.ledger.transaction():
            (lease,) = self.ledger.leases.of(worker).values()
            self.ledger.credit(lease, lease.stop, 1, 0.0, 2.0)
            self.leases.end(lease, 2.0, "trained to its end")
            if close is not None:
                self.ledger.close_epoch(close, 1, 2.0)


def test_the_next_epoch_is_leased_while_this_one_is_trained(tmp_path: Path) -> None:
    master = Master(tmp_path / "ledger.db", overlap=True)
    assert (master.ask("w1"), master.ask("w2")) == ((0, 0), (0, 50))
    assert master.epochs.is_followed(0)
    master.credit("w1")
    assert master.ask("w1") == (1, 0)


def test_without_overlap_a_worker_that_would_idle_takes_a_part_of_this_one(tmp_path: Path) -> None:
    master = Master(tmp_path / "ledger.db", overlap=False)
    assert (master.ask("w1"), master.ask("w2")) == ((0, 0), (0, 50))
    assert not master.epochs.is_followed(0)  # so chunks shrink at its end
    master.credit("w1")
    assert master.ask("w1") == (0, 75)
    master.credit("w1")
    master.credit("w2", close=0)
    assert (master.ask("w1"), master.ask("w2")) == ((1, 0), (1, 50))


def test_what_comes_free_again_is_leased_before_the_next_epoch_opens(tmp_path: Path) -> None:
    master = Master(tmp_path / "ledger.db", overlap=False)
    assert (master.ask("w1"), master.ask("w2")) == ((0, 0), (0, 50))
    master.credit("w1")
    with master.ledger.transaction():
        (lost,) = master.ledger.leases.of("w2").values()
        master.leases.end(lost, 3.0, "its worker is lost", reserved_until_s=1e9)
    assert master.ask("w1") == (0, 50), "though it is reserved for another, nothing else is left"


def test_credited_in_full_is_not_enough_an_epoch_is_closed_with_what_its_rules_held_back(tmp_path: Path) -> None:
    master = Master(tmp_path / "ledger.db", overlap=False)
    assert (master.ask("w1"), master.ask("w2")) == ((0, 0), (0, 50))
    master.credit("w1")
    master.credit("w2")
    assert master.ledger.is_epoch_complete(0)
    assert master.ask("w1") is None

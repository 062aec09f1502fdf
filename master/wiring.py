"""The parts of a master, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from gridml.carriers.base import MasterMailboxes
from master.evaluation.evaluator import Evaluator
from master.fleet.fleet import Fleet, Workplace
from master.leases.leases import Leases
from master.ports.environment import Environment
from master.state.jobs import Backend
from master.state.records import WorkerTable
from master.store.journal import Events, WallClock
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.spec import RunSpec
from master.store.store import Store, open_store
from master.sync.epoch_end import EpochEnd
from master.sync.exchange import Exchange
from master.takeover import Takeover
from master.telemetry.run_loggers import RunLoggers, loggers_of


@dataclass(frozen=True)
class Parts:
    """One master's parts. They end with it; what the next one needs is in the store."""

    spec: RunSpec
    directory: RunDirectory
    environment: Environment
    store: Store
    mailboxes: MasterMailboxes
    workers: WorkerTable
    leases: Leases
    exchange: Exchange
    backend: Backend
    fleet: Fleet
    epoch_end: EpochEnd
    evaluator: Evaluator
    executor: Executor
    events: Events
    takeover: Takeover
    wall_clock: WallClock
    loggers: RunLoggers


def wire(
    spec: RunSpec,
    directory: RunDirectory,
    environment: Environment,
    ledger: Ledger,
    accepted: Callable[[], None] = lambda: None,
) -> Parts:
    """Open the store and put a master together around it; `accepted` is called when the program has shown to be of this
    run. Raises LedgerError, and what the back end raises; the ledger is left open."""
    store = open_store(spec, directory, ledger, environment.clock(), durable=environment.durable)
    accepted()
    wall = environment.wall or environment.clock
    environment = environment.not_before(store.ledger.last_sign())
    mailboxes = environment.mailboxes(spec.settings, directory)
    workers = WorkerTable(spec.settings.workers)
    events = Events(store.ledger, directory.events, environment.report, environment.clock)
    leases = Leases(spec, store.ledger, workers, mailboxes, events)
    exchange = Exchange(spec, store, workers, leases, mailboxes, environment, events)
    try:
        backend = environment.backend(spec.settings, directory)
    except BaseException:
        mailboxes.stop()
        raise
    place = Workplace(spec.settings, directory, backend, mailboxes)
    fleet = Fleet(place, workers, exchange, leases.sizing.measures, events)
    evaluator, executor = environment.evaluator(spec, directory), environment.executor()

    def warn(text: str) -> None:
        events.record("warning", {}, text, standing=True)

    plugins = loggers_of(spec, warn)
    return Parts(
        spec,
        directory,
        environment,
        store,
        mailboxes,
        workers,
        leases,
        exchange,
        backend,
        fleet,
        EpochEnd(spec, store, exchange.tails, events, evaluator, executor, environment.hook),
        evaluator,
        executor,
        events,
        Takeover(place, store, workers, leases, exchange, fleet, events),
        WallClock(wall, store.ledger, events),
        RunLoggers(plugins, directory.root, store.ledger, environment.logging, warn),
    )

"""Wiring: constructs the parts of a master and connects them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from gridml.carriers.base import MasterMailboxes
from gridml.carriers.registry import CARRIERS
from master.evaluation.evaluator import Evaluator
from master.fleet.fleet import Fleet, Workplace
from master.leases.epochs import leased_sizes
from master.leases.leases import Leases
from master.ports.environment import Environment
from master.ports.mailboxes import message_limits
from master.state.jobs import Backend
from master.state.worker_records import WorkerTable
from master.store.journal import Events, WallClock
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.settings import Settings, SizeSettings
from master.store.spec import RunSpec
from master.store.store import Store, open_store
from master.sync.contraction import Contractions
from master.sync.epoch_end import EpochEnd
from master.sync.exchange import Exchange, Grants, WorkerReports
from master.sync.inbox import DeadLetters, Inbox
from master.sync.merger import Merger
from master.sync.moments import MomentsFile, SharedMoments
from master.sync.owner_work import OwnerWork
from master.sync.pushes import Pushes
from master.sync.recovery import Failures, Recovery
from master.sync.replies import PushPace, Replies, ReplySender
from master.sync.rounds import RoundEnds
from master.sync.tick_end import TickEnds
from master.sync.version_use import Tails, VersionKeeper, VersionUse
from master.takeover import Takeover
from master.telemetry.run_loggers import RunLoggers, loggers_of, names_of
from master.trust.trust import Trust, sampler


@dataclass(frozen=True)
class Parts:
    """The parts of one master. All state that the next one needs is in the store."""

    spec: RunSpec
    directory: RunDirectory
    environment: Environment
    store: Store
    mailboxes: MasterMailboxes  # the master's end of the carrier
    workers: WorkerTable
    leases: Leases
    merger: Merger
    exchange: Exchange  # handles messages and sends replies
    backend: Backend
    fleet: Fleet  # requests workers and gives them up
    epoch_end: EpochEnd
    evaluator: Evaluator
    executor: Executor  # runs evaluation and sizing in parallel with the loop
    events: Events
    takeover: Takeover  # used once, on startup
    wall_clock: WallClock  # records offsets of the wall clock
    loggers: RunLoggers


def wire(
    spec: RunSpec,
    settings: Settings,
    directory: RunDirectory,
    environment: Environment,
    ledger: Ledger,
    accepted: Callable[[], None] = lambda: None,
) -> Parts:
    """Open the store and construct the parts of a master.

    `accepted` is called once the program is known to fit the run. Raises LedgerError, and the errors of the back end;
    the ledger stays open.
    """
    consistency, division = spec.program.consistency, spec.program.division(spec.graph)
    ticks = division if consistency.waits else None
    sizes, _ = leased_sizes(settings.part(SizeSettings), ticks)
    store = open_store(spec, directory, ledger, environment.clock(), durable=environment.durable)
    accepted()
    wall = environment.wall or environment.clock
    environment = environment.not_before(store.ledger.last_activity_s())  # times in the ledger never go back
    mailboxes = environment.mailboxes(settings, directory)
    environment = environment.woken_by(mailboxes)
    limits = message_limits(spec.graph, store.replica.state)
    mailboxes.limit(limits.payload)
    events = Events(store.ledger, directory.events, environment.report, environment.clock)
    workers = WorkerTable(settings.workers)
    leases = Leases(spec, sizes, store.ledger, workers, mailboxes, events)

    # Failures, trust and recovery
    failures = Failures(store.ledger, leases, workers, mailboxes, events)
    moments = SharedMoments(spec.graph, workers, MomentsFile(directory.root / "moments"))
    shape = spec.program.shape
    driver, by_edge = shape.driver.__name__, shape.trained_by_edge
    # How strongly pushes pull rows is measured as they are merged. Whole ticks depend on no order of arrival.
    pulls = Contractions(spec.graph, driver, by_edge) if consistency.merges_whole_ticks else None
    measured = None if consistency.merges_whole_ticks else driver
    work = OwnerWork.of(spec.program)
    merger = Merger(spec.graph, store.replica, settings.workers, measured, work, by_edge)
    tick_ends = None
    if ticks is not None:
        tick_ends = TickEnds(leases.epochs, work, store.ledger, store.replica, merger, pulls)
    due = sampler(settings.spot_checks, environment.chance)
    trust = Trust(store, leases, workers, events, merger.group_of, due)
    recovery = Recovery(store, leases, failures, trust, moments, events)

    # Messages and pushes
    inbox = Inbox(workers, mailboxes, environment.codec, limits, DeadLetters(directory.root / "set-aside"), events)
    rounds = RoundEnds(store, leases, workers, merger, environment.clock)
    pushes = Pushes(store, leases, trust, merger, recovery, events, environment.hook, rounds, tick_ends)

    # Replies
    versions, tails = VersionUse(store.ledger), Tails(spec, store.ledger, store.replica)
    pace = PushPace(spec, sizes, store.ledger, leases, merger, rounds)
    near = not CARRIERS.find(settings.carrier).remote
    sender = ReplySender(store, versions, mailboxes, environment.codec, near=near)
    exchange = Exchange(
        environment,
        store,
        workers,
        leases,
        inbox,
        pushes,
        WorkerReports(store.ledger, leases, workers, versions, recovery, trust, merger, events),
        recovery,
        trust,
        Grants(store.ledger, leases, workers, trust, pace, events),
        pace,
        Replies(spec, store, leases, pace, moments, trust, sender, merger.added),
        VersionKeeper(store, leases.epochs, tails, versions, trust),
    )

    # Back end, fleet and the end of an epoch
    try:
        backend = environment.backend(settings, directory)
    except BaseException:  # a back end that cannot be reached raises here
        mailboxes.stop()
        raise
    place = Workplace(settings, directory, backend, mailboxes)
    fleet = Fleet(place, workers, exchange, leases.sizing.measures, events)
    evaluator, executor = environment.evaluator(spec, directory), environment.executor()

    def warn(text: str) -> None:
        events.record("warning", {}, text, standing=True)

    return Parts(
        spec,
        directory,
        environment,
        store,
        mailboxes,
        workers,
        leases,
        merger,
        exchange,
        backend,
        fleet,
        EpochEnd(spec, store, tails, events, evaluator, executor, environment.hook),
        evaluator,
        executor,
        events,
        Takeover(place, store, workers, leases, exchange, versions, fleet, events),
        WallClock(wall, store.ledger, events),
        RunLoggers(
            loggers_of(names_of(spec.program, settings), warn), directory.root, store.ledger, environment.logging, warn
        ),
    )

"""Launch: starts a new run, creates one for a later master, or resumes an existing one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gridml.engine.engine import Engine
from gridml.errors import GridmlError, LedgerError, ProgramError
from gridml.model.graph import Graph
from gridml.model.loading import load, loaded
from gridml.model.phases import Stages
from gridml.model.program import Program
from gridml.model.ticks import Ticks
from gridml.protocol import bundle
from gridml.protocol.foreign import remove
from master.backends.registry import BACKENDS, read_settings
from master.evaluation.metrics import first_chunk
from master.leases.epochs import Epochs, leased_sizes
from master.placing.placing import PlacementReport, place
from master.ports.environment import Environment
from master.run import MasterRun
from master.scaling import REQUESTED, log_averaging, log_settings, useful_workers
from master.store.diagnosis import translate_errors
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.local_arrays import IDS_SHA256, save_ids
from master.store.replica import Replica
from master.store.rundir import EventFacts, MasterLock, RunDirectory, RunStatus, command
from master.store.saved_program import Contents, SavedProgram, contents_of
from master.store.saved_replica import InitializedReplica, initialize_from, read_initial_weights
from master.store.settings import RunSettings, Settings, SizeSettings, check_placement, copy_settings, write_settings
from master.store.spec import FACT, RunSpec, SavedPlacement, identity, read_saved
from master.store.versions import Versions, initial
from master.sync.merger import Merger
from master.telemetry.run_loggers import check_loggers, names_of
from master.wiring import wire

Change = Callable[[Settings], Settings]  # maps the settings of the last master to those of the next


def start(settings: Settings, root: Path, environment: Environment) -> MasterRun:
    """Start a new run in `root`. Raises ProgramError or UsageError before anything is written."""
    spec, directory, lock = _create(settings, root, environment)
    try:
        with translate_errors(root), _open_ledger(directory, environment) as ledger:
            return MasterRun(wire(spec, settings, directory, environment, ledger), lock)
    except BaseException:
        lock.release()
        raise


def create(settings: Settings, root: Path, environment: Environment) -> None:
    """Create a new run in `root` without a master; `resume` starts it. Raises as `start` does."""
    _, directory, lock = _create(settings, root, environment)
    with lock, contextlib.closing(Ledger.of(directory, durable=environment.durable)) as ledger, ledger.transaction():
        ledger.set("status", RunStatus.SUBMITTED)


def _create(settings: Settings, root: Path, environment: Environment) -> tuple[RunSpec, RunDirectory, MasterLock]:
    # All checks that can refuse the run come before the directory is created.
    spec, contents = _load(settings)
    initialized = _initial_replica(spec)
    check_loggers(names_of(spec.program, settings))
    directory = RunDirectory(root)
    directory.create()
    lock = MasterLock(directory)
    try:
        with translate_errors(root, "start again with gridml run"):
            directory.saved_program(settings.program).keep(contents)
            BACKENDS.find(settings.backend).keep(settings, directory)
            BACKENDS.find(settings.backend).equip(spec.program, settings, directory)
            spec = _make_ledger(spec, settings, initialized, directory, environment)
        return spec, directory, lock
    except BaseException:
        lock.release()
        raise


def _load(settings: Settings, placement: SavedPlacement | None = None) -> tuple[RunSpec, Contents]:
    """Load a program from the user's files. Return (run, contents of the files to save).

    Building the graph can take long, and the user may edit the files in that time. So their contents are read first,
    because the saved copy must be what was loaded.
    """
    program, source = loaded(settings.program)
    contents = contents_of(settings.program, source=source)
    check_placement(f"the placement of {settings.program}", program.placement, ProgramError)
    return _spec(settings, program, placement), contents


def _spec(settings: Settings, program: Program, placement: SavedPlacement | None = None) -> RunSpec:
    if program.uses_torch:
        import torch

        torch.set_num_threads(1)  # the machine is shared with workers and other users; a master merges with one thread
    graph = program.build(settings.program)
    _compile(program, graph)
    return RunSpec(settings.part(RunSettings), program, graph, placement)


def _compile(program: Program, graph: Graph) -> None:
    """Compile a program's stages. Raises StageError here, where the user is, and leaves the machine code to the workers
    of this machine."""
    if isinstance(program.shape, Stages) and graph.tables[program.driving(graph)].count:
        engine = Engine(program)
        engine.begin(first_chunk(program, graph, 1))
        engine.compile()


@contextlib.contextmanager
def _open_ledger(directory: RunDirectory, environment: Environment) -> Iterator[Ledger]:
    """Open a run's ledger. It is closed if the block fails; otherwise the master closes it."""
    ledger = Ledger.of(directory, durable=environment.durable)
    try:
        yield ledger
    except BaseException:
        ledger.close()
        raise


def _record_ticks(ticks: Ticks, spec: RunSpec, settings: Settings, events: Events) -> None:
    unused = leased_sizes(settings.part(SizeSettings), ticks)[1]
    slack = spec.program.consistency.slack
    facts = {"slack": slack, "parts": ticks.parts, "ticks": ticks.count, "size": ticks.largest}
    drawn = spec.program.shape.drawn
    text = ticks.in_words(slack, None if drawn is None else drawn.__name__)
    events.record("ticks", facts, f"{text}; {unused}" if unused else text)


def _initial_replica(spec: RunSpec) -> InitializedReplica:
    """Return the replica before any training. Raises UsageError if the file of `init_from` does not fit."""
    state = initial(spec.graph, spec.settings.seed)
    if spec.settings.init_from is None:
        return InitializedReplica(state, 0, 0)
    values = read_initial_weights(spec.settings.init_from)
    return initialize_from(spec.graph, state, values, partial=spec.settings.init_partial)


def _make_ledger(
    spec: RunSpec,
    settings: Settings,
    initialized: InitializedReplica,
    directory: RunDirectory,
    environment: Environment,
) -> RunSpec:
    """Write the placement, version 0 and the ledger. Return the run with its placement.

    The ledger is built under another name and renamed last, so a ledger that exists can be resumed.
    """

    def report(text: str, facts: EventFacts) -> None:
        environment.report("placing", text, facts)

    spec, placed = place(spec, settings.chunk, directory, report, durable=environment.durable)
    building = directory.root / "ledger.new.db"
    building.unlink(missing_ok=True)
    ledger, now = Ledger(building, shared_disk=True, create=True, durable=environment.durable), environment.clock()
    events = Events(ledger, directory.events, environment.report, environment.clock)
    try:
        replica = Replica(spec.graph, Versions(directory.versions, durable=environment.durable))
        merger = Merger(spec.graph, replica)
        merger.add_buffers(initialized.state)
        sha256 = replica.start(initialized.state)
        ids_sha256 = save_ids(spec.graph, directory, durable=environment.durable)
        with ledger.transaction():
            ledger.set("identity", identity(spec))
            ledger.set("settings", write_settings(directory, settings))
            ledger.set("started_s", now)
            ledger.set("status", RunStatus.RUNNING)
            ledger.add_version(0, sha256, 0, now)
            epochs = Epochs(spec, ledger, settings.chunk)
            if epochs.ticks is not None:
                _record_ticks(epochs.ticks, spec, settings, events)
            ledger.set("driver", epochs.driver)
            ledger.set("total", epochs.total)
            if ids_sha256 is not None:
                ledger.set(IDS_SHA256, ids_sha256)
            epochs.open_first(now)
            if placed is not None:
                _record_placement(placed, spec, ledger, events)
            if initialized.taken:
                source = settings.init_from
                text = f"{initialized.taken:,} of {initialized.total:,} tensors are those of {source}"
                facts = {"source": source, "taken": initialized.taken, "tensors": initialized.total}
                events.record("first values", facts, text)
            useful, _ = useful_workers(spec, epochs, averages=merger.averages)
            workers = settings.workers if useful is None else min(useful, settings.workers)
            log_settings(spec, workers, ledger, events)
            if merger.averages:
                log_averaging(spec, workers, events)
    finally:
        events.close()
        ledger.close()
    building.rename(directory.ledger)
    bundle.sync_folder(directory.root)
    return spec


def _record_placement(placed: PlacementReport, spec: RunSpec, ledger: Ledger, events: Events) -> None:
    """Record the placement of the vertices, and the digest of its file."""
    sha256 = None if spec.placement is None else spec.placement.sha256
    ledger.set(FACT, {"sha256": sha256, "text": placed.text})
    events.record("placement", placed.facts, placed.text, quiet=placed.is_quiet)


def resume(
    root: Path,
    environment: Environment,
    program_file: Path | None = None,
    *,
    with_changes: bool = False,
    change: Change = lambda settings: settings,
) -> MasterRun:
    """Resume a run from its last commit.

    By default it uses the saved copy of its program; `with_changes` takes the user's files as they are now, and
    `program_file` another program. `change` maps the settings of the last master to the new ones. Raises LedgerError or
    RunError for a run that cannot be resumed.
    """
    directory = RunDirectory(root)
    # os.path, because Path.is_file raises for a folder that cannot be read.
    if not os.path.isfile(directory.ledger) and not os.path.isfile(directory.ledger_copy):
        raise LedgerError(f"{root} is not a run: it has no {directory.ledger.name}. Start one with gridml run PROGRAM.")
    with translate_errors(root):
        lock = MasterLock(directory)
    try:
        return _resume(directory, environment, program_file, lock, with_changes=with_changes, change=change)
    except BaseException as error:
        if isinstance(error, GridmlError):
            _record_failure(directory, error)
        lock.release()
        raise


def _resume(
    directory: RunDirectory,
    environment: Environment,
    program_file: Path | None,
    lock: MasterLock,
    *,
    with_changes: bool,
    change: Change,
) -> MasterRun:
    root = directory.root
    with translate_errors(root):
        (root / "cancel").unlink(missing_ok=True)  # a request to an earlier master
        with _open_ledger(directory, environment) as ledger:
            before = read_settings(root, ledger.get("settings"))
            settings = change(before)
            if program_file is not None:
                settings = replace(settings, program=program_file)
            kept, contents = directory.saved_program(settings.program), None
            placement = read_saved(directory.placement, ledger.get(FACT))
            if with_changes or program_file is not None:
                spec, contents = _load(settings, placement)
            else:
                if not kept.program.is_file():
                    load(settings.program)  # `repair` can copy only this file, so errors in it are raised first
                kept.repair(ledger.get("program"))
                spec = _spec(settings, load(kept.program, settings.program), placement)

            def accepted() -> None:
                """Write the new settings and program. Called once the program is known to fit the run; otherwise the
                run stays unchanged."""
                if with_changes:
                    # First, because it raises if files are missing.
                    BACKENDS.find(settings.backend).keep(settings, directory)
                BACKENDS.find(settings.backend).equip(spec.program, settings, directory)
                _write_settings(directory, ledger, settings, is_changed=settings != before)
                if settings.workers != before.workers:
                    remove(root / REQUESTED)  # the new number overrides an earlier `gridml scale`
                if contents is not None:
                    kept.keep(contents)

            run = MasterRun(wire(spec, settings, directory, environment, ledger, accepted), lock)
            if contents is None:
                _warn_about_changes(kept, run)
            _log_changed_settings(before, settings, run)
            return run


def _warn_about_changes(kept: SavedProgram, run: MasterRun) -> None:
    """Warn that a resumed run does not use the user's changed files."""
    if altered := kept.altered():
        parts, files = run.parts, f"{', '.join(altered)} {'has' if len(altered) == 1 else 'have'}"
        text = (
            f"{files} changed since the run began, and it goes on with its own copy. To take what is there now: "
            f"{command('resume', parts.directory.root)} --with-changes"
        )
        parts.events.record("warning", {"files": altered}, text, standing=True)


def _log_changed_settings(before: Settings, after: Settings, run: MasterRun) -> None:
    """Record the settings that differ from those of the last master."""
    then, now = ({**s.to_json(), **s.options.to_json()} for s in (before, after))
    # The back end's options are recorded one by one, so the field that holds them all is left out.
    changed = {name: now[name] for name in now if now[name] != then.get(name) and name != after.backend}
    if changed:
        changes = "; ".join(
            f"{name} {_listed(value)}" + ("" if then.get(name) is None else f" instead of {_listed(then.get(name))}")
            for name, value in changed.items()
        )
        facts = {"now": changed, "before": {name: then.get(name) for name in changed}}
        run.parts.events.record("settings", facts, changes)


def _write_settings(directory: RunDirectory, ledger: Ledger, settings: Settings, *, is_changed: bool) -> None:
    """Write the settings if they changed, and record the digest of their file in the ledger. Edits of the file by a
    person are accepted."""
    sha256 = write_settings(directory, settings) if is_changed else copy_settings(directory)
    if sha256 != ledger.get("settings"):
        with ledger.transaction():
            ledger.set("settings", sha256)


def _record_failure(directory: RunDirectory, error: GridmlError) -> None:
    """Record in the ledger why a run that was created could not start: the output of a master in a batch system may
    never be read."""
    with (
        contextlib.suppress(GridmlError, sqlite3.Error, OSError),
        contextlib.closing(Ledger.of(directory)) as ledger,
        ledger.transaction(),
    ):
        if ledger.get("status") == RunStatus.SUBMITTED:
            ledger.set("status", RunStatus.FAILED)
            ledger.set("stopped_because", str(error))


def _listed(value: object) -> object:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else value

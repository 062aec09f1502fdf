"""The number of workers that a run wants: `gridml scale`, how many are useful, and the settings they train with.

A request is a file in the run directory, so it outlives any master: the one that drives the run takes it up in its
next turn, otherwise the next one in its first. The file goes only when the run's settings have the number. A run
asks for as many workers as are wanted, but no more than it is long enough for.

Workers may train with settings in place of the program's own. An event says so as a run begins, and another where a
number of workers with other settings trains for a while.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridml.engine.pace import MAX_BATCH_PARTS, UsedSettings, schedule_name, used_settings
from gridml.errors import LedgerError, RunError, UsageError
from gridml.model.program import Program
from gridml.protocol import bundle
from gridml.protocol.foreign import described, read_regular, remove
from master.backends.registry import BACKENDS, read_settings
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.reader import LOGGED_SETTINGS, holder, opened, read_facts, read_status
from master.store.rundir import RunStatus, command
from master.store.settings import write_settings
from master.store.spec import RunSpec
from master.telemetry.staffing import RunLength, worker_limit
from master.wiring import Parts

REQUESTED, TAKEN = "scale", "scale.taken"  # the file's name as a person leaves it, and while a master works on it
MAX_REQUEST_BYTES = 100  # bytes of it


@dataclass(frozen=True)
class Request:
    """That a run is to have `workers` instead of `before`; `master` drives it, None: nobody does."""

    workers: int
    before: int
    master: str | None


def request(root: Path, workers: int) -> Request:
    """Ask for so many workers of the run in `root`.

    Raises UsageError for a number that makes no sense or cannot be written there, RunError where the run has finished,
    LedgerError where there is none.
    """
    with opened(root) as ledger:
        status, sha256 = read_status(ledger, root), read_facts(ledger).get("settings")
    if status is RunStatus.FINISHED:
        raise RunError(f"{root} has finished: no vertex is left for workers to train. Begin another run for more.")
    if workers < 1:
        stop = command("cancel", root)
        raise UsageError(f"--workers is {workers}; expected at least 1. Stop the run, to go on later, with: {stop}")
    settings = read_settings(root, sha256)
    BACKENDS.find(settings.backend).check(replace(settings, workers=workers))
    try:
        bundle.write_atomic(root / REQUESTED, f"{workers}\n".encode())
    except OSError as error:
        raise UsageError(f"{root} cannot be written: {error.strerror}. Scale it as the user who runs it.") from error
    return Request(workers, settings.workers, holder(root))


class Scaling:
    """Takes up what people ask for while a master drives its run."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        root = parts.directory.root
        self._requested, self._taken = root / REQUESTED, root / TAKEN
        self._left_over = self._taken.exists()  # by a master that ended as it took it up

    def step(self) -> None:
        """Take up a request, if there is one. What is none is removed, with a warning."""
        if self._left_over:
            self._left_over = False
            self._take_up()
        if self._requested.exists():
            self._requested.rename(self._taken)  # what is asked for meanwhile is another request
            self._take_up()

    def _take_up(self) -> None:
        try:
            self._scale(int(read_regular(self._taken, MAX_REQUEST_BYTES)))
        except (ValueError, UsageError, LedgerError) as error:
            text = f"a request to scale was not taken up: {described(error)}"
            self._parts.events.record("warning", {}, text, standing=True)
        remove(self._taken)

    def _scale(self, workers: int) -> None:
        """Write the number into the run's settings, then want so many. A kill in between leaves the request."""
        parts, ledger = self._parts, self._parts.store.ledger
        before = parts.workers.wanted
        written = replace(read_settings(parts.directory.root, ledger.get("settings")), workers=workers)
        sha256 = write_settings(parts.directory, written)
        with ledger.transaction():
            ledger.set("settings", sha256)
            ledger.set("workers", workers)
            if workers != before:
                text = f"workers: {workers} instead of {before}, as gridml scale asked for"
                parts.events.record("scaled", {"workers": workers, "before": before}, text)
        parts.workers.wanted = workers
        parts.merger.scale(workers)
        parts.backend.scale(workers)


ALL = "--steps-each 0 asks for all"


def useful_workers(spec: RunSpec, total: int, *, averages: bool) -> tuple[int | None, str]:
    """Return how many workers a run over `total` vertices is long enough for, and why; None for any number, as where no
    replica is averaged as a whole."""
    if not averages:
        return None, ""
    return worker_limit(RunLength(total, spec.program.update.window, spec.settings.steps_each))


class WorkerLimit:
    """Bounds the workers of one master's run where whole replicas are averaged, and tells of it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._seen: tuple[int, int] | None = None  # asked for, wanted
        total, averages = parts.leases.epochs.total, parts.merger.averages
        parts.workers.worker_limit, self._reason = useful_workers(parts.spec, total, averages=averages)

    def step(self) -> None:
        """Tell how many are asked for, where that is another number than this run's masters told last."""
        workers, ledger = self._parts.workers, self._parts.store.ledger
        if self._seen == (workers.asked, workers.wanted):
            return
        self._seen = workers.asked, workers.wanted
        bound = None  # all that are wanted are asked for
        if workers.asked < workers.wanted:
            bound = {"workers": workers.asked, "reason": f"of {workers.wanted:,} wanted: {self._reason} ({ALL})"}
        if bound != ledger.get("asked"):
            with ledger.transaction():
                ledger.set("asked", bound)
                because = "all that are wanted" if bound is None else bound["reason"]
                text = f"{workers.asked:,} workers are asked for, {because}"
                self._parts.events.record("asked", {"workers": workers.asked, "wanted": workers.wanted}, text)


MIN_USED_S = 60.0  # that other settings are used before they are worth a line,
MIN_SHARE = 0.1  # of the time in which any worker trained


def log_settings(program: Program, workers: int, ledger: Ledger, events: Events) -> None:
    """Log what each of so many workers trains with, unless it was logged last, or there is nothing to change: neither a
    batch to share nor a rate. Must be called inside the ledger's transaction."""
    if not program.has_settings:
        return
    used, text = used_settings(program, workers)
    told: list[dict[str, Any]] = ledger.get(LOGGED_SETTINGS, [])
    if told and told[-1]["text"] == text:
        return
    facts = {
        "workers": workers,
        "batch": used.batch,
        "program_batch": program.update.batch or 1,
        "accumulate": program.update.accumulate,
        "rate_factor": used.rate_factor,
        "program_rates": None if program.rates is None else list(program.rates),
        "schedule": schedule_name(program.schedule),
    }
    others = [each for each in told if each["batch"] != used.batch]
    ledger.set(LOGGED_SETTINGS, [*others, {"batch": used.batch, "text": text}][-MAX_BATCH_PARTS:])
    events.record("training", facts, text)


def is_worth_a_line(used: UsedSettings, told: Collection[int], used_s: float, all_s: float) -> tuple[bool, str]:
    """Return whether to log settings that were used for `used_s` of `all_s`, and why; batches of the sizes `told` were
    logged before. So there are at most as many lines as a batch has parts, however often workers come and go."""
    if used.batch in told:
        return False, f"a batch of {used.batch:,} was logged before"
    if used_s < max(MIN_USED_S, MIN_SHARE * all_s):
        return False, f"it was used for {used_s:.0f} of {all_s:.0f} s"
    return True, f"a batch of {used.batch:,} was used for {used_s:.0f} of {all_s:.0f} s, and was not logged"


class SettingsLog:
    """Tells of the settings of one master's run, where they are others than were told last."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._program = parts.spec.program
        self._asked = 0
        self._told: set[int] = set()  # batches
        self._used_s: dict[int, float] = {}  # for how long each batch was used
        self._looked_s: float | None = None
        self._used: UsedSettings | None = None  # since then; None: nobody trained

    def step(self, now: float) -> None:
        """Log what the workers use that are asked for, and what others do that have trained for a while."""
        if not self._program.has_settings:
            return
        if (asked := self._parts.workers.asked) != self._asked:
            self._asked = asked
            self._tell(asked)
        live, before = self._parts.leases.live, self._used
        if before is not None and self._looked_s is not None:
            passed_s = max(0.0, now - self._looked_s)
            self._used_s[before.batch] = self._used_s.get(before.batch, 0.0) + passed_s
        self._looked_s = now
        if before is None or live != before.workers:
            self._used = used_settings(self._program, live)[0] if live else None
        if before is not None:
            of_all = self._used_s[before.batch], sum(self._used_s.values())
            if is_worth_a_line(before, self._told, *of_all)[0]:
                self._tell(before.workers)

    def _tell(self, workers: int) -> None:
        ledger = self._parts.store.ledger
        with ledger.transaction():
            log_settings(self._program, workers, ledger, self._parts.events)
        self._told = {each["batch"] for each in ledger.get(LOGGED_SETTINGS)}

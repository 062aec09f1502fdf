"""Scaling: the number of workers of a run (`gridml scale`), its limit, and the log of the workers' training settings.

A request to scale is a file in the run directory, so it outlives any master. The running master handles it in its next
turn; if no master runs, the next master handles it in its first turn. The file is removed once the new number is in the
run's settings. The master asks for fewer workers than were requested if more would not help. That depends on the run's
length and, where the steps of workers can be added, on what pushes cost.

Batch and learning rates can depend on the number of workers and on what a push costs. They are logged when a run
begins. They are logged again if workers have trained for a while with other settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridml.engine.pace import UsedSettings, averaging_cost, schedule_name, used_settings
from gridml.errors import LedgerError, RunError, UsageError
from gridml.protocol import bundle
from gridml.protocol.foreign import described, read_regular, remove
from master.backends.registry import BACKENDS, read_settings
from master.leases.epochs import Epochs
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.reader import LOGGED_SETTINGS, holder, opened, read_facts, read_status
from master.store.rundir import RunStatus, command
from master.store.settings import write_settings
from master.store.spec import RunSpec
from master.telemetry.worth import RunLength, sharing_workers, worker_limit
from master.wiring import Parts

REQUESTED, TAKEN = "scale", "scale.taken"  # file written by `request`; its new name while a master handles it
MAX_REQUEST_BYTES = 100  # the file holds only one number


@dataclass(frozen=True)
class Request:
    """A request to scale a run."""

    workers: int  # number of workers that was requested
    before: int  # number of workers until now
    master: str | None  # the master that drives the run; None: no master runs


def request(root: Path, workers: int) -> Request:
    """Request `workers` workers for the run in `root`.

    Raises UsageError for an invalid number or a folder that cannot be written, RunError for a finished run, LedgerError
    if `root` holds no run.
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
    """Handles requests to scale, for the master that drives the run."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        root = parts.directory.root
        self._requested, self._taken = root / REQUESTED, root / TAKEN
        self._left_over = self._taken.exists()  # True: an earlier master was killed while it handled a request

    def step(self) -> None:
        """Handle a request, if one exists. An invalid one is removed with a warning."""
        if self._left_over:
            self._left_over = False
            self._handle()
        if self._requested.exists():
            self._requested.rename(self._taken)  # so that a later request is not lost when this one is removed
            self._handle()

    def _handle(self) -> None:
        try:
            self._scale(int(read_regular(self._taken, MAX_REQUEST_BYTES)))
        except (ValueError, UsageError, LedgerError) as error:
            text = f"a request to scale was rejected: {described(error)}"
            self._parts.events.record("warning", {}, text, standing=True)
        remove(self._taken)

    def _scale(self, workers: int) -> None:
        """Write the number to the run's settings, then apply it. If this master is killed in between, the next master
        handles the request again."""
        parts, ledger = self._parts, self._parts.store.ledger
        before = parts.workers.requested
        written = replace(read_settings(parts.directory.root, ledger.get("settings")), workers=workers)
        sha256 = write_settings(parts.directory, written)
        with ledger.transaction():
            ledger.set("settings", sha256)
            ledger.set("workers", workers)
            if workers != before:
                text = f"workers: {workers} instead of {before}, as requested by gridml scale"
                parts.events.record("scaled", {"workers": workers, "before": before}, text)
        parts.workers.requested = workers
        parts.merger.scale(workers)
        parts.backend.scale(workers)


ALL = "--steps-each 0 asks for all"


SHARING = "sharing_workers"  # fact of the ledger: the last answer of `sharing_workers`, for the next master
REVIEW_S = 1.0  # between two looks at what pushes cost


def useful_workers(
    spec: RunSpec, epochs: Epochs, sharing: tuple[int, str] = (0, ""), *, averages: bool
) -> tuple[int | None, str]:
    """Return (largest number of workers that is useful in a run of these epochs, reason). The number is None if there
    is no limit. `sharing` is as in `worker_limit`."""
    if (ticks := epochs.ticks) is not None:
        return ticks.parts, f"with slack a pass has {ticks.parts} parts, and one worker at a time trains a part"
    if not averages:  # parallel training costs accuracy only if whole replicas are averaged
        return None, ""
    return worker_limit(RunLength(epochs.total, spec.program.shape.window, spec.settings.steps_each), sharing)


class WorkerLimit:
    """Limits the number of workers of a run in which whole replicas are averaged, and records the limit."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._seen: tuple[int, int] | None = None  # (target, requested) of the last step
        self._sharing: int = parts.store.ledger.get(SHARING, 0)
        self._review_s = self._cheap_s = -math.inf  # times of the last review, and of the last that found low costs
        self._set((self._sharing, ""))

    def step(self, now: float) -> None:
        """Record the number of workers to ask for, unless the last record (perhaps of an earlier master) has the same
        number."""
        if not self._review_s <= now < self._review_s + REVIEW_S:
            self._review_s = now
            self._review(now)
        workers, ledger = self._parts.workers, self._parts.store.ledger
        if self._seen == (workers.target, workers.requested):
            return
        self._seen = workers.target, workers.requested
        bound = None  # no limit: all that are wanted are asked for
        if workers.target < workers.requested:
            bound = {"workers": workers.target, "reason": f"of {workers.requested:,} wanted: {self._reason} ({ALL})"}
        if bound != ledger.get("asked"):
            with ledger.transaction():
                ledger.set("asked", bound)
                because = "all that are wanted" if bound is None else bound["reason"]
                text = f"{workers.target:,} workers are asked for, {because}"
                self._parts.events.record("asked", {"workers": workers.target, "wanted": workers.requested}, text)

    def _review(self, now: float) -> None:
        """Set the limit by what pushes cost now."""
        parts = self._parts
        facts = parts.exchange.pace.alone()
        if sharing_workers(facts, self._sharing)[0] >= self._sharing:
            self._cheap_s = now
        count, why = sharing_workers(facts, self._sharing, now - self._cheap_s)
        if count != self._sharing:
            self._sharing = count
            with parts.store.ledger.transaction():
                parts.store.ledger.set(SHARING, count)
        self._set((count, why))

    def _set(self, sharing: tuple[int, str]) -> None:
        parts, workers = self._parts, self._parts.workers
        workers.worker_limit, self._reason = useful_workers(
            parts.spec, parts.leases.epochs, sharing, averages=parts.merger.averages
        )


# Settings are logged once they were used for at least MIN_USED_S seconds and at least the share MIN_SHARE of the time
# in which any worker trained.
MIN_USED_S = 60.0
MIN_SHARE = 0.1


def log_settings(spec: RunSpec, workers: int, ledger: Ledger, events: Events, added: int = 0) -> None:
    """Record the settings with which each of `workers` workers trains, unless the last record has the same settings. A
    program without a batch to share and without a rate has no settings. `added` is as in `used_settings`. Must be
    called inside the ledger's transaction."""
    program = spec.program
    if not program.has_settings:
        return
    used, text = used_settings(program, workers, added, adds=program.adds_steps(spec.graph))
    logged: list[dict[str, Any]] = ledger.get(LOGGED_SETTINGS, [])
    if logged and logged[-1]["text"] == text:
        return
    facts = {
        "workers": workers,
        "batch": used.batch,
        "program_batch": program.shape.batch or 1,
        "accumulate": program.shape.accumulate,
        "added": used.added,
        "rate_factor": used.rate_factor,
        "program_rates": None if program.rates is None else list(program.rates),
        "schedule": schedule_name(program.schedule),
    }
    others = [each for each in logged if _kind(each) != (used.batch, used.added)]
    one = {"batch": used.batch, "added": used.added, "text": text}
    ledger.set(LOGGED_SETTINGS, [*others, one])
    events.record("training", facts, text)


def log_averaging(spec: RunSpec, workers: int, events: Events) -> None:
    """Record what it costs that the replicas of `workers` workers are averaged, and what to set. Must be called inside
    the ledger's transaction."""
    ways, text = averaging_cost(spec.program, workers, adds=spec.program.adds_steps(spec.graph))
    if text:
        events.record("averaged", {"workers": workers, "ways": list(ways)}, text)


def _kind(logged: dict[str, Any]) -> tuple[int, bool]:
    """Return (batch, whether steps are added) of logged settings; runs of earlier versions added none."""
    return logged["batch"], logged.get("added", False)


def should_log_settings(
    used: UsedSettings, logged: Collection[tuple[int, bool]], used_s: float, all_s: float
) -> tuple[bool, str]:
    """Return whether to log settings that were used for `used_s` of `all_s` seconds, and why.

    What is in `logged`, as (batch, whether steps are added), is not logged again. So there are few lines, however often
    the number of workers changes.
    """
    if (used.batch, used.added) in logged:
        return False, f"a batch of {used.batch:,} was logged before"
    if used_s < max(MIN_USED_S, MIN_SHARE * all_s):
        return False, f"it was used for {used_s:.0f} of {all_s:.0f} s"
    return True, f"a batch of {used.batch:,} was used for {used_s:.0f} of {all_s:.0f} s, and was not logged"


class SettingsLog:
    """Records the settings with which a run's workers train under one master, when these settings change."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._program = parts.spec.program
        self._target = 0  # target number of workers at the last step
        # By (batch, whether steps are added): what was logged, as the ledger has it, and the seconds of use under this
        # master.
        self._logged: set[tuple[int, bool]] = set()
        self._used_s: dict[tuple[int, bool], float] = {}
        self._step_s: float | None = None  # time of the last step
        self._used: UsedSettings | None = None  # settings in use since the last step; None: no worker trained

    def step(self, now: float) -> None:
        """Record the settings for the target number of workers, and those for another number that trained for a
        while."""
        if not self._program.has_settings:
            return
        if (target := self._parts.workers.target) != self._target:
            self._target = target
            self._log(target)
        live, before, added = self._parts.leases.live, self._used, self._parts.exchange.pace.added
        if before is not None and self._step_s is not None:
            passed_s = max(0.0, now - self._step_s)
            kind = before.batch, before.added
            self._used_s[kind] = self._used_s.get(kind, 0.0) + passed_s
        self._step_s = now
        if before is None or (live, added) != (before.workers, before.batch if before.added else 0):
            self._used = used_settings(self._program, live, added)[0] if live else None
        if before is not None:
            of_all = self._used_s[before.batch, before.added], sum(self._used_s.values())
            if should_log_settings(before, self._logged, *of_all)[0]:
                self._log(before.workers, before.batch if before.added else 0)

    def _log(self, workers: int, added: int = 0) -> None:
        ledger = self._parts.store.ledger
        with ledger.transaction():
            log_settings(self._parts.spec, workers, ledger, self._parts.events, added)
        self._logged = set(map(_kind, ledger.get(LOGGED_SETTINGS)))

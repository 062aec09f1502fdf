"""`gridml scale`: how many workers a run wants changes while it goes on.

A request is a file in the run directory, so it outlives any master: the one that drives the run takes it up in its next
turn, otherwise the next one in its first. The file goes only when the run's settings have the number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gridml.errors import LedgerError, RunError, UsageError
from gridml.protocol import bundle
from gridml.protocol.foreign_files import read_regular, remove
from gridml.protocol.text import described
from master.backends.registry import BACKENDS, read_settings
from master.store.reader import holder, opened
from master.store.run_facts import read_facts, read_status
from master.store.rundir import command
from master.store.settings_file import write_settings
from master.store.status import RunStatus
from master.wiring import Parts

REQUESTED, TAKEN = "scale", "scale.taken"  # the file's name as a person leaves it, and while a master works on it
LONGEST = 100  # bytes of it


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

    def look(self) -> None:
        """Take up a request, if there is one. What is none is removed, with a warning."""
        if self._left_over:
            self._left_over = False
            self._take_up()
        if self._requested.exists():
            self._requested.rename(self._taken)  # what is asked for meanwhile is another request
            self._take_up()

    def _take_up(self) -> None:
        try:
            self._scale(int(read_regular(self._taken, LONGEST)))
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
        parts.workers.wanted = parts.exchange.merger.workers = workers
        parts.backend.scale(workers)

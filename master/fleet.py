"""The workers of a run as its master sees them: asked for, heard of, given up. What each holds is the exchange's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gridml.carriers.base import MasterMailboxes
from gridml.errors import UNFIT, RunError
from master.backends.base import Backend, JobEvent, State
from master.decisions.staffing import after_failed_start, after_hold, to_submit
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.sync.exchange import Exchange
from master.telemetry.heartbeats import Heartbeats
from master.telemetry.measures import Measures, died

Say = Callable[[float, str, str], None]  # (time in seconds, kind, text) of what a person should hear; in a transaction


class Fleet:
    """Asks `backend` for workers and follows each from its submission to its end, in the ledger too."""

    def __init__(
        self,
        settings: Settings,
        directory: RunDirectory,
        ledger: Ledger,
        mailboxes: MasterMailboxes,
        exchange: Exchange,
        backend: Backend,
        measures: Measures,
        say: Say,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._ledger = ledger
        self._mailboxes = mailboxes
        self._exchange = exchange
        self._backend = backend
        self._measures = measures
        self._say = say
        workers = ledger.workers()
        known = {row["worker"] for row in workers}
        spoken = {row["worker"] for row in workers if row["first_sync_s"] is not None}
        self._presence = Heartbeats(mailboxes.heartbeat, settings.silent_s, known, spoken=spoken)
        self._held: set[str] = set()
        self._failed_starts = self._unfit = (
            0  # workers in a row that never spoke; those of them whose machine would not do
        )
        self._submitted = len(known)
        self._stop: RunError | None = None  # why there is no use in going on

    @property
    def alive(self) -> bool:
        """Whether any worker is queued or running."""
        return bool(self._presence.alive)

    def expect(self, worker: str, now: float) -> None:
        """A worker will come, or lives on: it has a row and a mailbox. Must be called inside a transaction."""
        self._ledger.worker_submitted(worker, now)
        self._measures.submitted(worker, now)
        self._mailboxes.open(worker)
        self._presence.expect(worker)

    def spoke(self, workers: Iterable[str], now: float) -> None:
        """Messages of these made sense."""
        self._presence.heard(workers, now)

    def hear(self, events: list[JobEvent], now: float) -> None:
        """What the back end says of workers; an ended one's leases are free again.

        Raises RunError when no worker can start.
        """
        if not events:
            return
        with self._ledger.transaction():
            for event in events:
                if event.graceful is None:
                    event = replace(event, graceful=event.worker in self._exchange.known.left)
                if event.worker not in self._presence.known:
                    self.expect(event.worker, now)  # the back end starts it again by itself
                self._ledger.worker_event(event, now)
                self._take(event, now)
                if event.state not in (State.QUEUED, State.FINISHED):
                    self._say(now, event.state.value, self._told(event))
        for event in events:
            if event.state.ended:
                self._mailboxes.close(event.worker)
        if self._stop is not None:
            raise self._stop

    def give_up_silent(self, now: float) -> None:
        """Give up on workers that are silent for too long: something took them that nobody reported."""
        for worker, reason in self._presence.silent(now):
            self._presence.stops(worker)
            self._measures.silent(worker, now)
            with self._ledger.transaction():
                self._exchange.gone(worker, reason, now)
                self._say(now, "silent", f"{worker}: {reason}; its leases go to others")
            self._backend.cancel(worker)

    def staff(self, now: float, *, work_left: bool) -> None:
        """Ask for as many workers as are missing."""
        count, _ = to_submit(
            len(self._presence.alive) + len(self._held),  # a held job is not replaced: the next may be held as well
            self._settings.workers,
            work_left=work_left,
            idle=self._presence.waiting,
            max_idle=self._settings.facts.max_idle,
        )
        if not count:
            return
        names = [f"w{self._submitted + i + 1}" for i in range(count)]
        with self._ledger.transaction():
            for name in names:
                self.expect(name, now)
        self._submitted += count
        for name in names:
            self._backend.submit(name)

    def _take(self, event: JobEvent, now: float) -> None:
        """What one event changes."""
        worker = event.worker
        self._held.discard(worker)
        if event.state is State.QUEUED:
            self._presence.expect(worker)  # one that was held, too
        elif event.state is State.RUNNING:
            self._presence.runs(worker, now)
            self._measures.runs(worker, now)
        elif event.state is State.OUT_OF_REACH:
            self._presence.lost_sight(worker)
        elif event.state is State.HELD:
            self._hold(event, now)
        else:
            if event.state is State.LOST and event.exit_code is not None:
                self._exchange.crashed(worker, event.detail, self._last_words(worker), now)
            because = f"worker {event.state.value}: {event.detail}"
            self._exchange.gone(worker, because, now, heir=bool(event.next_attempt))
            self._end(event, now)

    def _end(self, event: JobEvent, now: float) -> None:
        self._measures.ended(event.worker, now, died=died(event.state, event.cancelled, event.detail))
        self._presence.stops(event.worker)
        if event.worker in self._presence.spoken or (event.state is State.EVICTED and not event.cancelled):
            self._failed_starts = self._unfit = 0
            return
        self._failed_starts += 1
        self._unfit += event.exit_code == UNFIT
        others_work = not self._presence.alive.isdisjoint(self._presence.spoken)
        again, reason = after_failed_start(self._failed_starts, self._unfit, others_work=others_work)
        if not again:
            log = self._directory.log(event.worker)
            self._stop = RunError(
                f"{reason}; the last one: {event.detail}. Its log, {log}, ends:\n{self._last_words(event.worker)}"
            )

    def _hold(self, event: JobEvent, now: float) -> None:
        """A held job waits for a person; when none has ever run, so does the run."""
        self._measures.ended(event.worker, now, died=False)  # it lives anew when it is released
        self._presence.stops(event.worker)
        self._held.add(event.worker)
        again, reason = after_hold(
            len(self._held), event.detail, spoken=bool(self._presence.spoken), alive=len(self._presence.alive)
        )
        if not again:
            self._stop = RunError(f"{reason}. {self._backend.advice(event.detail)}")

    def _told(self, event: JobEvent) -> str:
        what = f"{event.worker} on {event.machine}: {event.detail}"
        if event.state is State.HELD:
            return f"{what}. {self._backend.advice(event.detail)}"
        if event.exit_code == UNFIT:
            return f"{what}: {self._last_words(event.worker).rpartition(chr(10))[2]}"
        return what

    def _last_words(self, worker: str) -> str:
        """The end of what a worker printed."""
        log = self._directory.log(worker)
        return log.read_text(errors="replace").strip()[-2000:] if log.exists() else ""

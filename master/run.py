"""A run, as a story: take it over, lease chunks to workers, merge what they push, evaluate, until all is credited.

The master is one loop over events: what the back end says, what workers say. Everything it must remember is in the
ledger; it may be killed at any instant and go on with `resume`.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict

from gridml.errors import CancelledError, GridmlError, LedgerError, SupersededError
from gridml.protocol import bundle
from gridml.protocol.foreign import remove
from gridml.protocol.payload import network_disk
from master.evaluation.metrics import first_chunk
from master.scaling import Scaling, SettingsLog, WorkerLimit
from master.store.credits import Credited
from master.store.diagnosis import translate_errors
from master.store.ledger import Ledger
from master.store.reader import STOPPED_EARLY, PushCosts, RunClock
from master.store.rundir import MasterLock, RunStatus
from master.store.saved_replica import FINAL_SHA256
from master.takeover import recovered_messages
from master.wiring import Parts

IDLE_S = (0.005, 0.02)  # how long the loop rests when nothing happened: at first, and at most
PUSH_COSTS_EVERY_S = 15.0  # how often the ledger is told what pushes cost
GOODBYE_S = 3.0  # how long workers may take to hear that the run has ended


class MasterRun:
    """One master's hold on a run. `master.launch` begins it or takes it up; then `finish` inside `with`."""

    def __init__(self, parts: Parts, lock: MasterLock) -> None:
        self.parts = parts
        self._lock = lock
        self._leaving = False
        self._push_costs_due_s = 0.0
        self._scaling = Scaling(parts)
        self._worker_limit = WorkerLimit(parts)
        self._settings_log = SettingsLog(parts)
        try:
            with translate_errors(parts.directory.root):
                parts.takeover.begin(parts.environment.clock())
                if (network := network_disk(parts.directory.root)) is not None:
                    text = f"the run lies on {network}: a rollback journal is used, slower but safe there"
                    parts.events.record("warning", {"disk": network}, text)
                parts.epoch_end.commit_fields()
                parts.epoch_end.restore_best()
        except BaseException:
            parts.backend.leave()
            parts.mailboxes.stop()
            parts.store.ledger.close()
            parts.events.close()
            raise

    @property
    def ledger(self) -> Ledger:
        return self.parts.store.ledger

    @property
    def total(self) -> int:
        """Vertices to credit in the whole run, unless it has trained enough before."""
        return self.parts.leases.epochs.vertex_count * self.parts.leases.epochs.epochs_requested

    def __enter__(self) -> MasterRun:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._leaving:
                self.parts.backend.leave()
            else:
                self.parts.backend.close()
        finally:
            self.parts.mailboxes.stop()
            self.parts.loggers.close()
            self.parts.evaluator.close()
            self.parts.executor.shutdown(wait=True, cancel_futures=True)
            self.ledger.close()
            self.parts.events.close()
            self._lock.release()

    def leave(self) -> None:
        """Let the workers live on when this master ends, for the next one."""
        self._leaving = True

    def finish(self) -> None:
        """Drive the run to its end.

        Raises UserCodeError when the user's code failed too often, StorageError on a full disk, RunError when no
        worker can start or it was cancelled; the run can then be resumed once the cause is mended.
        """
        environment, idle = self.parts.environment, IDLE_S[0]
        try:
            with translate_errors(self.parts.directory.root):
                self._staff()
                self.step()  # the first workers are asked for,
                self.parts.merger.prepare()  # and start meanwhile
                while not self._done():
                    environment.tick()
                    if self.step():
                        idle = IDLE_S[0]
                    else:
                        environment.rest(idle)
                        idle = min(IDLE_S[1], idle * 1.5)
                self._finish_run()
        except SupersededError:
            self._leaving = True  # the workers are the other master's
            raise
        except GridmlError as error:
            self._record_stop(error)
            raise

    def step(self) -> bool:
        """Take one turn of the loop; return whether anything happened."""
        parts = self.parts
        parts.store.ledger.check_master()
        events = parts.backend.poll()  # before the messages: a worker that has ended can have sent its last one before
        ended = (event.worker for event in events if event.state.ended)
        recovered = recovered_messages(parts.directory, ended, parts.exchange.inbox.limits)
        messages = [*recovered.values(), *parts.mailboxes.collect()]
        now = parts.environment.clock()
        parts.wall_clock.update(now)
        handled, merged = bool(messages), parts.exchange.handle(messages)
        while parts.mailboxes.more:  # all that had come before the back end was polled
            merged += parts.exchange.handle(parts.mailboxes.collect())
        for path in recovered:
            remove(path)
        parts.fleet.hear(events, now)
        if parts.exchange.recovery.step(now):
            parts.epoch_end.reset()
        for text in parts.backend.notices():
            parts.events.record("warning", {}, text, standing=True)
        if parts.exchange.failures.stop_because is not None:
            raise parts.exchange.failures.stop_because
        parts.fleet.give_up(now)
        self._staff()
        parts.epoch_end.commit_fields()
        evaluated = parts.epoch_end.evaluate(now)
        self._check_early_stopping()
        parts.loggers.step(now)
        self._update_sizing(now)
        self._check_cancel()
        return bool(events or handled or merged or evaluated)

    def _staff(self) -> None:
        work_left, now = not self.parts.leases.epochs.is_finished(), self.parts.environment.clock()
        self._scaling.step()
        self._worker_limit.step()
        self._settings_log.step(now)
        self.parts.fleet.staff(now, work_left=work_left)
        self.parts.fleet.check_machines(work_left=work_left)

    def _done(self) -> bool:
        epochs = self.parts.leases.epochs
        return epochs.is_finished() and not epochs.unevaluated() and not self.ledger.patches()

    def _update_sizing(self, now: float) -> None:
        """Choose the sizes of chunks anew when there is more to know of the workers, beside the run as it goes on."""
        leases, exchange = self.parts.leases, self.parts.exchange
        workers = max(leases.live, self.parts.workers.asked)
        leases.sizing.step(now, workers, exchange.pace.push_s, self.parts.executor, self.parts.events)
        if now >= self._push_costs_due_s and self._push_costs() is not None:
            self._push_costs_due_s = now + PUSH_COSTS_EVERY_S
            with self.ledger.transaction():
                self._keep_push_costs()

    def _push_costs(self) -> PushCosts | None:
        return self.parts.leases.sizing.measures.push_costs(self.parts.exchange.pace.push_s)

    def _keep_push_costs(self) -> None:
        """Leave word of what pushes cost, for plans that are made by this run."""
        costs = self._push_costs()
        if costs is not None:
            self.ledger.set(PushCosts.FACT, asdict(costs))

    def _check_early_stopping(self) -> None:
        """Leave word of it where the run has trained enough, or, with another program, has not."""
        epochs = self.parts.leases.epochs
        if self.parts.spec.program.early_stopping is None and self.ledger.get(STOPPED_EARLY) is None:
            return
        enough = epochs.stop_reason
        if enough == self.ledger.get(STOPPED_EARLY):
            return
        with self.ledger.transaction():
            self.ledger.set(STOPPED_EARLY, enough)
            self.ledger.set("total", epochs.total)
            if enough is not None:
                facts = {"epochs": epochs.epoch_count, "reason": enough}
                self.parts.events.record("stopping", facts, f"after {epochs.epoch_count} epochs: {enough}")

    def _check_cancel(self) -> None:
        root = self.parts.directory.root
        if (root / "cancel").exists():
            (root / "cancel").unlink()
            raise CancelledError(f"{root} was cancelled. It stands at its last credit; go on with gridml resume.")

    def _finish_run(self) -> None:
        """The run is credited in full: let the workers go, keep the trained replica."""
        parts, replica = self.parts, self.parts.store.replica
        credited, epochs = self.ledger.count_credits(), parts.leases.epochs
        if credited != Credited(epochs.total, epochs.epoch_count, epochs.epoch_count):
            raise LedgerError(
                f"{parts.directory.root} has come to its end with {credited.vertices:,} vertices credited in "
                f"{credited.epochs} epochs, {credited.full} of them in full; expected {epochs.total:,} in "
                f"{epochs.epoch_count}. Its ledger was altered; do not use the result."
            )
        until_s = parts.environment.clock() + GOODBYE_S
        while parts.fleet.alive and parts.environment.clock() < until_s:
            parts.environment.tick()
            if not self.step():
                parts.environment.rest(IDLE_S[1])
        parts.exchange.replies.sender.close()
        values = dict(parts.epoch_end.final_state(parts.environment.clock()).tensors())
        sha256 = None
        if values:
            pieces = bundle.pieces({"version": replica.version}, values)
            bundle.write_atomic(parts.directory.final, pieces)
            sha256 = pieces.sha256
        ended_s, program = parts.environment.clock(), parts.spec.program
        flops = None
        if program.uses_torch:
            flops = parts.epoch_end.flops(first_chunk(program, parts.spec.graph, program.update.batch or 1))
        clock = RunClock(self.ledger.get("started_s", ended_s), ended_s, tuple(self.ledger.get("gaps", [])))
        last_word = f"every vertex of {credited.vertices:,} is credited once"
        facts = {"vertices": credited.vertices, "epochs": credited.epochs, "run_s": clock.at(ended_s)}
        with self.ledger.transaction():
            self._keep_push_costs()
            self.ledger.set(FINAL_SHA256, sha256)
            self.ledger.set("flops_per_vertex", flops)
            self.ledger.set("status", RunStatus.FINISHED)
            self.ledger.set("ended_s", ended_s)
            parts.events.record("finished", facts, last_word)
        parts.loggers.finish()

    def _record_stop(self, error: GridmlError) -> None:
        """Leave word of why the run stopped; it stands at its last credit."""
        status = RunStatus.CANCELLED if isinstance(error, CancelledError) else RunStatus.FAILED
        with contextlib.suppress(GridmlError), self.ledger.transaction():
            self.ledger.set("status", status)
            self.ledger.set("stopped_because", str(error))

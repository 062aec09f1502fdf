"""The master's loop: takes a run over, then leases chunks to workers, merges their pushes and evaluates, until all
vertices are credited.

Each turn handles the events of the back end and the messages of workers. All state that must survive is in the ledger,
because a master can be killed at any instant. The next master then continues the run with `resume`.
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

IDLE_S = (0.005, 0.02)  # pauses after turns without events: (the first pause, the longest pause)
PUSH_COSTS_EVERY_S = 15.0  # interval between two records of the costs of pushes
GOODBYE_S = 3.0  # maximum time that the master waits at the end for workers to leave


class MasterRun:
    """One master's control of a run. `master.launch` creates it; then call `finish` inside `with`."""

    def __init__(self, parts: Parts, lock: MasterLock) -> None:
        self.parts = parts
        self._lock = lock
        self._leaving = False  # True: `__exit__` leaves the workers running
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
                # The previous master may have been killed after a commit and before it wrote the files that follow it.
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
        """Number of vertices to credit in the whole run, unless it stops early."""
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
        """Request that the workers keep running for the next master when this master ends."""
        self._leaving = True

    def finish(self) -> None:
        """Drive the run to its end.

        Raises UserCodeError if the user's code failed too often, StorageError if the disk is full, RunError if no
        worker can start or the run was cancelled. After each of them the run can be resumed, once the cause is fixed.
        """
        environment, idle = self.parts.environment, IDLE_S[0]
        try:
            with translate_errors(self.parts.directory.root):
                self._staff()
                self.step()  # requests the first workers
                self.parts.merger.prepare()  # compiles while the workers start
                while not self._done():
                    environment.tick()
                    if self.step():
                        idle = IDLE_S[0]
                    else:
                        environment.rest(idle)
                        idle = min(IDLE_S[1], idle * 1.5)
                self._finish_run()
        except SupersededError:
            self._leaving = True  # the workers belong to the other master
            raise
        except GridmlError as error:
            self._record_stop(error)
            raise

    def step(self) -> bool:
        """Run one turn of the loop; return whether anything happened."""
        parts = self.parts
        parts.store.ledger.check_master()
        # Poll first: messages that are collected afterwards include the last message of each worker that has ended.
        events = parts.backend.poll()
        ended = (event.worker for event in events if event.state.ended)
        recovered = recovered_messages(parts.directory, ended, parts.exchange.inbox.limits)
        held = parts.exchange.pace.rounds.is_held
        messages = [each for each in (*recovered.values(), *parts.mailboxes.collect()) if not held(each)]
        now = parts.environment.clock()
        parts.wall_clock.update(now)
        handled, merged = bool(messages), parts.exchange.handle(messages)
        while parts.mailboxes.more:  # messages that arrived before the poll are handled before the events of the poll
            merged += parts.exchange.handle(parts.mailboxes.collect())
        merged += parts.exchange.end_round()
        for path in recovered:  # removed only after they were handled, so that a killed master leaves them to the next
            remove(path)
        parts.fleet.handle(events, now)
        if parts.exchange.recovery.step(now):  # the run was rolled back
            parts.epoch_end.reset()
            parts.exchange.undo_rounds()
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
        self._worker_limit.step(now)
        self._settings_log.step(now)
        self.parts.fleet.staff(now, work_left=work_left)
        self.parts.fleet.check_machines(work_left=work_left)

    def _done(self) -> bool:
        epochs = self.parts.leases.epochs
        return epochs.is_finished() and not epochs.unevaluated() and not self.ledger.patches()

    def _update_sizing(self, now: float) -> None:
        """Update the sizes of chunks in the background, as more is known about the workers."""
        leases, exchange = self.parts.leases, self.parts.exchange
        workers = max(leases.live, self.parts.workers.target)
        leases.sizing.step(now, workers, exchange.pace.push_s, self.parts.executor, self.parts.events)
        if now >= self._push_costs_due_s and self._push_costs() is not None:
            self._push_costs_due_s = now + PUSH_COSTS_EVERY_S
            with self.ledger.transaction():
                self._keep_push_costs()

    def _push_costs(self) -> PushCosts | None:
        return self.parts.leases.sizing.measures.push_costs(self.parts.exchange.pace.push_s)

    def _keep_push_costs(self) -> None:
        """Record the costs of pushes, so that `gridml plan --run` can use them."""
        costs = self._push_costs()
        if costs is not None:
            self.ledger.set(PushCosts.FACT, asdict(costs))

    def _check_early_stopping(self) -> None:
        """Record that the run stops early, or that it no longer does after a resume with another program."""
        epochs = self.parts.leases.epochs
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
        """Release the workers and save the trained replica. Every vertex must be credited."""
        parts, replica = self.parts, self.parts.store.replica
        credited, epochs = self.ledger.verify(), parts.leases.epochs
        if credited != Credited(epochs.total, epochs.epoch_count, epochs.epoch_count):
            raise LedgerError(
                f"{parts.directory.root} ended with {credited.vertices:,} vertices credited in {credited.epochs} "
                f"epochs, {credited.full} of them in full; expected {epochs.total:,} in {epochs.epoch_count}. Its "
                f"ledger was altered; do not use the result."
            )
        until_s = parts.environment.clock() + GOODBYE_S
        while parts.fleet.has_live_workers and parts.environment.clock() < until_s:
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
            flops = parts.epoch_end.flops(first_chunk(program, parts.spec.graph, program.shape.batch or 1))
        clock = RunClock(self.ledger.get("started_s", ended_s), ended_s, tuple(self.ledger.get("gaps", [])))
        text = f"every vertex of {credited.vertices:,} is credited once"
        if epochs.stop_reason is None and (why := program.not_ended(epochs.epoch_count)) is not None:
            text += f"; {why}"
        facts = {"vertices": credited.vertices, "epochs": credited.epochs, "run_s": clock.at(ended_s)}
        with self.ledger.transaction():
            self._keep_push_costs()
            self.ledger.set(FINAL_SHA256, sha256)
            self.ledger.set("flops_per_vertex", flops)
            self.ledger.set("status", RunStatus.FINISHED)
            self.ledger.set("ended_s", ended_s)
            parts.events.record("finished", facts, text)
        parts.loggers.finish()
        self.ledger.check_master()  # raises if the ledger's files, which record the end, were removed or replaced

    def _record_stop(self, error: GridmlError) -> None:
        """Record why the run stopped. It can be resumed from its last credit."""
        status = RunStatus.CANCELLED if isinstance(error, CancelledError) else RunStatus.FAILED
        with contextlib.suppress(GridmlError), self.ledger.transaction():
            self.ledger.set("status", status)
            self.ledger.set("stopped_because", str(error))

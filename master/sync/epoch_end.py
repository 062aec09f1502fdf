"""End of an epoch: commits its changed fields, copies the ledger and evaluates its replica."""

from __future__ import annotations

import math
from concurrent.futures import Executor, Future
from typing import NamedTuple

from gridml.errors import DamagedError, ProgramError
from gridml.model.chunk import Chunk
from gridml.model.program import Metrics
from master.evaluation.evaluator import Evaluated, Evaluator, Subject, tail_mean
from master.evaluation.metrics import ADVICE, sampled, sampled_text
from master.evaluation.recalibration import has_statistics, with_statistics
from master.evaluation.subprocess_evaluator import limit_s
from master.ports.environment import Hook
from master.store.journal import WARNING, Events
from master.store.reader import EVALUATED_ON
from master.store.rundir import EventFacts, RunDirectory
from master.store.saved_replica import Best, BestCheckpoint
from master.store.spec import RunSpec
from master.store.store import Store
from master.store.versions import ReplicaState, Versions
from master.sync.version_use import Tails

#: Time limit for counting the operations of a batch.
FLOPS_S = 60.0


class _Outcome(NamedTuple):
    """Result of an evaluation."""

    evaluated: Evaluated
    #: the replica, if it is the best so far
    best: Best | None = None


class EpochEnd:
    """Does the work that follows an epoch, as far as possible in parallel with the next epoch."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        tails: Tails,
        events: Events,
        evaluator: Evaluator,
        executor: Executor,
        hook: Hook,
    ) -> None:
        self._spec = spec
        self._store = store
        self._events = events
        self._evaluator = evaluator
        self._executor = executor
        self._hook = hook
        self._prepared = False
        #: True: the warning about statistics that were not recalibrated was recorded; it is recorded only once
        self._has_warned = False
        self._goals = spec.program.goals
        self._tails = tails
        directory = RunDirectory(store.ledger.path.parent)
        self._keeper = BestCheckpoint(directory, store.ledger)
        self._versions = Versions(directory.versions)  # used by the evaluating thread only
        self._evaluating: tuple[Subject, Future[_Outcome]] | None = None
        #: number of epochs that were closed at the last copy of the ledger
        self._backed_up = -1

    def commit_fields(self) -> None:
        """Make the changed fields of finished epochs the base of the next one, and copy the ledger at that point."""
        ledger, fields = self._store.ledger, self._store.fields
        newest, closed = ledger.newest_epoch()
        if finished := [patch for patch in ledger.patches() if patch[1] < newest or closed]:
            with ledger.transaction():
                base = fields.merge_patches(ledger.base(), finished)
                self._hook("after-base")
                ledger.set_base(base, finished)
                fields.show(base, ledger.patches())
                self._hook("before-base-commit")
            self._hook("after-base-commit")
        if ledger.epochs_closed() > self._backed_up:
            self._backed_up = ledger.epochs_closed()
            ledger.backup()
            self._hook("after-backup")
            # Swept only after the backup, because before it the old copy could need files that the ledger no longer
            # names.
            self._store.sweep()

    def reset(self) -> None:
        """Drop the evaluation under way and restore the best replica, after a rollback has reopened epochs."""
        self._evaluating = None
        self._backed_up = self._store.ledger.epochs_closed()
        self.restore_best()

    def restore_best(self) -> None:
        """Make the saved best replica match the ledger, on startup and after a rollback. If the ledger names no best
        replica for this metric, the best epoch whose version is still kept will be evaluated again, which saves it."""
        ledger, goal = self._store.ledger, self._spec.program.saved_goal
        self._keeper.restore()
        best = self._keeper.best
        if goal is None or (best is not None and best.goal == str(goal)):
            return
        least, again = math.nan, -1
        for epoch, version, metrics in ledger.evaluations():
            value = goal.find(metrics) if version in ledger.saved_versions else None
            if value is not None and goal.better(value, least):
                least, again = value, epoch
        if again >= 0:
            with ledger.transaction():
                ledger.clear_metrics(again)

    def evaluate(self, now: float) -> bool:
        """Evaluate the oldest epoch that has no metrics yet; return whether an evaluation was finished. Raises
        UserCodeError."""
        if self._evaluating is not None:
            subject, future = self._evaluating
            if not future.done():
                return False
            self._evaluating = None
            best, epoch, few = None, subject.epoch, None
            try:
                evaluated, best = future.result()
                few = sampled_text(sampled(self._spec.program, self._spec.graph))
                on = f", evaluated on {few}" if few else ""
                topic, text = "metrics", f"epoch {epoch + 1}: {describe_metrics(evaluated.metrics)}{on}"
                versions = 1 + len(subject.tail)
                facts = {"epoch": epoch + 1, "metrics": _numbers(evaluated.metrics), "versions": versions}
            except DamagedError as error:  # not fatal, because training does not need this version any more
                evaluated, topic, text = Evaluated({}), WARNING, f"epoch {epoch + 1} cannot be evaluated: {error}"
                facts = {"epoch": epoch + 1}
            self._hook("before-metrics")
            with self._store.ledger.transaction():
                self._store.ledger.set_metrics(epoch, evaluated.metrics)
                if few is not None:
                    self._store.ledger.set(EVALUATED_ON, few or None)
                if best is not None:
                    self._keeper.record(best)
                for kind, line in evaluated.events:
                    self._events.record(kind, {"epoch": epoch + 1}, line, standing=kind == WARNING)
                self._events.record(topic, facts, text, standing=topic == WARNING)
                self._warn_not_recalibrated(evaluated.not_recalibrated)
                if best is not None:
                    self._events.record("best", _best_facts(best), _best_text(best))
            self._hook("after-metrics")
            if best is not None:
                self._keeper.publish()
            return True
        if self._spec.program.evaluate is None:
            return False
        if not self._prepared and self._store.ledger.credited:  # not earlier, because starting workers need the cores
            self._prepared = True
            self._executor.submit(self._evaluator.prepare)
        if waiting := self._store.ledger.unevaluated():
            subject = self._subject(*waiting[0])
            took_s = self._store.ledger.epoch_s(subject.epoch)
            job = self._executor.submit(self._evaluate_and_stage, subject, limit_s(took_s), self._value_to_beat())
            self._evaluating = subject, job
        return False

    def _value_to_beat(self) -> float:
        """Return the value that the next best replica must beat; NaN if every value is better."""
        goal, best = self._spec.program.saved_goal, self._keeper.best
        return math.nan if goal is None or best is None or best.goal != str(goal) else best.value

    def _evaluate_and_stage(self, subject: Subject, limit: float, least: float) -> _Outcome:
        """Evaluate a version in the evaluating thread. If it is the best so far, stage it for saving.

        Raises the errors of the evaluator, and ProgramError if a metric that the run depends on is missing.
        """
        evaluated = self._evaluator.evaluate(subject, limit)
        for goal in self._goals:
            try:
                goal.value(evaluated.metrics)
            except ProgramError as error:
                raise ProgramError(f"{error} {ADVICE}") from None
        wanted = self._spec.program.saved_goal
        if wanted is None or not wanted.better(value := wanted.value(evaluated.metrics), least):
            return _Outcome(evaluated)
        state, _ = self._as_evaluated(self._versions.read(subject.version, subject.sha256), subject, limit)
        best = Best(subject.version, subject.epoch, str(wanted), value, "")
        return _Outcome(evaluated, self._keeper.stage(best, dict(state.tensors())))

    def final_state(self, now: float) -> ReplicaState:
        """Return the newest version in the form in which it is saved at the end of the run and evaluated. Raises
        UserCodeError."""
        newest = self._newest
        limit = limit_s(self._store.ledger.epoch_s(newest.epoch))
        state, problem = self._as_evaluated(self._store.replica.state, newest, limit)
        with self._store.ledger.transaction():
            self._warn_not_recalibrated(problem)
        return state

    def flops(self, chunk: Chunk) -> float | None:
        """Return the floating-point operations of f per vertex of a chunk; None if they cannot be counted."""
        return self._evaluator.flops(self._newest, chunk, FLOPS_S)

    @property
    def _newest(self) -> Subject:
        return self._subject(self._store.ledger.newest_epoch()[0], self._store.replica.version)

    def _subject(self, epoch: int, version: int) -> Subject:
        """Return a version, with its tail: the earlier versions that it is averaged with. The tail is empty if no push
        was ever averaged, because the version is then the result of plain training."""
        ledger, end = self._store.ledger, self._tails.end_of(epoch)
        tail = tuple((earlier, ledger.sha256_of(earlier)) for earlier in self._tails.tail(epoch, version))
        place = end.share, end.step, end.steps
        return Subject(epoch, version, ledger.sha256_of(version), ledger.has_averaged(), *place, tail)

    def _as_evaluated(self, version: ReplicaState, subject: Subject, limit: float) -> tuple[ReplicaState, str | None]:
        """Return (the version as the evaluator sees it, the reason if it keeps its merged statistics, otherwise
        None)."""
        state = tail_mean(version, subject.tail, self._versions, self._spec.program)
        if not subject.averaged or not has_statistics(state):
            return state, None
        try:
            statistics, problem = self._evaluator.statistics(subject, limit)
        except DamagedError as error:  # the file is damaged, but `version` is intact in memory
            statistics, problem = {}, str(error)
        return (with_statistics(state, statistics) if problem is None else version), problem

    def _warn_not_recalibrated(self, problem: str | None) -> None:
        """Record why a version keeps its merged statistics. Only the first reason is recorded, because later versions
        have the same reason."""
        if problem is not None and not self._has_warned:
            self._has_warned = True
            text = f"running statistics stay as they were merged, because they cannot be gathered again: {problem}"
            self._events.record(WARNING, {}, text, standing=True)


def _best_text(best: Best) -> str:
    metric = best.goal.partition(":")[2]
    return f"epoch {best.epoch + 1} has the best {metric} so far, {_number(best.value)}; it is kept"


def _best_facts(best: Best) -> EventFacts:
    return {"epoch": best.epoch + 1, "version": best.version, "goal": best.goal, "value": best.value}


def describe_metrics(metrics: Metrics) -> str:
    """Return metrics in one line: numbers to four digits, lists by their range."""
    return ", ".join(
        f"{name} {_number(value)}"
        if not isinstance(value, list)
        else f"{name} {_number(min(value))} to {_number(max(value))}"
        for name, value in metrics.items()
        if not isinstance(value, list) or value
    )


def _numbers(metrics: Metrics) -> Metrics:
    """Return the metrics that are single numbers; lists are for the report."""
    return {name: value for name, value in metrics.items() if not isinstance(value, list)}


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

"""What follows an epoch: its changed fields are settled, the ledger is copied, its replica is evaluated."""

from __future__ import annotations

from concurrent.futures import Executor, Future

from gridml.errors import DamagedError
from gridml.model.program import Metrics
from master.environment import Hook
from master.store.journal import Journal
from master.store.spec import RunSpec
from master.store.store import Store
from master.store.versions import ReplicaState
from master.sync.evaluation import evaluate
from master.sync.recalibration import Recalibration


class EpochEnd:
    """Does it beside the next epoch, as far as that need not wait."""

    def __init__(self, spec: RunSpec, store: Store, journal: Journal, executor: Executor, hook: Hook) -> None:
        self._spec = spec
        self._store = store
        self._journal = journal
        self._executor = executor
        self._hook = hook
        self._recalibration = Recalibration(spec)
        self._told = False  # that it failed
        self._evaluating: tuple[int, Future[tuple[Metrics, str | None]]] | None = None
        self._backed_up = -1  # epochs closed at the last copy of the ledger

    def settle(self) -> None:
        """Make the changed fields of finished epochs the base of the next, and keep a copy of the ledger at that point.

        What the ledger no longer names is removed only then: until there is a new copy, the old one needs it.
        """
        ledger, fields = self._store.ledger, self._store.fields
        newest, closed = ledger.newest_epoch()
        if finished := [patch for patch in ledger.patches() if patch[1] < newest or closed]:
            with ledger.transaction():
                base = fields.settle(ledger.base(), finished)
                self._hook("after-base")
                ledger.set_base(base, finished)
                fields.show(base, ledger.patches())
                self._hook("before-base-commit")
            self._hook("after-base-commit")
        if ledger.epochs_closed() > self._backed_up:
            self._backed_up = ledger.epochs_closed()
            ledger.backup()
            self._hook("after-backup")
            self._store.sweep()

    def forget(self) -> None:
        """Evaluate anew: epochs that had ended may go on."""
        self._evaluating = None
        self._backed_up = self._store.ledger.epochs_closed()

    def evaluate(self, now: float) -> bool:
        """Evaluate the oldest epoch that was not yet; return whether one was done. Raises UserCodeError."""
        if self._evaluating is not None:
            epoch, future = self._evaluating
            if not future.done():
                return False
            self._evaluating = None
            problem = None
            try:
                metrics, problem = future.result()
                topic, text = "metrics", f"epoch {epoch + 1}: {describe_metrics(metrics)}"
            except DamagedError as error:  # the training does not need that version any more
                metrics, topic, text = {}, "warning", f"epoch {epoch + 1} cannot be evaluated: {error}"
            with self._store.ledger.transaction():
                self._store.ledger.set_metrics(epoch, metrics)
                self._journal.event(now, topic, text)
                self._tell(problem, now)
            return True
        waiting = self._store.ledger.unevaluated() if self._spec.program.evaluate is not None else []
        if waiting:
            epoch, version = waiting[0]
            sha256 = self._store.ledger.sha256_of(version)
            averaged = self._store.ledger.averaged()
            self._evaluating = epoch, self._executor.submit(self._metrics, version, sha256, averaged)
        return False

    def trained(self, now: float) -> ReplicaState:
        """Return the newest version as it is kept when the run has ended. Raises UserCodeError."""
        replica = self._store.replica
        state, problem = self._as_evaluated(replica.version, replica.state, averaged=self._store.ledger.averaged())
        with self._store.ledger.transaction():
            self._tell(problem, now)
        return state

    def _metrics(self, version: int, sha256: str | None, averaged: bool) -> tuple[Metrics, str | None]:
        state, problem = self._as_evaluated(version, self._store.versions.read(version, sha256), averaged=averaged)
        return evaluate(self._spec.program, self._spec.graph, state, self._spec.settings.program), problem

    def _as_evaluated(self, version: int, state: ReplicaState, *, averaged: bool) -> tuple[ReplicaState, str | None]:
        """Return a version with statistics of its own, and what went wrong; as it is where no push was ever averaged,
        because then it has those of plain training."""
        return self._recalibration.apply(version, state) if averaged else (state, None)

    def _tell(self, problem: str | None, now: float) -> None:
        """Say why a version keeps its merged statistics: once, for the next one has the same reason."""
        if problem is not None and not self._told:
            self._told = True
            text = f"running statistics stay as they were merged, because they cannot be gathered anew: {problem}"
            self._journal.event(now, "warning", text)


def describe_metrics(metrics: Metrics) -> str:
    """Metrics in one line: numbers to four digits, lists by their range."""
    return ", ".join(
        f"{name} {_number(value)}"
        if not isinstance(value, list)
        else f"{name} {_number(min(value))} to {_number(max(value))}"
        for name, value in metrics.items()
        if not isinstance(value, list) or value
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

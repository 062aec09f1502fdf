"""What failed, and whether it is tried again; and what a person should hear of."""

from __future__ import annotations

from gridml.errors import UserCodeError
from gridml.protocol.messages import Failure
from master.decisions.staffing import after_failure
from master.leases.leases import Leases
from master.records import LeaseState
from master.store.ledger import Ledger
from master.store.rundir import command


class Failures:
    """Failures of f, of g and of replicas. Methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger, leases: Leases) -> None:
        self._ledger = ledger
        self._leases = leases
        self.news: list[tuple[str, str]] = []  # (topic, text) of events that a person was not told of yet
        self.stop_because: UserCodeError | None = None  # the user's code failed too often

    def take_news(self) -> list[tuple[str, str]]:
        """Return the news since this was last asked."""
        news, self.news = self.news, []
        return news

    def stop(self, error: UserCodeError) -> None:
        """End the run at the next turn."""
        self.stop_because = self.stop_because or error

    def record(self, lease: LeaseState, failure: Failure, now: float) -> None:
        """Give the range of a lease to another worker, or stop the run."""
        self._ledger.add_failure(lease.worker, lease.epoch, failure, now)
        again, reason = after_failure(lease.tries + 1)
        self._leases.end(lease, now, failure.message, failed=True)
        chunk = f"chunk [{lease.start}, {lease.stop}) of epoch {lease.epoch + 1}"
        vertices = f"{self._leases.epochs.driver} {failure.first} to {failure.last} in "
        place = f"{vertices}{chunk}" if failure.first >= 0 else chunk
        self.say(now, "failure", f"{place}: {failure.message}; {reason}")
        if not again:
            resume = command("resume", self._ledger.path.parent)
            advice = f"Mend the program, then go on from the last credit: {resume}"
            self.stop(UserCodeError(f"{place} {reason}: {failure.message}\n{advice}", failure.traceback))

    def say(self, now: float, topic: str, text: str) -> None:
        """Write an event down, for people too."""
        self._ledger.event(now, topic, text)
        self.news.append((topic, text))

"""How many workers a run asks for: as many as are wanted, but no more than it is long enough for."""

from __future__ import annotations

from master.decisions.crowding import Length, worth_asking
from master.wiring import Parts

ALL = "--steps-each 0 asks for all"


class Asking:
    """Bounds the workers of one master's run where whole replicas are averaged, and tells of it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._reason = ""
        self._seen: tuple[int, int] | None = None  # asked for, wanted
        if parts.exchange.merger.averages:
            length = Length(parts.leases.epochs.total, parts.spec.program.update.window, parts.spec.settings.steps_each)
            parts.workers.useful, self._reason = worth_asking(length)

    def look(self, now: float) -> None:
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
                self._parts.journal.event(now, "asked", text, {"workers": workers.asked, "wanted": workers.wanted})

"""How many workers a run asks for: as many as are wanted, but no more than it is long enough for."""

from __future__ import annotations

from master.decisions.crowding import Length, worth_asking
from master.store.spec import RunSpec
from master.wiring import Parts

ALL = "--steps-each 0 asks for all"


def useful_workers(spec: RunSpec, total: int, *, averages: bool) -> tuple[int | None, str]:
    """Return how many workers a run over `total` vertices is long enough for, and why; None for any number, as where no
    replica is averaged as a whole."""
    if not averages:
        return None, ""
    return worth_asking(Length(total, spec.program.update.window, spec.settings.steps_each))


class Asking:
    """Bounds the workers of one master's run where whole replicas are averaged, and tells of it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._seen: tuple[int, int] | None = None  # asked for, wanted
        averages = parts.exchange.merger.averages
        parts.workers.useful, self._reason = useful_workers(parts.spec, parts.leases.epochs.total, averages=averages)

    def look(self) -> None:
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

"""Keeps the names that f logs under in a run, and who alone does so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gridml.protocol.attempts import job_of
from gridml.protocol.messages import Logged
from master.decisions.log_names import Loggers, admit
from master.store.ledger import Ledger


class LoggedNames:
    """The names of one run; methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._names: dict[str, Loggers] | None = None
        self._warned = False

    def admitted(self, worker: str, logged: Sequence[Logged], warn: Callable[[str], None]) -> Sequence[Logged]:
        """Return what is taken of a worker's push; the first time that anything is left out, `warn` is told."""
        if not logged:
            return logged
        if self._names is None:
            self._names = {
                name: frozenset(map(job_of, first)) & frozenset(map(job_of, last))
                for name, first, last in self._ledger.logged_names()
            }
        job, taken = job_of(worker), []
        for each in logged:
            admits, reason = admit(each.name, job, self._names)
            if admits:
                self._names[each.name] = self._names.get(each.name, frozenset([job])) & {job}
                taken.append(each)
            elif not self._warned:
                self._warned = True
                warn(f"{reason}; {each.name!r} and later ones are left out")
        return taken

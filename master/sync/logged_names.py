"""Which names of what f logs a run takes: the first of them, so that no worker can fill the ledger with names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gridml.protocol.messages import Logged
from master.store.ledger import Ledger

MOST_NAMES = 64  # of a run


class LoggedNames:
    """The names of one run; methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._names: set[str] | None = None
        self._warned = False

    def admitted(self, logged: Sequence[Logged], warn: Callable[[str], None]) -> Sequence[Logged]:
        """Return what of a push's is taken; the first time that anything is left out, `warn` is told."""
        if not logged:
            return logged
        if self._names is None:
            self._names = self._ledger.logged_names()
        taken = []
        for each in logged:
            if each.name in self._names or len(self._names) < MOST_NAMES:
                self._names.add(each.name)
                taken.append(each)
            elif not self._warned:
                self._warned = True
                warn(f"f logs under more than {MOST_NAMES} names; {each.name!r} and later ones are left out")
        return taken

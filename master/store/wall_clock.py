"""The wall's clock beside the master's own: durations go by the latter, which nobody sets; other processes read the
former."""

from __future__ import annotations

from collections.abc import Callable

from master.store.journal import Events
from master.store.ledger import Ledger

AHEAD = "clock_ahead_s"  # a fact of the run: seconds by which the ledger's times are ahead of the wall's clock
NOTICED_S = 1.0  # a clock that is not set strays by less between two looks


def set_by(ahead_s: float, before_s: float) -> tuple[float, str]:
    """Return (seconds by which the wall's clock was set forward, 0 where it was not; that in words).

    `ahead_s` is how far the master's own clock is ahead of it, `before_s` how far it was at the last look.
    """
    forward_s = before_s - ahead_s
    if abs(forward_s) < NOTICED_S:
        return 0.0, "it was not set"
    if forward_s < 0:
        return forward_s, f"this machine's clock was set back by {-forward_s:,.0f} s; durations are not"
    return forward_s, f"this machine's clock was set forward by {forward_s:,.0f} s, or it slept; durations are not"


class WallClock:
    """Tells the ledger how far its times are from the wall's clock, so that whoever reads it knows what time it is
    there."""

    def __init__(self, wall: Callable[[], float], ledger: Ledger, events: Events) -> None:
        self._wall = wall
        self._ledger = ledger
        self._events = events
        self._ahead_s: float | None = None  # of this master's last look

    def look(self, now: float) -> None:
        """Write down how far the wall's clock is away where that has changed."""
        ahead_s = now - self._wall()
        if self._ahead_s is not None:
            forward_s, what = set_by(ahead_s, self._ahead_s)
            if not forward_s:
                return
            with self._ledger.transaction():
                self._ledger.set(AHEAD, ahead_s)
                self._events.record("warning", {"forward_s": forward_s}, what, standing=True)
        elif set_by(ahead_s, self._ledger.get(AHEAD, 0.0))[0]:  # since the master before, or since the run was made
            with self._ledger.transaction():
                self._ledger.set(AHEAD, ahead_s)
        self._ahead_s = ahead_s

"""Whether EC2 is about to take this instance: its metadata service is asked every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ami.imds import Imds
from ami.words import Leave, Words


class Watch:
    """Says `Leave` once EC2 has given notice. A recommendation to move elsewhere is logged: it costs nothing to stay
    until the notice, which comes later or never."""

    def __init__(self, imds: Imds, words: Words, log: Callable[[str], None]) -> None:
        self._imds = imds
        self._words = words
        self._log = log
        self._rebalance: str | None = None
        self._trouble = ""

    def look(self) -> bool:
        """Ask once; return whether EC2 takes this instance. Raises OSError."""
        interruption = self._imds.interruption()
        if interruption is not None:
            self._words.say(Leave(f"spot interruption: {interruption.action} at {interruption.time}", evicted=True))
            return True
        rebalance = self._imds.rebalance()
        if rebalance != self._rebalance:
            self._rebalance = rebalance
            self._log(f"EC2 recommends to move elsewhere, since {rebalance}")
        return False

    def begin(self, every_s: float) -> None:
        """Ask every so many seconds from now on, on a thread that ends with the process, or with the notice."""
        threading.Thread(target=self._go_on, args=(every_s,), daemon=True, name="watch").start()

    def _go_on(self, every_s: float) -> None:
        never = threading.Event()
        while not self._looked():
            never.wait(every_s)

    def _looked(self) -> bool:
        try:
            taken, trouble = self.look(), ""
        except OSError as error:
            taken, trouble = False, str(error)
        if trouble != self._trouble:
            self._log(f"the metadata service: {trouble or 'answers again'}")
            self._trouble = trouble
        return taken

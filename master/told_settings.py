"""Events about the settings that workers train with in place of the program's own: one as a run begins, and another
where a number of workers with other settings trains for a while."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gridml.engine.pace import MOST_PARTS
from gridml.engine.used_settings import ProgramSettings, UsedSettings, schedule_name, settings_of, used_settings
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.run_facts import TOLD_SETTINGS
from master.wiring import Parts

MIN_USED_S = 60.0  # that other settings are used before they are worth a line,
MIN_SHARE = 0.1  # of the time in which any worker trained


def tell_settings(program: ProgramSettings, workers: int, ledger: Ledger, events: Events) -> None:
    """Log what each of so many workers trains with, unless it was logged last, or there is nothing to change: neither a
    batch to share nor a rate. Must be called inside the ledger's transaction."""
    if not program.has_any:
        return
    used, text = used_settings(program, workers)
    told: list[dict[str, Any]] = ledger.get(TOLD_SETTINGS, [])
    if told and told[-1]["text"] == text:
        return
    facts = {
        "workers": workers,
        "batch": used.batch,
        "program_batch": program.batch or 1,
        "accumulate": program.accumulate,
        "rate_factor": used.rate_factor,
        "program_rates": None if program.rates is None else list(program.rates),
        "schedule": schedule_name(program.schedule),
    }
    others = [each for each in told if each["batch"] != used.batch]
    ledger.set(TOLD_SETTINGS, [*others, {"batch": used.batch, "text": text}][-MOST_PARTS:])
    events.record("training", facts, text)


def is_worth_a_line(used: UsedSettings, told: Collection[int], used_s: float, all_s: float) -> tuple[bool, str]:
    """Return whether to log settings that were used for `used_s` of `all_s`, and why; batches of the sizes `told` were
    logged before. So there are at most as many lines as a batch has parts, however often workers come and go."""
    if used.batch in told:
        return False, f"a batch of {used.batch:,} was logged before"
    if used_s < max(MIN_USED_S, MIN_SHARE * all_s):
        return False, f"it was used for {used_s:.0f} of {all_s:.0f} s"
    return True, f"a batch of {used.batch:,} was used for {used_s:.0f} of {all_s:.0f} s, and was not logged"


class ToldSettings:
    """Tells of the settings of one master's run, where they are others than were told last."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._program = settings_of(parts.spec.program)
        self._asked = 0
        self._told: set[int] = set()  # batches
        self._used_s: dict[int, float] = {}  # for how long each batch was used
        self._looked_s: float | None = None
        self._used: UsedSettings | None = None  # since then; None: nobody trained

    def look(self, now: float) -> None:
        """Log what the workers use that are asked for, and what others do that have trained for a while."""
        if not self._program.has_any:
            return
        if (asked := self._parts.workers.asked) != self._asked:
            self._asked = asked
            self._tell(asked)
        live, before = self._parts.leases.live, self._used
        if before is not None and self._looked_s is not None:
            passed_s = max(0.0, now - self._looked_s)
            self._used_s[before.batch] = self._used_s.get(before.batch, 0.0) + passed_s
        self._looked_s = now
        if before is None or live != before.workers:
            self._used = used_settings(self._program, live)[0] if live else None
        if before is not None:
            of_all = self._used_s[before.batch], sum(self._used_s.values())
            if is_worth_a_line(before, self._told, *of_all)[0]:
                self._tell(before.workers)

    def _tell(self, workers: int) -> None:
        ledger = self._parts.store.ledger
        with ledger.transaction():
            tell_settings(self._program, workers, ledger, self._parts.events)
        self._told = {each["batch"] for each in ledger.get(TOLD_SETTINGS)}

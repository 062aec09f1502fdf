"""Failure policy: retries of a range, pauses of workers, rests of machines, and failed devices.

A range fails if f, the program's update function, raises an error there. The policy decides whether the range is
retried, and by which workers. A worker pauses after a failure: it gets no lease for a while. A machine rests: no worker
may start on it. If different workers fail on one range (on different machines, if the run has several), the program is
at fault. Otherwise the worker and its machine are at fault. Failures count as strikes against both. A machine also gets
strikes when a worker on it is given up, whatever the reason.

A device fails with a GPU error, or because its memory is exhausted. No vertex causes such a failure, so it does not
count against the range. Other workers try the range, because a program that fails on every device looks at first like
one failed device. If no worker succeeds, the run ends with the device's error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

# The run ends if this many different workers have failed on one range, or if this many tries have failed and no other
# worker can take the range.
MAX_TRIES = 3
# The bound on tries while other workers wait for a machine. With the pauses between them, these tries take a minute.
MAX_TRIES_WHILE_QUEUED = 9
# Pause of a worker after its first failure, and its longest pause. The pause doubles with each failure in a row.
MIN_PAUSE_S, MAX_PAUSE_S = 0.25, 300.0
# A worker with fewer strikes counts as ready to retry a range even in its pause, because this pause ends soon.
AVOID_AFTER = 2
# A process is replaced after this many failures in a row. A machine gets a long rest after this many strikes. With the
# pauses between them, this many failures take a minute.
MAX_FAILURES = 8
# Long rest of a machine, which follows its pause. The rest is limited, because a full disk can be cleaned up.
LONG_REST_S = 3600.0
# Rest of an unfit machine, which lacks disk, memory or a processor feature that the program needs; doubles each time.
MIN_UNFIT_REST_S, MAX_UNFIT_REST_S = 30.0, 3600.0
# Strikes against a machine for each of its workers that was given up for what it sent.
DISTRUST_STRIKES = 2


class GiveUpReason(StrEnum):
    """Reason to give up a worker; its value is the topic of the event that records it."""

    SILENCE = "silent"
    STUCK = "stuck"
    FAILURES = "replaced"
    MALFORMED = "given up"
    FLAGGED = "quarantine"

    @property
    def is_distrust(self) -> bool:
        """True if the reason is what the worker sent. A credit clears a machine's failures, but not such strikes."""
        return self in (GiveUpReason.MALFORMED, GiveUpReason.FLAGGED)


class Candidate(NamedTuple):
    """A worker that could be leased a range."""

    worker: str
    machine: str  #: "" if unknown
    proven: bool = False  #: it has trained something, and has not failed since


class Failed(NamedTuple):
    """A failure of f on a range."""

    worker: str
    machine: str
    upto: int  #: the failing vertex is before this position; a credit up to this position refutes the failure
    proven: bool = False  #: the worker was proven (see `Candidate`) before this failure


def open_failures(failed: Sequence[Failed], upto: int) -> tuple[Failed, ...]:
    """Return the failures on a range that no credit has refuted. The range is credited up to `upto`, or begins at
    `upto`."""
    return tuple(failure for failure in failed if failure.upto > upto) if failed else ()


def may_lease(failed: Sequence[Failed], worker: Candidate, ready: Callable[[], Iterable[Candidate]]) -> bool:
    """Return whether a worker may be leased a range on which workers `failed`.

    A worker gets a range on which it has failed only if no other worker that is `ready` can take the range. Once
    `MAX_TRIES` workers have failed on a range, the next failure can end the run. From then on, an unproven worker gets
    the range only if no proven worker can take it.
    """
    own = any(failure.worker == worker.worker or failure.machine == worker.machine for failure in failed)
    if not own and len(failed) < MAX_TRIES:
        return True  # the usual case, without a pass over all workers
    others = [*ready()]
    key = _identity(failed, [worker, *others])
    tried = {key(failure) for failure in failed}
    if key(worker) in tried:
        return not _untried(failed, others)
    return worker.proven or len(tried) < MAX_TRIES or not any(other.proven for other in _untried(failed, others))


def after_failure(failed: Sequence[Failed], ready: Collection[Candidate], *, queued: bool) -> tuple[bool, str]:
    """Return whether to retry a range after its newest failure, and the reason.

    `failed` are the failures on the range, the newest last. `ready` are the workers that can take the range. `queued`
    is True if other workers wait for a machine.
    """
    key, untried = _identity(failed, ready), _untried(failed, ready)
    workers, tries = len({key(failure) for failure in failed}), len(failed)
    if workers >= MAX_TRIES:
        # The run ends only if a proven worker has failed, too, or no proven worker is left to try. Bad machines are
        # idle most of the time, so their workers are the first to take a range that is left over.
        if any(failure.proven for failure in failed) or not any(other.proven for other in untried):
            return False, f"failed {tries} times, by {workers} workers"
        return True, f"{workers} workers failed on it, none of which has trained anything yet; another worker will try"
    if untried:
        return True, f"{workers} of {MAX_TRIES} workers failed on it; another worker will try"
    most = MAX_TRIES_WHILE_QUEUED if queued else MAX_TRIES
    if tries < most:
        waiting = ", but others wait for a machine" if queued else ""
        return True, f"try {tries} of {most} failed; no other worker can take it{waiting}"
    return False, f"failed {tries} times, and no other worker can take it"


def strikes(failures: int, distrusted: int) -> int:
    """Return the strikes against a worker or a machine: one for each of its failures in a row, and `DISTRUST_STRIKES`
    for each of `distrusted` workers, which ran on the machine and were given up for what they sent."""
    return failures + DISTRUST_STRIKES * distrusted


def pause(failures: int, distrusted: int = 0) -> tuple[float, str]:
    """Return the seconds of the pause after these strikes, and the reason. In the pause the worker gets no lease, and
    no worker starts on its machine."""
    against, why = strikes(failures, distrusted), []
    if failures or not distrusted:
        why.append(f"failed {failures} times in a row")
    if distrusted:
        why.append(f"{distrusted} workers of its machine given up for what they sent")
    # The exponent is bounded, because 2.0**1024 raises OverflowError.
    seconds = min(MAX_PAUSE_S, MIN_PAUSE_S * 2.0 ** min(against - 1, 60)) if against else 0.0
    longer = long_rest_s(failures, distrusted)
    for_long = "" if math.isinf(longer) else f" for {longer / 60:g} minutes"
    rests = f", and no worker there{for_long} while others work elsewhere" if longer else ""
    return seconds, f"{', '.join(why)}; no lease for {seconds:g} s{rests}"


def rest_of_unfit_machine(times: int) -> tuple[float, str]:
    """Return the seconds of rest for a machine that was unfit this many times in a row, and the reason. The machine is
    retried, because a full disk can be cleaned up, but ever more rarely, because a processor does not change."""
    seconds = min(MAX_UNFIT_REST_S, MIN_UNFIT_REST_S * 2.0 ** min(max(times, 1) - 1, 60))
    return seconds, f"its machine lacks something; no worker there for {seconds:g} s"


def long_rest_s(failures: int, distrusted: int) -> float:
    """Return the seconds that a machine with these strikes rests after its pause, while workers on other machines work.
    The result is infinite if workers on the machine were given up for what they sent."""
    if strikes(failures, distrusted) < MAX_FAILURES:
        return 0.0
    return math.inf if distrusted else LONG_REST_S


def should_replace(in_a_row: int, *, others_work: bool) -> tuple[bool, str]:
    """Return whether to replace a process after this many failures in a row, and the reason. It is not replaced if no
    other worker succeeds, because a new process is then unlikely to succeed either."""
    if in_a_row >= MAX_FAILURES and others_work:
        return True, f"failed {in_a_row} times in a row while others succeed"
    return False, "it may try again" if others_work else "no worker does better"


def is_resting(until_s: float, now: float, longer_s: float, others_work: Callable[[], bool]) -> tuple[bool, str]:
    """Return whether no worker may start on a machine, and the reason.

    A machine rests in its pause, which lasts until `until_s`. It then rests for another `longer_s` while workers on
    other machines work. If no other worker works, the machine is retried after each pause.
    """
    if now < until_s:
        return True, f"no worker starts there for {until_s - now:.3g} s"
    left_s = until_s + longer_s - now
    if left_s > 0 and others_work():
        how_long = "" if math.isinf(left_s) else f" for {left_s:.3g} s"
        return True, f"no worker starts there{how_long} while others work elsewhere"
    return False, "it may try again"


def after_give_up(against: int, *, credited: bool, others_run: bool) -> tuple[bool, str]:
    """Return whether a run continues after a worker was given up, and the reason. `against` is the present number of
    strikes against the worker's machine. `credited` is True if the worker has trained something, `others_run` if a
    worker runs on a machine with few strikes."""
    if against >= MAX_FAILURES and not credited and not others_run:
        return False, "one worker after another is given up, nothing is credited, and no machine does better"
    return True, "others run" if others_run else "it may try again"


def _identity(failed: Iterable[Failed], ready: Iterable[Candidate]) -> Callable[[Candidate | Failed], str]:
    """Return the key by which failures are counted: the machine if several machines are involved, else the worker."""
    several = len({failure.machine for failure in failed} | {candidate.machine for candidate in ready}) > 1
    return lambda party: (several and party.machine) or party.worker


def _untried(failed: Sequence[Failed], ready: Collection[Candidate]) -> list[Candidate]:
    """Return the ready workers that have not failed on a range."""
    key = _identity(failed, ready)
    tried = {key(failure) for failure in failed}
    return [candidate for candidate in ready if key(candidate) not in tried]


# Rest of a machine whose device failed; doubles each time.
MIN_DEVICE_REST_S, MAX_DEVICE_REST_S = 5.0, 3600.0


def rest_of_device(times: int) -> tuple[float, str]:
    """Return the seconds of rest for a machine whose device failed this many times in a row, and the reason. The first
    rests are short, because other processes may soon free their memory; the last rests are long, because a GPU that has
    fallen off its bus will not be back within the hour."""
    seconds = min(MAX_DEVICE_REST_S, MIN_DEVICE_REST_S * 2.0 ** min(max(times, 1) - 1, 60))
    often = "failed" if times <= 1 else f"failed {times} times in a row"
    return seconds, f"its device {often}; no worker there for {seconds:g} s"


def after_device_failure(in_a_row: int, *, others_work: bool) -> tuple[bool, str]:
    """Return whether a run continues, and the reason, after the devices of `in_a_row` workers have failed without a
    credit in between. `others_work` is True if another worker trains."""
    if others_work:
        return True, "other workers train"
    if in_a_row < MAX_TRIES:
        return True, f"{in_a_row} of {MAX_TRIES} tries failed"
    return False, f"the devices of {in_a_row} workers failed one after another, and nothing was credited in between"


@dataclass(slots=True)
class MachineRecord:
    """Strikes against a machine. Its field names are those of its ledger row."""

    name: str
    failures: int = 0  #: failures in a row, over successive workers; a credit clears them
    distrusted: int = 0  #: workers that were given up for what they sent; a credit does not clear this number
    avoided_until_s: float = 0.0  #: workers on it get no lease before this time of the run's clock
    reason: str = ""  #: reason of the last strike

    @property
    def strikes(self) -> int:
        return strikes(self.failures, self.distrusted)

    @property
    def long_rest_s(self) -> float:
        """Seconds that the machine rests after its pause, while others work elsewhere."""
        return long_rest_s(self.failures, self.distrusted)


class MachineTable:
    """Machines with strikes. Holds no machine without a name, and none without strikes."""

    def __init__(self) -> None:
        self._machines: dict[str, MachineRecord] = {}  # by name

    def __iter__(self) -> Iterator[MachineRecord]:
        return iter(self._machines.values())

    def get(self, name: str) -> MachineRecord | None:
        """Return the record of a machine; None if it has no strikes."""
        return self._machines.get(name)

    def put(self, machine: MachineRecord) -> None:
        """Add or replace a record."""
        self._machines[machine.name] = machine

    def clear_failures(self, name: str) -> MachineRecord | None:
        """Clear the failures of a machine; return its record, None if it has no strikes left."""
        machine = self._machines.get(name)
        if machine is not None:
            machine.failures = 0
            if not machine.distrusted:
                del self._machines[name]
                return None
        return machine

    def clear(self) -> None:
        """Remove all records."""
        self._machines.clear()

    def restore(self, row: Mapping[str, Any], now: float) -> None:
        """Restore a record from its ledger row."""
        machine = MachineRecord(**row)
        if machine.strikes >= MAX_FAILURES:
            # A new master does not yet know whether workers on other machines work. Without a new pause, it would end
            # the long rest at once.
            machine.avoided_until_s = now + pause(machine.failures, machine.distrusted)[0]
        self.put(machine)

    def resting(self, now: float, others_work: Callable[[str], bool]) -> frozenset[str]:
        """Return the machines on which no worker may start now. `others_work` returns whether a worker succeeds on any
        machine except the given one."""
        return frozenset(
            machine.name
            for machine in self
            if is_resting(machine.avoided_until_s, now, machine.long_rest_s, partial(others_work, machine.name))[0]
        )


class Alteration(StrEnum):
    """Ways in which a push was not merged as sent. Counted by worker."""

    SHORTENED = "shortened"  # merged, but the gate's bound on the length of steps shortened some steps
    CLIPPED = "clipped"  # merged, but the merge rule's own bound shortened a step
    LEFT_OUT = "left out"  # merged without a tensor that only its worker changes, or without rejected moments
    UNREADABLE = "unreadable"  # not merged: the message was damaged or malformed; it may have contained no push
    REFUSED = "refused"  # not merged; its range is trained again, unless another worker was credited for it

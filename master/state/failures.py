"""The policy for failures: retries of a range, pauses of workers, rest of machines, and failed devices.

It decides whether a range on which f failed is tried again, and by which workers; how long a worker that fails is
left without work; and when its machine is to rest. The program is at fault where different workers fail on one
range, on different machines where the run has several. Otherwise the worker is, and its machine with it: every
reason to give up a worker counts against its machine, too.

A device fails with a GPU error, or when its memory runs out. The vertices are not to blame, so nothing counts
against their range. A device that fails cannot be distinguished from a program that fails on every device at once:
so others try, and where none does better the run ends with the device's error.

`MachineTable` holds what counts against the machines of a run and which of them are to rest. `Altered` says what
became of a push that was not taken as it came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

MAX_TRIES = 3  # different workers whose failures on a range end the run; tries, where there are not so many
TRIES_MEANWHILE = 9  # tries of those that run while others wait for a machine: by their pauses, a minute
PAUSE_S, MAX_PAUSE_S = 0.25, 300.0  # without a lease after a failure, doubled by each further one in a row
AVOIDED = 2  # failures in a row from which on nobody waits for a worker's own try
MAX_FAILURES = 8  # in a row, of one process or on one machine: by their pauses, a minute
LONG_REST_S = 3600.0  # that a machine with so many rests after its pause while others work: disks are made room on
LACKING_S, LONGEST_LACKING_S = 30.0, 3600.0  # without a worker on a machine that lacks something, doubled as above
DISTRUST = 2  # failures that a worker counts for which was given up for what it sent


class GiveUpReason(StrEnum):
    """What a worker is given up for; the topic of the event that says so."""

    SILENCE = "silent"
    NO_HEADWAY = "stuck"
    FAILURES = "replaced"
    NONSENSE = "given up"
    FLAGGED = "quarantine"

    @property
    def distrusted(self) -> bool:
        """Whether it was for what the worker sent: work of its machine makes up for failures, and not for this."""
        return self in (GiveUpReason.NONSENSE, GiveUpReason.FLAGGED)


class Candidate(NamedTuple):
    """A worker that might be leased a range, and its machine; "" where nobody can say which. It is `proven` if it has
    trained something, and failed at nothing since."""

    worker: str
    machine: str
    proven: bool = False


class Failed(NamedTuple):
    """A failure of f on a range, on a vertex before position `upto`: once that is credited, the worker was wrong. It
    had been `proven` before, or not."""

    worker: str
    machine: str
    upto: int
    proven: bool = False


def open_failures(failed: Sequence[Failed], upto: int) -> tuple[Failed, ...]:
    """The failures on a range that still stand when it is credited up to a position, or begins there."""
    return tuple(failure for failure in failed if failure.upto > upto) if failed else ()


def may_lease(failed: Sequence[Failed], worker: Candidate, ready: Callable[[], Iterable[Candidate]]) -> bool:
    """Whether a worker may be leased a range: one that it failed on only when nobody that is `ready` might take it, and
    one that as many failed on as end a run only when it is proven, or nobody that might take it is."""
    own = any(failure.worker == worker.worker or failure.machine == worker.machine for failure in failed)
    if not own and len(failed) < MAX_TRIES:
        return True
    others = [*ready()]
    who = _identity(failed, [worker, *others])
    tried = {who(failure) for failure in failed}
    if who(worker) in tried:
        return not _untried(failed, others)
    return worker.proven or len(tried) < MAX_TRIES or not any(other.proven for other in _untried(failed, others))


def after_failure(failed: Sequence[Failed], ready: Collection[Candidate], *, queued: bool) -> tuple[bool, str]:
    """Whether a range is tried again on which f `failed` so, the last time just now. `ready` are the workers that might
    take it, and whether more are `queued` for a machine.

    Of those that fail on it one must be proven, or nobody else: bad machines have the most time to try what is left.
    """
    who, untried = _identity(failed, ready), _untried(failed, ready)
    workers, tries = len({who(failure) for failure in failed}), len(failed)
    if workers >= MAX_TRIES:
        if any(failure.proven for failure in failed) or not any(other.proven for other in untried):
            return False, f"failed {tries} times, by {workers} workers"
        return True, f"{workers} workers failed on it that have trained nothing; another worker will try that has"
    if untried:
        return True, f"{workers} of {MAX_TRIES} workers failed on it; another worker will try"
    most = TRIES_MEANWHILE if queued else MAX_TRIES
    if tries < most:
        waiting = ", but others wait for a machine" if queued else ""
        return True, f"try {tries} of {most} failed; nobody else might take it{waiting}"
    return False, f"failed {tries} times, and nobody else might take it"


def strikes(failures: int, distrusted: int) -> int:
    """What counts against a worker or a machine, in failures: those in a row, and the workers that were given up there
    for what they sent."""
    return failures + DISTRUST * distrusted


def pause(failures: int, distrusted: int = 0) -> tuple[float, str]:
    """Seconds without a lease for a worker, and without a worker for its machine, against which so much counts."""
    against, why = strikes(failures, distrusted), []
    if failures or not distrusted:
        why.append(f"failed {failures} times in a row")
    if distrusted:
        why.append(f"of its machine's workers {distrusted} given up for what they sent")
    seconds = min(MAX_PAUSE_S, PAUSE_S * 2.0 ** min(against - 1, 60)) if against else 0.0
    longer = long_rest_s(failures, distrusted)
    for_long = "" if math.isinf(longer) else f" for {longer / 60:g} minutes"
    rests = f", and no worker there{for_long} while others work elsewhere" if longer else ""
    return seconds, f"{', '.join(why)}; no lease for {seconds:g} s{rests}"


def pause_of_lacking(times: int) -> tuple[float, str]:
    """Seconds without a worker for a machine that lacked something so many times in a row: a full disk may be made room
    on, a processor stays what it is."""
    seconds = min(LONGEST_LACKING_S, LACKING_S * 2.0 ** min(max(times, 1) - 1, 60))
    return seconds, f"its machine lacks something; no worker there for {seconds:g} s"


def long_rest_s(failures: int, distrusted: int) -> float:
    """How long after its pause a machine rests on while others work elsewhere: for good if that is for what its workers
    sent."""
    if strikes(failures, distrusted) < MAX_FAILURES:
        return 0.0
    return math.inf if distrusted else LONG_REST_S


def replaceable(in_a_row: int, *, others_work: bool) -> tuple[bool, str]:
    """Whether a process that failed so often in a row is given up for another one: not while nobody does better."""
    if in_a_row >= MAX_FAILURES and others_work:
        return True, f"failed {in_a_row} times in a row on what others do"
    return False, "it may try again" if others_work else "nobody does better"


def rests(avoided_until_s: float, now: float, longer_s: float, others_work: Callable[[], bool]) -> tuple[bool, str]:
    """Whether no worker is to start on a machine: in its pause, and for `longer_s` after it while others work
    elsewhere. Alone it is tried again after each pause."""
    if now < avoided_until_s:
        return True, f"no worker starts there for {avoided_until_s - now:.3g} s"
    left_s = avoided_until_s + longer_s - now
    if left_s > 0 and others_work():
        how_long = "any more" if math.isinf(left_s) else f"for {left_s:.3g} s"
        return True, f"no worker starts there {how_long}, while others work elsewhere"
    return False, "it may try again"


def after_give_up(against: int, *, credited: bool, others_run: bool) -> tuple[bool, str]:
    """Whether a run goes on after a worker was given up, `credited` with something or not, on a machine `against` which
    so much counts now. Where nobody runs against whom less counts, and nothing comes of the tries, there is no use in
    more of them."""
    if against >= MAX_FAILURES and not credited and not others_run:
        return False, "one worker after the other is given up, brings nothing, and no machine does better"
    return True, "others run" if others_run else "it may try again"


def _identity(failed: Iterable[Failed], ready: Iterable[Candidate]) -> Callable[[Candidate | Failed], str]:
    """What tells those that fail apart: their machines where there are several, else their names."""
    several = len({failure.machine for failure in failed} | {candidate.machine for candidate in ready}) > 1
    return lambda who: (several and who.machine) or who.worker


def _untried(failed: Sequence[Failed], ready: Collection[Candidate]) -> list[Candidate]:
    """Those that are ready and have not failed on a range."""
    who = _identity(failed, ready)
    tried = {who(failure) for failure in failed}
    return [candidate for candidate in ready if who(candidate) not in tried]


REST_S, LONGEST_REST_S = 5.0, 3600.0  # without a worker on a machine whose device failed, doubled by each in a row


def rest_of_device(times: int) -> tuple[float, str]:
    """Seconds without a worker for a machine whose device failed so many times in a row, and why: memory that others
    hold is given back soon, and a GPU that has fallen off its bus is not mended within the hour."""
    seconds = min(LONGEST_REST_S, REST_S * 2.0 ** min(max(times, 1) - 1, 60))
    often = "failed" if times <= 1 else f"failed {times} times in a row"
    return seconds, f"its device {often}; no worker there for {seconds:g} s"


def after_device_failure(in_a_row: int, *, others_work: bool) -> tuple[bool, str]:
    """Whether a run goes on when the devices of so many workers have failed one after the other, with nothing credited
    in between. `others_work` says whether anybody else trains meanwhile."""
    if others_work:
        return True, "others train meanwhile"
    if in_a_row < MAX_TRIES:
        return True, f"{in_a_row} of {MAX_TRIES} tries failed"
    return False, f"the devices of {in_a_row} workers failed one after the other, and nothing was credited in between"


@dataclass(slots=True)
class MachineRecord:
    """What counts against a machine: failures in a row of the workers there, one after the other, and how many were
    given up for what they sent, which no credit makes up for. What comes there gets no lease before `avoided_until_s`,
    seconds of the run's clock, because of `reason`."""

    name: str
    failures: int = 0
    distrusted: int = 0
    avoided_until_s: float = 0.0
    reason: str = ""

    @property
    def strikes(self) -> int:
        """What its pause follows."""
        return strikes(self.failures, self.distrusted)

    @property
    def long_rest_s(self) -> float:
        """How long it rests after its pause while others work elsewhere."""
        return long_rest_s(self.failures, self.distrusted)


class MachineTable:
    """The machines that something counts against, by name. Machines without a name are not in it."""

    def __init__(self) -> None:
        self._machines: dict[str, MachineRecord] = {}

    def __iter__(self) -> Iterator[MachineRecord]:
        return iter(self._machines.values())

    def get(self, name: str) -> MachineRecord | None:
        """Return what counts against a machine, None where nothing does."""
        return self._machines.get(name)

    def put(self, machine: MachineRecord) -> None:
        """Have something count against a machine."""
        self._machines[machine.name] = machine

    def forgive(self, name: str) -> MachineRecord | None:
        """Forget the failures of a machine; return what still counts against it, None where nothing does."""
        machine = self._machines.get(name)
        if machine is not None:
            machine.failures = 0
            if not machine.distrusted:
                del self._machines[name]
                return None
        return machine

    def clear(self) -> None:
        """Let every machine begin anew."""
        self._machines.clear()

    def recall(self, row: Mapping[str, Any], now: float) -> None:
        """Take up what counts against a machine, as its ledger row has it. The pause of one that rests for long
        begins anew: whether others work is not seen at once."""
        machine = MachineRecord(**row)
        if machine.strikes >= MAX_FAILURES:
            machine.avoided_until_s = now + pause(machine.failures, machine.distrusted)[0]
        self.put(machine)

    def resting(self, now: float, others_work: Callable[[str], bool]) -> frozenset[str]:
        """The machines on which no worker is to start now. `others_work` says whether any works elsewhere than on a
        machine."""
        return frozenset(
            machine.name
            for machine in self
            if rests(machine.avoided_until_s, now, machine.long_rest_s, partial(others_work, machine.name))[0]
        )


class Altered(StrEnum):
    """How a push was not taken as it came; each is counted, by worker."""

    SHORTENED = "shortened"  # merged with shorter steps: the gate's bound on lengths
    CLIPPED = "clipped"  # merged by a rule that bounds steps itself, which took less of one
    LEFT_OUT = "left out"  # merged, but for a tensor that its worker alone changes, or optimiser moments that are odd
    REFUSED = "refused"  # not merged; trained again, unless somebody else was credited for it

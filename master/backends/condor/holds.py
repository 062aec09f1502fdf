"""HTCondor's reasons for holding or refusing a job, and the advice for each; memory requests and time limits.

The codes of a hold are translated into what it says for the job and what a person can do: text in, text out. The
same goes for a job that is refused, or matched by no machine. Why no job runs is asked of HTCondor once, beside the
run's loop: in a large pool the answer takes a while.

Memory is asked for as `2GB`, or as `1GB..4GB`, of which the most is asked for only when less was too little. How
long a job may run before its pool ends or holds it is read from its ad, after the schedd has taken it.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.errors import UsageError
from gridml.protocol.foreign import printable
from master.state.jobs import HeldFor

SUBCODES = {102: "memory", 104: "disk"}
"""By HoldReasonSubCode of codes 21, 26 and 34: what a job used more of than it asked for (the pool's own policies,
`condor_config_val use POLICY:HOLD_IF_MEMORY_EXCEEDED`)."""
_CODE = re.compile(r"\(code (\d+)\)")


_CODES: Mapping[int, tuple[HeldFor, str]] = {
    1: (HeldFor.PERSON, "Somebody put it on hold."),
    3: (HeldFor.POLICY, "The job's own policy held it."),
    5: (HeldFor.ITSELF, "The job's own policy cannot be evaluated: see --attribute."),
    6: (
        HeldFor.TROUBLE,
        "It could not be started there: see what its machine lacks, or keep away from it with --requirements.",
    ),
    12: (HeldFor.TROUBLE, "Its output could not be brought back: see whether the run directory's disk is full."),
    13: (
        HeldFor.TROUBLE,
        "Its input could not be sent: see whether every file is there and can be read by you, and that the machine has "
        "the disk asked for with --request-disk.",
    ),
    14: (HeldFor.ITSELF, "The run directory cannot be entered on the access point."),
    21: (HeldFor.TROUBLE, "The machine refused it: its reason is above; keep away from it with --requirements."),
    26: (HeldFor.POLICY, "The pool's policy held it; its administrators know which."),
    32: (
        HeldFor.ITSELF,
        "What is sent with it is larger than the pool allows: send less (--send, --packed), or put large files where "
        "the pool caches them (a container image, OSDF).",
    ),
    33: (HeldFor.ITSELF, "Its output is larger than the pool allows."),
    34: (HeldFor.TROUBLE, "It used more than it asked for: raise --request-memory or --request-disk."),
    35: (
        HeldFor.TROUBLE,
        "The container image cannot be used there: see that --container-image exists and that you may read it.",
    ),
    46: (HeldFor.POLICY, "It ran longer than the pool allows: let jobs leave earlier with --job-hours."),
    47: (HeldFor.POLICY, "It ran longer than the pool allows: let jobs leave earlier with --job-hours."),
}
"""By HoldReasonCode (HTCondor manual, "Job ClassAd attributes"): why, and the advice."""


def held_for(facts: Mapping[str, Any]) -> HeldFor:
    """Return why a job is held, from the event in the log. A code that nobody knows is taken to be of its machine."""
    code, subcode = (facts.get(name, 0) for name in ("HoldReasonCode", "HoldReasonSubCode"))
    if code in (21, 26, 34):
        reason = str(facts.get("HoldReason") or facts.get("Reason") or "").lower()
        what = SUBCODES.get(subcode) or next((what for what in SUBCODES.values() if what in reason), None)
        if what is not None:
            return HeldFor.MEMORY if what == "memory" else HeldFor.ITSELF
    return _CODES[code][0] if code in _CODES else HeldFor.TROUBLE


def about_hold(detail: str) -> str:
    """Return what a person can do about a hold whose reason has its code, as `(code 13)`; "" where nothing is known."""
    code = _CODE.search(detail)
    return _CODES[int(code[1])][1] if code and int(code[1]) in _CODES else ""


_LIMITS = {"-2": "MAX_JOBS_SUBMITTED", "-3": "MAX_JOBS_PER_OWNER", "-4": "MAX_JOBS_PER_SUBMISSION"}
"""What the schedd says instead of a job's number (HTCondor 25.14, condor_qmgr.h)."""
_LIMIT = re.compile(r"Schedd says (-\d+)")
_RULE = re.compile(r"SCHEDD:\d+:(.+)", re.DOTALL)
_DENIED = re.compile(r'"DENIED" from server for user (\S+)')
_CONDITION = re.compile(r"^\[\d+\]\s+(\d+)\s+(.+)$", re.MULTILINE)
_NOBODY = re.compile(r"^\s*0 slots match and are willing", re.MULTILINE)


def about_refusal(said: str) -> str | None:
    """Return why the schedd refused, and what to do, from what the bindings say; None where it did not answer."""
    if (limit := _LIMIT.search(said)) is not None:
        name = _LIMITS.get(limit[1], "a limit of the schedd")
        return f"more jobs than {name} allows: wait until others end, or ask for fewer with --workers and --max-idle"
    if (denied := _DENIED.search(said)) is not None:
        return f"{denied[1]} may not submit here: ask the pool's administrators"
    if (rule := _RULE.search(said)) is not None:
        return f"{rule[1].strip()} (a rule of the pool; --project and --attribute set what jobs say of themselves)"
    return None


def about_wait(analysis: str) -> str | None:
    """Return why no machine matches a job, from what `condor_q -better-analyze` prints; None where one may."""
    if not _NOBODY.search(analysis):
        return None
    unmet = [condition for matched, condition in _CONDITION.findall(analysis) if matched == "0"]
    why = f"no machine has: {'; '.join(unmet)}" if unmet else "no machine meets all their conditions at once"
    return f"no machine of the pool matches the jobs: {why}. Change --requirements, or ask for less with --request-..."


FILE = "condor.waiting"  # what condor_q -better-analyze said of the first job that waited long
WAIT_S = 20.0  # how long no job may run before it is looked into


class Analysis:
    """One question to `condor_q`, and its answer in file `FILE` of the run directory `root`."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._process: subprocess.Popen[bytes] | None = None
        self.due = True  # nobody has looked into it yet

    def begin(self, cluster: int, proc: int) -> None:
        """Ask why a job waits. Where there is no `condor_q` nobody hears: the bindings are enough for all else."""
        command = ["condor_q", "-better-analyze", f"{cluster}.{proc}"]
        try:
            with self._path.open("wb") as file:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
                )
        except OSError:
            pass

    def take(self) -> str | None:
        """Return, once, why no machine matches the job; None while there is no answer, or where one may."""
        if self._process is None or self._process.poll() is None:
            return None
        self._process = None
        return about_wait(self._path.read_text(errors="replace"))

    def close(self) -> None:
        """End the question. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


MORE = 2.0  # times what was too little is asked for next
ABOVE = 1.25  # times what a job was seen to use
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}  # as HTCondor reads them: no unit is MiB
_EXPECTED = "expected a size, as 2GB or 1500MB, or a range of two, as 1GB..4GB"


@dataclass(frozen=True)
class MemoryRange:
    """What a job asks for at first and at most, in MiB, whole numbers from 1."""

    first: int
    most: int


def memory_range(text: str) -> MemoryRange:
    """Return what `--request-memory` says. Raises UsageError for what is no size, or no range of sizes."""
    first, dots, most = text.partition("..")
    low = _mib(first, text)
    high = _mib(most, text) if dots else low
    if high < low:
        raise UsageError(f"--request-memory is {printable(text, 80)}: the second size is the smaller one; {_EXPECTED}.")
    return MemoryRange(low, high)


def _mib(size: str, text: str) -> int:
    match = _SIZE.fullmatch(size)
    mib = 0 if match is None else math.ceil(float(match[1]) * _MIB[match[2].upper()])
    if not 1 <= mib <= 2**40:
        raise UsageError(f"--request-memory is {printable(text, 80)}; {_EXPECTED}.")
    return mib


def next_request(too_little: int, used: int | None, most: int) -> tuple[int | None, str]:
    """Return the MiB to ask for after a job was held that asked for `too_little` and `used` so much as far as anybody
    has seen, None where that was the `most` already; and why."""
    if too_little >= most:
        return None, f"{too_little:,} MB were too little, and --request-memory allows no more"
    wanted = max(MORE * too_little, ABOVE * (used or 0))
    asked = min(most, math.ceil(wanted))
    seen = "" if used is None else f" ({used:,} MB were used)"
    return asked, f"{too_little:,} MB were too little{seen}: jobs ask for {asked:,} MB now, {most:,} at most"


COLUMNS = ("AllowedExecuteDuration", "AllowedJobDuration", "JobDurationCategory")
CATEGORY_HOURS = {"medium": 20.0, "long": 40.0}
"""What a job of a category may run at most on the OSPool (its documentation, "Indicate the Duration Category of Your
Jobs"), whose access points give each job one."""


def longest_s(ad: Mapping[str, Any], job_hours: float) -> float | None:
    """Return the seconds that one attempt of a job may run, None where nothing says so. `job_hours` is what the user
    says, 0: nothing."""
    limits = [float(ad[name]) for name in COLUMNS[:2] if isinstance(ad.get(name), int | float)]
    category = ad.get(COLUMNS[2])
    hours = CATEGORY_HOURS.get(category.lower()) if isinstance(category, str) else None
    limits += [3600.0 * limit for limit in (hours, job_hours) if limit]
    return min((limit for limit in limits if limit > 0), default=None)

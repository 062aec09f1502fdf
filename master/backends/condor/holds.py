"""Reasons why HTCondor holds, refuses or does not match a job, with advice; memory requests and time limits of jobs."""

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
"""The resource that exceeded the job's request, by HoldReasonSubCode. The subcode counts with the hold codes 21, 26 and
34. Policies of the pool set it, for example `use POLICY:HOLD_IF_MEMORY_EXCEEDED`."""
_CODE = re.compile(r"\(code (\d+)\)")


_CODES: Mapping[int, tuple[HeldFor, str]] = {
    1: (HeldFor.PERSON, "Somebody put it on hold."),
    3: (HeldFor.POLICY, "The job's own policy held it."),
    5: (HeldFor.JOB, "The job's own policy cannot be evaluated: see --attribute."),
    6: (
        HeldFor.TRANSIENT,
        "The job could not be started: see what its machine lacks, or exclude such machines with --requirements.",
    ),
    12: (HeldFor.TRANSIENT, "Its output could not be brought back: see whether the run directory's disk is full."),
    13: (
        HeldFor.TRANSIENT,
        "Its input could not be sent: see that every file exists and that you may read it, and that the machine has "
        "the disk asked for with --request-disk.",
    ),
    14: (HeldFor.JOB, "The run directory cannot be entered on the access point."),
    21: (
        HeldFor.TRANSIENT,
        "The machine refused the job for the reason above: exclude such machines with --requirements.",
    ),
    26: (HeldFor.POLICY, "A policy of the pool held it; the pool's administrators know which."),
    32: (
        HeldFor.JOB,
        "The files sent with the job are larger than the pool allows: send less (--send, --packed), or put large files "
        "where the pool caches them (a container image, OSDF).",
    ),
    33: (HeldFor.JOB, "Its output is larger than the pool allows."),
    34: (HeldFor.TRANSIENT, "It used more than it asked for: raise --request-memory or --request-disk."),
    35: (
        HeldFor.TRANSIENT,
        "The job's machine cannot use the container image: see that --container-image exists and that you may read it.",
    ),
    46: (HeldFor.POLICY, "It ran longer than the pool allows: let jobs leave earlier with --job-hours."),
    47: (HeldFor.POLICY, "It ran longer than the pool allows: let jobs leave earlier with --job-hours."),
}
"""(cause, advice) by HoldReasonCode (HTCondor manual, "Job ClassAd attributes")."""


def held_for(facts: Mapping[str, Any]) -> HeldFor:
    """Return the cause of a hold from the attributes of its log event. An unknown code counts as TRANSIENT."""
    code, subcode = (facts.get(name, 0) for name in ("HoldReasonCode", "HoldReasonSubCode"))
    if code in (21, 26, 34):
        reason = str(facts.get("HoldReason") or facts.get("Reason") or "").lower()
        what = SUBCODES.get(subcode) or next((what for what in SUBCODES.values() if what in reason), None)
        if what is not None:
            return HeldFor.MEMORY if what == "memory" else HeldFor.JOB
    return _CODES[code][0] if code in _CODES else HeldFor.TRANSIENT


def about_hold(detail: str) -> str:
    """Return the advice for a hold by the code in its `detail`, such as `(code 13)`; "" if the code is unknown."""
    code = _CODE.search(detail)
    return _CODES[int(code[1])][1] if code and int(code[1]) in _CODES else ""


_LIMITS = {"-2": "MAX_JOBS_SUBMITTED", "-3": "MAX_JOBS_PER_OWNER", "-4": "MAX_JOBS_PER_SUBMISSION"}
"""The limit that was reached, by the negative job number that the schedd returns (HTCondor 25.14, condor_qmgr.h)."""
_LIMIT = re.compile(r"Schedd says (-\d+)")
_RULE = re.compile(r"SCHEDD:\d+:(.+)", re.DOTALL)
_DENIED = re.compile(r'"DENIED" from server for user (\S+)')
_CONDITION = re.compile(r"^\[\d+\]\s+(\d+)\s+(.+)$", re.MULTILINE)
_NO_SLOT = re.compile(r"^\s*0 slots match and are willing", re.MULTILINE)


def about_refusal(said: str) -> str | None:
    """Return why the schedd refused, with advice, from a message of the bindings; None if that is no refusal."""
    if (limit := _LIMIT.search(said)) is not None:
        name = _LIMITS.get(limit[1], "a limit of the schedd")
        return f"more jobs than {name} allows: wait until others end, or ask for fewer with --workers and --max-idle"
    if (denied := _DENIED.search(said)) is not None:
        return f"{denied[1]} may not submit here: ask the pool's administrators"
    if (rule := _RULE.search(said)) is not None:
        return f"{rule[1].strip()} (a rule of the pool; --project and --attribute set the jobs' attributes)"
    return None


def about_wait(analysis: str) -> str | None:
    """Return why no machine matches a job, from the output of `condor_q -better-analyze`; None if one may match."""
    if not _NO_SLOT.search(analysis):
        return None
    unmet = [condition for matched, condition in _CONDITION.findall(analysis) if matched == "0"]
    why = f"no machine has: {'; '.join(unmet)}" if unmet else "no machine meets all their conditions at once"
    return f"no machine of the pool matches the jobs: {why}. Change --requirements, or ask for less with --request-..."


FILE = "condor.waiting"  # the output of condor_q -better-analyze for one waiting job
WAIT_S = 20.0  # the analysis starts this long after the first submission if no job has run by then


class Analysis:
    """One run of `condor_q -better-analyze`, a subprocess because it takes long in a large pool."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._process: subprocess.Popen[bytes] | None = None
        self.due = True  # whether to start the analysis is not decided yet; this is decided once

    def begin(self, cluster: int, proc: int) -> None:
        """Start the analysis of a job. Do nothing if `condor_q` is missing."""
        command = ["condor_q", "-better-analyze", f"{cluster}.{proc}"]
        try:
            with self._path.open("wb") as file:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
                )
        except OSError:
            pass

    def take(self) -> str | None:
        """Return why no machine matches the job, once; None while the analysis runs, and if a machine may match."""
        if self._process is None or self._process.poll() is None:
            return None
        self._process = None
        return about_wait(self._path.read_text(errors="replace"))

    def close(self) -> None:
        """Kill the process. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


MEMORY_FACTOR = 2.0  # ratio of the next request to the one that was too small
USAGE_MARGIN = 1.25  # ratio of the next request to the measured usage; the larger of the two requests is made
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
# MiB per unit, as HTCondor reads sizes: a number without a unit is in MiB.
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_EXPECTED = "expected a size, as 2GB or 1500MB, or a range of two, as 1GB..4GB"


@dataclass(frozen=True)
class MemoryRange:
    """The memory that jobs request, in MiB, at least 1."""

    first: int  # request of the first jobs
    most: int  # upper limit of the request, which grows after each hold for too little memory


def memory_range(text: str) -> MemoryRange:
    """Parse --request-memory, "2GB" or "1GB..4GB". Raises UsageError."""
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
    """Return (MiB to request after a job was held, reason). The job requested `too_little` MiB and used `used` MiB
    (None: unknown). The request is None if `too_little` is already the maximum, `most`."""
    if too_little >= most:
        return None, f"{too_little:,} MB were too little, and --request-memory allows no more"
    wanted = max(MEMORY_FACTOR * too_little, USAGE_MARGIN * (used or 0))
    asked = min(most, math.ceil(wanted))
    seen = "" if used is None else f" ({used:,} MB were used)"
    return asked, f"{too_little:,} MB were too little{seen}: jobs ask for {asked:,} MB now, {most:,} at most"


COLUMNS = ("AllowedExecuteDuration", "AllowedJobDuration", "JobDurationCategory")
CATEGORY_HOURS = {"medium": 20.0, "long": 40.0}
"""Time limit of each JobDurationCategory on the OSPool (its documentation, "Indicate the Duration Category of Your
Jobs"). The OSPool's access points assign a category to each job."""


def longest_s(ad: Mapping[str, Any], job_hours: float) -> float | None:
    """Return the seconds that one attempt of a job may run: the minimum of the limits in its ad and the user's
    `job_hours` (0: no limit of the user); None without any limit."""
    limits = [float(ad[name]) for name in COLUMNS[:2] if isinstance(ad.get(name), int | float)]
    category = ad.get(COLUMNS[2])
    hours = CATEGORY_HOURS.get(category.lower()) if isinstance(category, str) else None
    limits += [3600.0 * limit for limit in (hours, job_hours) if limit]
    return min((limit for limit in limits if limit > 0), default=None)

"""What a person can do about a job that is refused, or matched by no machine. Text in, text out."""

from __future__ import annotations

import re

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

"""What a person can do about a job that does not run: refused, held, or matched by no machine. Text in, text out."""

from __future__ import annotations

import re

_CODE = re.compile(r"\(code (\d+)\)")
_ADVICE = {
    1: "Somebody put it on hold; condor_release lets it go on.",
    3: "The job's own policy held it.",
    6: "It could not be started there: see what its machine lacks, or keep away from it with --requirements.",
    12: "Its output could not be brought back: see whether the run directory's disk is full.",
    13: "Its input could not be sent: see whether every file is there and can be read by you, and that the machine has "
    "the disk asked for with --request-disk.",
    14: "The run directory cannot be entered on the access point.",
    21: "The machine refused it: its reason is above; keep away from it with --requirements.",
    26: "The pool's policy held it; its administrators know which.",
    32: "What is sent with it is larger than the pool allows: send less (--send, --packed), or put large files where "
    "the pool caches them (a container image, OSDF).",
    33: "Its output is larger than the pool allows.",
    34: "It used more than it asked for: raise --request-memory or --request-disk.",
    35: "The container image cannot be used there: see that --container-image exists and that you may read it.",
    46: "It ran longer than the pool allows: let jobs end earlier with --chunks-per-job.",
    47: "It ran longer than the pool allows: let jobs end earlier with --chunks-per-job.",
}
"""By HoldReasonCode (HTCondor manual, "Job ClassAd attributes")."""
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


def about_hold(detail: str) -> str:
    """Return what to do about a hold whose reason ends with its code, as `(code 13)`."""
    code = _CODE.search(detail)
    advice = _ADVICE.get(int(code[1]), "") if code else ""
    return f"{advice} Mend the cause, then go on with gridml resume.".strip()


def about_wait(analysis: str) -> str | None:
    """Return why no machine matches a job, from what `condor_q -better-analyze` prints; None where one may."""
    if not _NOBODY.search(analysis):
        return None
    unmet = [condition for matched, condition in _CONDITION.findall(analysis) if matched == "0"]
    why = f"no machine has: {'; '.join(unmet)}" if unmet else "no machine meets all their conditions at once"
    return f"no machine of the pool matches the jobs: {why}. Change --requirements, or ask for less with --request-..."

"""Why HTCondor holds a job, as its codes say it: what that means for the job, and what a person can do. Text in, text
out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from master.decisions.holds import HeldFor

SUBCODES = {102: "memory", 104: "disk"}
"""By HoldReasonSubCode of codes 21, 26 and 34: what a job used more of than it asked for (the pool's own policies,
`condor_config_val use POLICY:HOLD_IF_MEMORY_EXCEEDED`)."""
_CODE = re.compile(r"\(code (\d+)\)")


@dataclass(frozen=True)
class _Known:
    because: HeldFor
    advice: str


_CODES = {
    1: _Known(HeldFor.PERSON, "Somebody put it on hold."),
    3: _Known(HeldFor.POLICY, "The job's own policy held it."),
    5: _Known(HeldFor.ITSELF, "The job's own policy cannot be evaluated: see --attribute."),
    6: _Known(
        HeldFor.TROUBLE,
        "It could not be started there: see what its machine lacks, or keep away from it with --requirements.",
    ),
    12: _Known(HeldFor.TROUBLE, "Its output could not be brought back: see whether the run directory's disk is full."),
    13: _Known(
        HeldFor.TROUBLE,
        "Its input could not be sent: see whether every file is there and can be read by you, and that the machine has "
        "the disk asked for with --request-disk.",
    ),
    14: _Known(HeldFor.ITSELF, "The run directory cannot be entered on the access point."),
    21: _Known(HeldFor.TROUBLE, "The machine refused it: its reason is above; keep away from it with --requirements."),
    26: _Known(HeldFor.POLICY, "The pool's policy held it; its administrators know which."),
    32: _Known(
        HeldFor.ITSELF,
        "What is sent with it is larger than the pool allows: send less (--send, --packed), or put large files where "
        "the pool caches them (a container image, OSDF).",
    ),
    33: _Known(HeldFor.ITSELF, "Its output is larger than the pool allows."),
    34: _Known(HeldFor.TROUBLE, "It used more than it asked for: raise --request-memory or --request-disk."),
    35: _Known(
        HeldFor.TROUBLE,
        "The container image cannot be used there: see that --container-image exists and that you may read it.",
    ),
    46: _Known(HeldFor.POLICY, "It ran longer than the pool allows: let jobs leave earlier with --job-hours."),
    47: _Known(HeldFor.POLICY, "It ran longer than the pool allows: let jobs leave earlier with --job-hours."),
}
"""By HoldReasonCode (HTCondor manual, "Job ClassAd attributes")."""


def held_for(facts: Mapping[str, Any]) -> HeldFor:
    """Return why a job is held, from the event in the log. A code that nobody knows is taken to be of its machine."""
    code, subcode = (facts.get(name, 0) for name in ("HoldReasonCode", "HoldReasonSubCode"))
    if code in (21, 26, 34):
        what = SUBCODES.get(subcode) or _named(str(facts.get("HoldReason") or facts.get("Reason") or ""))
        if what is not None:
            return HeldFor.MEMORY if what == "memory" else HeldFor.ITSELF
    cause = _CODES.get(code)
    return HeldFor.TROUBLE if cause is None else cause.because


def _named(reason: str) -> str | None:
    """What a policy without a subcode says that the job used too much of."""
    return next((what for what in SUBCODES.values() if what in reason.lower()), None)


def about_hold(detail: str) -> str:
    """Return what a person can do about a hold whose reason has its code, as `(code 13)`; "" where nothing is known."""
    code = _CODE.search(detail)
    cause = _CODES.get(int(code[1])) if code else None
    return cause.advice if cause else ""

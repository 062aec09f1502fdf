"""Reasons of HTCondor 25.14 for holding jobs, and the advice for each."""

from __future__ import annotations

import pytest

from master.backends.condor.holds import about_hold, held_for
from master.state.jobs import HeldFor


@pytest.mark.parametrize(
    ("detail", "word"),
    [
        ("Transfer input files failure (code 13)", "--request-disk"),
        ("too large (code 32)", "--packed"),
        ("memory usage exceeded (code 34)", "--request-memory"),
        ("by hand (code 1)", "Somebody"),
        ("ran for 20 hours (code 47); it waits", "--job-hours"),
    ],
)
def test_a_hold_comes_with_what_to_do(detail: str, word: str) -> None:
    assert word in about_hold(detail)


@pytest.mark.parametrize("detail", ["something new (code 999)", "no code at all"])
def test_an_unknown_hold_gets_no_advice(detail: str) -> None:
    assert about_hold(detail) == ""


@pytest.mark.parametrize(
    ("code", "subcode", "reason", "because"),
    [
        (1, 0, "lunch", HeldFor.PERSON),
        (3, 0, "", HeldFor.POLICY),
        (13, 2, "Transfer input files failure", HeldFor.TRANSIENT),
        (21, 102, "", HeldFor.MEMORY),
        (21, 0, "has no scratch space", HeldFor.TRANSIENT),
        (26, 0, "The job was started 30 times.", HeldFor.POLICY),
        (26, 102, "", HeldFor.MEMORY),
        (26, 0, "memory usage exceeded request_memory", HeldFor.MEMORY),
        (34, 102, "Job has gone over cgroup memory limit of 128 megabytes.", HeldFor.MEMORY),
        (34, 0, "Job has gone over cgroup memory limit of 128 megabytes.", HeldFor.MEMORY),
        (34, 104, "Job has exceeded disk request", HeldFor.JOB),
        (32, 0, "", HeldFor.JOB),
        (47, 0, "The job exceeded allowed execute duration", HeldFor.POLICY),
        (0, 0, "", HeldFor.TRANSIENT),
        (999, 0, "memory", HeldFor.TRANSIENT),
    ],
)
def test_a_code_says_why(code: int, subcode: int, reason: str, because: HeldFor) -> None:
    assert held_for({"HoldReasonCode": code, "HoldReasonSubCode": subcode, "HoldReason": reason}) is because


def test_no_code_is_no_person() -> None:
    assert held_for({}) is HeldFor.TRANSIENT

"""Messages of HTCondor 25.14, and the advice shown for each."""

from __future__ import annotations

import pytest

from master.backends.condor.holds import about_refusal, about_wait

ANALYSIS = """
The Requirements expression for job 1.000 reduces to these conditions:

        Slots
Step   Matched  Condition
----- --------- ---------
[0]           0  HasFlux
[1]           0  Memory > 99999999
[7]           1  versionGE(split(TARGET.CondorVersion)[1],"25.12.0")


001.000:  Run analysis summary ignoring user priority.  Of 1 slots on 1 machines,
      1 slots are rejected by your job's requirements
      0 slots reject your job because of their own requirements
      {} slots match and are willing to run your job
"""


def test_what_no_machine_has_is_named() -> None:
    found = about_wait(ANALYSIS.format(0))
    assert found is not None
    assert "HasFlux; Memory > 99999999. Change" in found and "versionGE" not in found and "--requirements" in found


@pytest.mark.parametrize("slots", [1, 10])
def test_a_pool_that_is_only_busy_is_no_reason_to_worry(slots: int) -> None:
    assert about_wait(ANALYSIS.format(slots)) is None
    assert about_wait("") is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("expected next ProcId to be 0, but Schedd says -2", ["MAX_JOBS_SUBMITTED", "--workers"]),
        ("expected next ProcId to be 0, but Schedd says -3", ["MAX_JOBS_PER_OWNER", "--workers"]),
        ("expected next ProcId to be 1, but Schedd says -4", ["MAX_JOBS_PER_SUBMISSION", "--max-idle"]),
        ("expected next ProcId to be 0, but Schedd says -99", ["a limit of the schedd"]),
        (
            'Failed to connect to schedd, errmsg=SECMAN:2010:Received "DENIED" from server for user me@pool using '
            "method FS.",
            ["me@pool may not submit"],
        ),
        ("Unable to commit transaction, SCHEDD:2:You must give a project name.", ["You must give a project name. "]),
    ],
)
def test_a_schedd_that_answered_and_refused_is_understood(said: str, words: list[str]) -> None:
    found = about_refusal(said)
    assert found is not None
    assert all(word in found for word in words)


@pytest.mark.parametrize(
    "said",
    [
        "Failed to connect to schedd, errmsg=CEDAR:6001:Failed to connect to <127.0.0.1:37283?alias=vm>",
        "Unable to locate local daemon.",
        "Error when performing action on the schedd.",
        "SECMAN:2007:This service is running, but did not respond in a reasonable time.",
        "",
    ],
)
def test_a_schedd_that_did_not_answer_has_refused_nothing(said: str) -> None:
    assert about_refusal(said) is None

"""Translation of the event log, in the order in which HTCondor 25.14 writes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.backends.condor.events import TRANSLATIONS, Job, translate
from master.state.jobs import JobEvent, State

RAN = {"SlotName": "slot1_1@node7"}
VACATED = {"Reason": "Job vacated by schedd", "ReasonCode": 1022}
DEACTIVATED = {"Reason": "Claim deactivated", "ReasonCode": 1009}
Log = list[tuple[str, Mapping[str, Any]]]


def translated(log: Log, job: Job | None = None) -> list[tuple[str, State]]:
    return [(event.worker, event.state) for event in heard(log, job)]


def heard(log: Log, job: Job | None = None) -> list[JobEvent]:
    job = job or Job("w7")
    found: list[JobEvent] = []
    for name, facts in log:
        job, events = translate(job, name, facts, 1.0)
        found += events
    return found


def test_a_job_that_runs_to_its_end() -> None:
    log: Log = [
        ("SUBMIT", {}),
        ("FILE_TRANSFER", {}),
        ("EXECUTE", RAN),
        ("IMAGE_SIZE", {}),
        ("JOB_TERMINATED", {"TerminatedNormally": True, "ReturnValue": 0}),
    ]
    assert translated(log) == [("w7", State.RUNNING), ("w7", State.FINISHED)]
    assert heard(log)[0].machine == "slot1_1@node7"


def test_an_evicted_job_is_another_worker_when_it_runs_again() -> None:
    log: Log = [("EXECUTE", RAN), ("JOB_EVICTED", VACATED), ("EXECUTE", RAN), ("JOB_EVICTED", VACATED)]
    assert translated(log) == [
        ("w7", State.RUNNING),
        ("w7", State.EVICTED),
        ("w7.1", State.QUEUED),
        ("w7.1", State.RUNNING),
        ("w7.1", State.EVICTED),
        ("w7.2", State.QUEUED),
    ]


def test_a_running_job_put_on_hold_was_evicted_first_and_the_next_one_is_held() -> None:
    log: Log = [
        ("EXECUTE", RAN),
        ("JOB_EVICTED", DEACTIVATED),
        ("JOB_HELD", {"HoldReason": "by hand", "HoldReasonCode": 1}),
        ("JOB_RELEASED", {}),
        ("EXECUTE", RAN),
    ]
    assert translated(log)[1:] == [
        ("w7", State.EVICTED),
        ("w7.1", State.QUEUED),
        ("w7.1", State.HELD),
        ("w7.1", State.QUEUED),
        ("w7.1", State.RUNNING),
    ]
    assert heard(log)[3].detail == "by hand (code 1)"


def test_a_waiting_job_put_on_hold_is_not_an_eviction() -> None:
    assert translated([("JOB_HELD", {"HoldReason": "no image"}), ("JOB_ABORTED", {})]) == [
        ("w7", State.HELD),
        ("w7", State.EVICTED),
    ]


def test_a_job_removed_on_request_has_no_next_life() -> None:
    events = heard([("EXECUTE", RAN), ("JOB_EVICTED", DEACTIVATED), ("JOB_ABORTED", {})], Job("w7", cancelled=True))
    assert [(e.worker, e.state, e.cancelled) for e in events[1:]] == [("w7", State.EVICTED, True)]


def test_a_job_removed_by_hand_was_not_cancelled() -> None:
    events = heard([("EXECUTE", RAN), ("JOB_EVICTED", DEACTIVATED), ("JOB_ABORTED", {"Reason": "via condor_rm"})])
    assert [(e.worker, e.state) for e in events[1:]] == [
        ("w7", State.EVICTED),
        ("w7.1", State.QUEUED),
        ("w7.1", State.EVICTED),
    ]
    assert not any(e.cancelled or e.removed for e in events)


def test_a_job_removed_by_a_policy_is_recognised() -> None:
    reason = "The system macro SYSTEM_PERIODIC_REMOVE expression 'NumJobStarts >= 3' evaluated to TRUE"
    job = Job("w7")
    assert [e.removed for e in heard([("JOB_ABORTED", {"Reason": reason})])] == [True]
    assert [
        e.removed for e in heard([("JOB_ABORTED", {"Reason": reason})], dataclasses.replace(job, cancelled=True))
    ] == [False]


def test_a_lost_starter_is_one_eviction_for_any_number_of_events() -> None:
    log: Log = [
        ("EXECUTE", RAN),
        ("JOB_DISCONNECTED", {"DisconnectReason": "Socket closed"}),
        ("JOB_RECONNECT_FAILED", {"Reason": "Job not found at execution machine"}),
        ("JOB_EVICTED", {"Reason": "Job not found at execution machine"}),
        ("EXECUTE", RAN),
    ]
    assert [state for _, state in translated(log)] == [
        State.RUNNING,
        State.OUT_OF_REACH,
        State.EVICTED,
        State.QUEUED,
        State.RUNNING,
    ]


def test_a_job_that_is_out_of_reach_for_a_while_runs_on() -> None:
    log: Log = [("EXECUTE", RAN), ("JOB_DISCONNECTED", {}), ("JOB_RECONNECTED", {})]
    assert translated(log) == [("w7", State.RUNNING), ("w7", State.OUT_OF_REACH), ("w7", State.RUNNING)]


@pytest.mark.parametrize(
    ("facts", "state", "code", "detail"),
    [
        ({"TerminatedNormally": True, "ReturnValue": 0}, State.FINISHED, 0, "exit status 0"),
        ({"TerminatedNormally": True, "ReturnValue": 69}, State.LOST, 69, "exit status 69"),
        ({"TerminatedNormally": False, "TerminatedBySignal": 9}, State.LOST, -9, "signal 9"),
        ({"ExecuteErrorType": "not executable"}, State.LOST, 1, "not executable"),
    ],
)
def test_how_a_job_ended_is_kept(facts: dict[str, Any], state: State, code: int, detail: str) -> None:
    ended = heard([("EXECUTE", RAN), ("JOB_TERMINATED", facts)])[-1]
    assert (ended.state, ended.exit_code, ended.detail) == (state, code, detail)


@given(st.lists(st.sampled_from([*TRANSLATIONS, "IMAGE_SIZE"]), max_size=30), st.booleans())
def test_whatever_the_log_says_every_worker_runs_and_ends_at_most_once(names: list[str], cancelled: bool) -> None:
    events = heard([(name, RAN) for name in names], Job("w7", cancelled=cancelled))
    for worker in {event.worker for event in events}:
        states = [event.state for event in events if event.worker == worker]
        seen_again = states.count(State.OUT_OF_REACH) + states.count(State.SUSPENDED)
        assert states.count(State.RUNNING) <= 1 + seen_again
        assert sum(state.ended for state in states) <= 1
        assert not any(state.ended for state in states[:-1]), "a worker has no event after its end"


def test_a_suspended_job_goes_on_as_the_same_worker() -> None:
    log: Log = [("EXECUTE", RAN), ("JOB_SUSPENDED", {"NumberOfPIDs": 1}), ("JOB_UNSUSPENDED", {})]
    assert translated(log) == [("w7", State.RUNNING), ("w7", State.SUSPENDED), ("w7", State.RUNNING)]
    assert translated([*log[:2], ("JOB_EVICTED", VACATED)])[2:] == [("w7", State.EVICTED), ("w7.1", State.QUEUED)]
    assert translated([("JOB_SUSPENDED", {}), ("JOB_UNSUSPENDED", {})]) == []


@pytest.mark.parametrize("after", [("JOB_HELD", {"HoldReason": "too late"}), ("EXECUTE", RAN)])
def test_a_cancelled_job_has_no_next_attempt_whatever_else_befalls_it(after: tuple[str, Mapping[str, Any]]) -> None:
    """Regression: a job that was held before it was removed left a worker without an end."""
    job, _ = translate(Job("w7"), "EXECUTE", RAN, 1.0)
    job = dataclasses.replace(job, cancelled=True)
    assert translated([after, ("JOB_ABORTED", {})], job) == [("w7", State.EVICTED)]

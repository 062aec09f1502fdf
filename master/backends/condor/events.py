"""HTCondor's event log, translated into the states of a back end by one table, and the connection to HTCondor.

A job that was evicted is queued again by the schedd and runs again later: for the master that is another worker,
`w7.1` after one attempt of job `w7`. The attempts are counted here, for the schedd's own count lags when a shadow
dies; a worker finds out which one it is by the mailbox that is open.

The connection is HTCondor's Python bindings, the errors they raise in words for a person, and the job that this
process is.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from gridml.errors import RunError
from gridml.protocol.outbox import worker_name
from master.backends.condor.holds import about_refusal, held_for
from master.state.jobs import JobEvent, State


class Meaning(Enum):
    """What an event of the log means for a job."""

    STARTED = auto()
    TAKEN = auto()  # its machine was taken away; the schedd queues it again
    HELD = auto()
    RELEASED = auto()
    REMOVED = auto()
    ENDED = auto()  # by itself, with a status or by a signal
    OUT_OF_REACH = auto()  # runs on as far as anybody knows; the shadow tries to reach it again
    IN_REACH = auto()
    SUSPENDED = auto()
    GOES_ON = auto()


MEANINGS: dict[str, Meaning] = {
    "EXECUTE": Meaning.STARTED,
    "JOB_EVICTED": Meaning.TAKEN,
    "SHADOW_EXCEPTION": Meaning.TAKEN,
    "JOB_RECONNECT_FAILED": Meaning.TAKEN,
    "JOB_HELD": Meaning.HELD,
    "JOB_RELEASED": Meaning.RELEASED,
    "JOB_ABORTED": Meaning.REMOVED,
    "JOB_TERMINATED": Meaning.ENDED,
    "EXECUTABLE_ERROR": Meaning.ENDED,
    "JOB_DISCONNECTED": Meaning.OUT_OF_REACH,
    "JOB_RECONNECTED": Meaning.IN_REACH,
    "JOB_SUSPENDED": Meaning.SUSPENDED,
    "JOB_UNSUSPENDED": Meaning.GOES_ON,
}
"""Events that are not named here (sizes, file transfers) change nothing."""

BY_A_PERSON = "via condor_rm"  # begins the reason of a removal; a policy's names its expression


@dataclass(frozen=True)
class Job:
    """A job as far as the log has been read."""

    name: str
    starts: int = 0  # how many of its attempts are over
    running: bool = False
    out_of_reach: bool = False
    suspended: bool = False
    held: bool = False
    memory: int = 0  # MiB that it asks for
    machine: str = ""
    cancelled: bool = False  # the master asked for its end
    over: bool = False

    @property
    def worker(self) -> str:
        """The worker that this job is now, or will be when it starts."""
        return worker_name(self.name, self.starts)


def translate(job: Job, name: str, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    """Return (the job afterwards, what the master is to hear) of one event of the log."""
    meaning = MEANINGS.get(name)
    if meaning is None or job.over:
        return job, []
    return _TRANSLATIONS[meaning](job, facts, time_s)


def _started(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    machine = str(facts.get("SlotName") or facts.get("ExecuteHost") or "")
    events: list[JobEvent] = []
    if job.running:  # its eviction is missing from the log
        job, events = _taken(job, {"Reason": "started again"}, time_s)
        if job.over:
            return job, events
    job = replace(job, running=True, machine=machine)
    return job, [*events, JobEvent(time_s, job.worker, State.RUNNING, machine, f"start {job.starts + 1} of {job.name}")]


def _taken(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    if not job.running:
        return job, []  # it is said of jobs that wait, too, and twice of some that ran
    reason = str(facts.get("Reason") or facts.get("Message") or "its machine was taken away")
    ended = JobEvent(time_s, job.worker, State.EVICTED, job.machine, reason, graceful=None, cancelled=job.cancelled)
    job = replace(job, starts=job.starts + 1, running=False, out_of_reach=False, suspended=False, machine="")
    if job.cancelled:
        return replace(job, over=True), [ended]
    ended = replace(ended, next_attempt=job.worker)
    return job, [ended, JobEvent(time_s, job.worker, State.QUEUED, detail="queued again")]


def _held(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    job, events = _taken(job, {"Reason": "put on hold"}, time_s)
    if job.over:  # it was cancelled: there is no next attempt
        return job, events
    reason = str(facts.get("HoldReason") or facts.get("Reason") or "no reason given")
    code = f" (code {facts['HoldReasonCode']})" if "HoldReasonCode" in facts else ""
    job = replace(job, held=True)
    return job, [*events, JobEvent(time_s, job.worker, State.HELD, detail=f"{reason}{code}", held_for=held_for(facts))]


def _released(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    return replace(job, held=False), [JobEvent(time_s, job.worker, State.QUEUED, detail="released")]


def _removed(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    reason = str(facts.get("Reason") or "removed from the queue")
    ended = JobEvent(time_s, job.worker, State.EVICTED, job.machine, reason, graceful=None, cancelled=job.cancelled)
    ended = replace(ended, removed=not job.cancelled and not reason.startswith(BY_A_PERSON))
    return replace(job, running=False, over=True), [ended]


def _ended(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    if facts.get("TerminatedNormally", False):
        code = int(facts.get("ReturnValue", 0))
        state, how = (State.FINISHED if code == 0 else State.LOST), f"exit status {code}"
    elif "TerminatedBySignal" in facts:
        code = -int(facts["TerminatedBySignal"])
        state, how = State.LOST, f"signal {-code}"
    else:
        code, state, how = 1, State.LOST, str(facts.get("ExecuteErrorType") or "it could not be started")
    ended = JobEvent(time_s, job.worker, state, job.machine, how, exit_code=code)
    return replace(job, running=False, over=True), [ended]


def _out_of_reach(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    if not job.running:
        return job, []
    reason = str(facts.get("DisconnectReason") or "its shadow lost the connection")
    job = replace(job, out_of_reach=True)
    return job, [JobEvent(time_s, job.worker, State.OUT_OF_REACH, job.machine, reason)]


def _in_reach(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    if not job.out_of_reach:
        return job, []
    job = replace(job, out_of_reach=False)
    return job, [JobEvent(time_s, job.worker, State.RUNNING, job.machine, "in reach again")]


def _suspended(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    if not job.running or job.suspended:
        return job, []
    job = replace(job, suspended=True)
    return job, [JobEvent(time_s, job.worker, State.SUSPENDED, job.machine, "its machine has other things to do")]


def _goes_on(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    if not job.running or not job.suspended:
        return job, []
    job = replace(job, suspended=False)
    return job, [JobEvent(time_s, job.worker, State.RUNNING, job.machine, "goes on")]


_TRANSLATIONS = {
    Meaning.STARTED: _started,
    Meaning.TAKEN: _taken,
    Meaning.HELD: _held,
    Meaning.RELEASED: _released,
    Meaning.REMOVED: _removed,
    Meaning.ENDED: _ended,
    Meaning.OUT_OF_REACH: _out_of_reach,
    Meaning.IN_REACH: _in_reach,
    Meaning.SUSPENDED: _suspended,
    Meaning.GOES_ON: _goes_on,
}


RUN = "GridmlRun"  # attribute of every worker's job: the run directory


def bindings() -> Any:
    """Return HTCondor's Python bindings. Raises RunError where they are missing or find no configuration."""
    try:
        return importlib.import_module("htcondor2")
    except ImportError as error:
        raise RunError(
            f"HTCondor's Python bindings cannot be imported ({error}). Install them with: pip install 'gridml[condor]'"
        ) from error


@contextlib.contextmanager
def explained(condor: Any) -> Iterator[None]:
    """Say what a person can do where HTCondor refuses, or cannot be reached."""
    try:
        yield
    except (condor.HTCondorException, RuntimeError, OSError) as error:
        if (why := about_refusal(str(error))) is not None:
            raise RunError(f"the HTCondor queue can be reached, and refused: {why}. It said: {error}.") from error
        config = os.environ.get("CONDOR_CONFIG")
        where = f"CONDOR_CONFIG is {config}" if config else "CONDOR_CONFIG is not set"
        raise RunError(
            f"no HTCondor queue can be reached: {error}. {where}. Run this on an access point, or raise a pool of your "
            f"own (make pool), and see whether condor_q answers."
        ) from error


def check_reachable() -> None:
    """Raise RunError, saying what to do, when no queue can be reached."""
    condor = bindings()
    with explained(condor):
        condor.Schedd().query("false", ["ClusterId"], limit=1)


def on_loopback() -> bool:
    """Return whether the pool is one of this machine alone; not where there is no configuration to tell."""
    with contextlib.suppress(RunError, RuntimeError, OSError, KeyError):
        return str(bindings().param["NETWORK_INTERFACE"]).startswith(("127.", "::1"))
    return False


def job_ad() -> str | None:
    """Return the file with the ad of the job that this process is, None when it is none."""
    return os.environ.get("_CONDOR_JOB_AD")


def own_cluster() -> int | None:
    """Return the cluster of the job that this process is, None when it is none."""
    ad = job_ad()
    with contextlib.suppress(OSError, ValueError):
        for line in Path(ad).read_text().splitlines() if ad else []:
            name, _, value = line.partition(" = ")
            if name == "ClusterId":
                return int(value)
    return None

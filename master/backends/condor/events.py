"""Translation of HTCondor's event log into states of workers, and the connection to HTCondor.

The schedd queues an evicted job again. For the master each attempt of a job is another worker: job `w7` starts as
worker `w7`, and its next attempt is worker `w7.1`. A worker learns which attempt it is from the mailbox that is open.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridml.errors import RunError
from gridml.protocol.outbox import worker_name
from master.backends.condor.holds import about_refusal, held_for
from master.state.jobs import JobEvent, State

# The reason of a removal by hand begins with this; the reason of a removal by a policy names the policy's expression.
BY_A_PERSON = "via condor_rm"


@dataclass(frozen=True)
class Job:
    """The state of a job after the events of the log that are read so far."""

    name: str
    starts: int = 0  # attempts that ended, counted here because the schedd's own count lags when a shadow dies
    running: bool = False
    out_of_reach: bool = False  # running, but its shadow lost the connection
    suspended: bool = False
    held: bool = False
    memory: int = 0  # MiB requested
    machine: str = ""
    cancelled: bool = False  # by the master
    over: bool = False  # left the queue; final

    @property
    def worker(self) -> str:
        """The worker name of the running attempt; while the job waits, of its next attempt."""
        return worker_name(self.name, self.starts)


_Translation = Callable[[Job, Mapping[str, Any], float], tuple[Job, list[JobEvent]]]


def _started(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    machine = str(facts.get("SlotName") or facts.get("ExecuteHost") or "")
    events: list[JobEvent] = []
    if job.running:  # the log lacks the eviction that ended the earlier attempt
        job, events = _taken(job, {"Reason": "started again"}, time_s)
        if job.over:
            return job, events
    job = replace(job, running=True, machine=machine)
    return job, [*events, JobEvent(time_s, job.worker, State.RUNNING, machine, f"start {job.starts + 1} of {job.name}")]


def _taken(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    """Translate an eviction: the attempt ends, and the schedd queues the job again unless the master cancelled it."""
    if not job.running:
        return job, []  # HTCondor also logs evictions of waiting jobs, and some evictions twice
    reason = str(facts.get("Reason") or facts.get("Message") or "its machine was taken away")
    ended = JobEvent(time_s, job.worker, State.EVICTED, job.machine, reason, graceful=None, cancelled=job.cancelled)
    job = replace(job, starts=job.starts + 1, running=False, out_of_reach=False, suspended=False, machine="")
    if job.cancelled:
        return replace(job, over=True), [ended]
    ended = replace(ended, next_attempt=job.worker)
    return job, [ended, JobEvent(time_s, job.worker, State.QUEUED, detail="queued again")]


def _held(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    job, events = _taken(job, {"Reason": "put on hold"}, time_s)
    if job.over:  # cancelled: there is no next attempt
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
    """Translate the end of the process, by exit status or by signal."""
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


def _turned(name: str, on: bool, state: State, why: str) -> _Translation:
    """Return a translation that sets the flag `name` of a running job to `on`. Repeated events are ignored."""

    def translation(job: Job, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
        if not job.running or getattr(job, name) is on:
            return job, []
        change: dict[str, Any] = {name: on}
        reason = str(facts.get("DisconnectReason") or why)
        return replace(job, **change), [JobEvent(time_s, job.worker, state, job.machine, reason)]

    return translation


TRANSLATIONS: Mapping[str, _Translation] = {
    "EXECUTE": _started,
    "JOB_EVICTED": _taken,
    "SHADOW_EXCEPTION": _taken,
    "JOB_RECONNECT_FAILED": _taken,
    "JOB_HELD": _held,
    "JOB_RELEASED": _released,
    "JOB_ABORTED": _removed,
    "JOB_TERMINATED": _ended,
    "EXECUTABLE_ERROR": _ended,
    # The job may still be running: its shadow tries to reconnect until the job lease expires.
    "JOB_DISCONNECTED": _turned("out_of_reach", True, State.OUT_OF_REACH, "its shadow lost the connection"),
    "JOB_RECONNECTED": _turned("out_of_reach", False, State.RUNNING, "in reach again"),
    "JOB_SUSPENDED": _turned("suspended", True, State.SUSPENDED, "its machine has other things to do"),
    "JOB_UNSUSPENDED": _turned("suspended", False, State.RUNNING, "goes on"),
}
"""Translations by HTCondor's name of the event. Other events (sizes, file transfers) change no state."""


def translate(job: Job, name: str, facts: Mapping[str, Any], time_s: float) -> tuple[Job, list[JobEvent]]:
    """Translate one event of the log. Returns (the job after the event, the events for the master)."""
    if job.over or name not in TRANSLATIONS:
        return job, []
    return TRANSLATIONS[name](job, facts, time_s)


RUN = "GridmlRun"  # attribute of every worker's job; its value is the run directory


def bindings() -> Any:
    """Import HTCondor's Python bindings. Raises RunError if they are missing."""
    try:
        return importlib.import_module("htcondor2")
    except ImportError as error:
        raise RunError(
            f"HTCondor's Python bindings cannot be imported ({error}). Install them: pip install htcondor"
        ) from error


def local_schedd(condor: Any) -> Any:
    """Return the schedd that CONDOR_CONFIG names. Raises HTCondorException, also while it has no address because it has
    just started or cannot listen, which the bindings do not check."""
    try:
        return condor.Schedd()
    except (KeyError, TypeError) as error:
        raise condor.HTCondorException("the schedd has no address yet; see SchedLog and MasterLog") from error


@contextlib.contextmanager
def translate_condor_errors(condor: Any) -> Iterator[None]:
    """Translate errors of the bindings into RunError with advice: HTCondor refuses, or cannot be reached."""
    try:
        yield
    except (condor.HTCondorException, RuntimeError, OSError) as error:
        if (why := about_refusal(str(error))) is not None:
            raise RunError(f"the HTCondor queue refused the request: {why}. It said: {error}.") from error
        config = os.environ.get("CONDOR_CONFIG")
        where = f"CONDOR_CONFIG is {config}" if config else "CONDOR_CONFIG is not set"
        raise RunError(
            f"no HTCondor queue can be reached: {error}. {where}. Run this on an access point, or start a pool of your "
            f"own (make pool), and see whether condor_q answers."
        ) from error


def on_loopback() -> bool:
    """Return whether the pool is limited to this machine; False if there is no configuration."""
    with contextlib.suppress(RunError, RuntimeError, OSError, KeyError):
        return str(bindings().param["NETWORK_INTERFACE"]).startswith(("127.", "::1"))
    return False


def job_ad() -> str | None:
    """Return the path of the ClassAd of the job that runs this process; None outside of a job."""
    return os.environ.get("_CONDOR_JOB_AD")


def own_cluster() -> int | None:
    """Return the cluster id of the job that runs this process; None outside of a job."""
    ad = job_ad()
    with contextlib.suppress(OSError, ValueError):
        for line in Path(ad).read_text().splitlines() if ad else []:
            name, _, value = line.partition(" = ")
            if name == "ClusterId":
                return int(value)
    return None

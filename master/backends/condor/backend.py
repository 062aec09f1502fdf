"""The HTCondor back end: one job per worker, submitted in groups and followed through one event log per run.

The queue is never polled: states of jobs come from the log, so following many jobs costs the schedd nothing. Requests
are queued and retried while the schedd does not answer, for example during a restart.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gridml.errors import RunError, UsageError
from gridml.protocol.outbox import job_of
from master.backends.condor import holds, submit_description
from master.backends.condor.events import (
    RUN,
    Job,
    bindings,
    local_schedd,
    own_cluster,
    translate,
    translate_condor_errors,
)
from master.backends.condor.holds import WAIT_S, Analysis, about_hold, about_refusal, next_request
from master.backends.condor.options import CondorOptions
from master.state.jobs import Backend, HeldFor, JobEvent, State
from master.store.rundir import RunDirectory
from master.store.settings import Settings

MAX_GROUP = 1000  # jobs per submission
RETRY_S = 5.0  # pause before the next request to a schedd that did not answer
STARTUP_TIMEOUT_S = 120.0  # limit of the first request of a master that is a job: its schedd, which started it, is up
CLOSE_TIMEOUT_S = 20.0  # maximum time that `close` waits for jobs to leave the queue
_NAME, _MASTER = "GridmlWorker", "GridmlMaster"  # attributes of every job: its name, and the ClusterId of its master
GONE = ("JOB_ABORTED", "JOB_TERMINATED")  # events after which a job is no longer in the queue
_STAYS = "JobStatus =!= 3"  # constraint: the job is not being removed


class Condor(Backend):
    """One job per submitted name, under the schedd that CONDOR_CONFIG names.

    `clock` returns the seconds that events carry. Raises RunError if HTCondor cannot be reached, UsageError for an
    option that its submit language refuses.
    """

    name = "condor"

    def __init__(
        self, settings: Settings, directory: RunDirectory, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = CondorOptions.among(settings.options)
        self._root = directory.place
        self._clock = clock
        self._condor = bindings()
        marks = {RUN: submit_description.quoted(str(self._root)), _NAME: '"$(worker)"'}
        self._own = own_cluster()
        if self._own is not None:
            marks[_MASTER] = str(self._own)  # so that condor_rm of the master's job removes these jobs, too
        self._description_args = (settings, directory, marks)
        self._commands = submit_description.description(*self._description_args)
        submit_description.prepare(directory, self._commands)
        # All jobs of the run by (cluster, proc), each once. Ended jobs stay here, because no name is used twice.
        self._jobs: dict[tuple[int, int], Job] = {}
        self._pending: list[str] = []  # names still to be submitted, in order
        self._at_once = MAX_GROUP  # jobs in the next submission: halved on a refusal, doubled on success
        self._events: list[JobEvent] = []  # events that the next `poll` returns
        self._removing: set[tuple[int, int]] = set()  # jobs to be removed from the queue
        self._releasing: set[tuple[int, int]] = set()  # held jobs to be released
        self._inheriting = False  # True while events of the log that earlier masters have handled are read again
        self._memory = self._options.memory.first  # MiB that jobs request; only grows
        self._longest_s: float | None = None  # time limit of a job, read from the queue; None: unknown or no limit
        self._limits_known = False  # True once the time limit was read
        self._avoided: frozenset[str] = frozenset()  # machines that the master avoids
        self._avoided_in_queue = ""  # the value of `AVOIDED` in the ads of queued jobs
        self._next_try_s = float("-inf")  # the schedd gets no request before this time
        self._closed = False
        self._submitted_s = float("inf")  # time of the first submission
        self._ran = False  # True once any job has run
        self._analysis = Analysis(self._root)
        # Log events of jobs whose submission got no answer; handled once `_adopt` finds the jobs in the queue.
        self._unclaimed: list[tuple[tuple[int, int], str, dict[str, Any]]] = []
        self._may_have_submitted = False  # True if the last submission got no answer: it may be in the queue
        self._refusal = ""  # the schedd's last reason for refusing a submission, reported once
        self._warnings = submit_description.news(self._options, directory)
        with translate_condor_errors(self._condor):
            self._schedd = self._retry(lambda: local_schedd(self._condor))
            (self._root / submit_description.LOG).touch()
            self._log = self._condor.JobEventLog(str(self._root / submit_description.LOG))

    @property
    def _constraint(self) -> str:
        return f"{RUN} =?= {submit_description.quoted(str(self._root))}"

    def inherit(self, *, keep: bool) -> list[str]:
        """As in the contract: the jobs come from the queue, their states from the log."""
        with translate_condor_errors(self._condor):
            if not keep:
                because = ("their master has ended", 0)
                self._retry(lambda: self._schedd.act(self._condor.JobAction.Remove, self._constraint, reason=because))
                return []
            columns = ["ClusterId", "ProcId", _NAME, "RequestMemory"]
            ads = self._retry(lambda: self._schedd.query(f"{self._constraint} && {_STAYS}", columns))
            if ads:
                own = "undefined" if self._own is None else str(self._own)
                self._retry(lambda: self._schedd.edit(self._constraint, _MASTER, own))
        memory = self._options.memory
        for ad in ads:
            # RequestMemory can be an expression instead of a number.
            asks = asked if isinstance(asked := ad.get("RequestMemory"), int) else memory.first
            self._jobs[int(ad["ClusterId"]), int(ad["ProcId"])] = Job(ad[_NAME], memory=asks)
            self._memory = max(self._memory, min(asks, memory.most))
        self._inheriting = True
        self._read_log()
        self._inheriting = False
        last = {event.worker: event for event in self._events}
        self._events = []
        for key, job in self._jobs.items():
            event = last.get(job.worker, JobEvent(self._clock(), job.worker, State.QUEUED))
            if event.state in (State.OUT_OF_REACH, State.SUSPENDED):
                self._events.append(replace(event, state=State.RUNNING))
            if not job.over:
                self._events.append(self._with_memory_raised(key, event))
        return [job.worker for job in self._jobs.values() if not job.over]

    def _retry(self, ask: Callable[[], Any]) -> Any:
        """Return the answer of the schedd to `ask`, retried if this master is a job of that schedd."""
        # The schedd started this process, so it is up and will answer soon. Any other master raises at once.
        deadline = time.monotonic() + (STARTUP_TIMEOUT_S if self._own is not None else 0.0)
        while True:
            try:
                return ask()
            except self._condor.HTCondorException:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)
                self._back_off()

    def submit(self, worker: str) -> None:
        if self._closed:
            raise RunError(f"worker {worker} was submitted to a back end that is closed: start a new one")
        if any(job.name == worker for job in self._jobs.values()) or worker in self._pending or "." in worker:
            raise UsageError(f"got the worker name {worker!r}, expected one that is new in this run and has no dot")
        self._pending.append(worker)
        self._events.append(JobEvent(self._clock(), worker, State.QUEUED))

    def poll(self) -> list[JobEvent]:
        if self._clock() >= self._next_try_s:
            for ask in (
                self._update_avoided,
                self._submit_pending,
                self._query_limits,
                self._remove_cancelled,
                self._release_held,
            ):
                self._try(ask)
        self._read_log()
        events, self._events = self._events, []
        return events

    def advice(self, detail: str) -> str:
        return about_hold(detail)

    @property
    def release_command(self) -> str:
        return f"condor_release -constraint {shlex.quote(self._constraint)}"

    @property
    def max_run_s(self) -> float | None:
        return self._longest_s

    def release(self, worker: str) -> None:
        self._releasing.update(key for key, job in self._jobs.items() if job.held and job.worker == worker)

    def notices(self) -> list[str]:
        """Return new warnings: why the schedd refuses jobs; or, if no job has run within `WAIT_S` of the first
        submission, why no machine matches the jobs."""
        if self._warnings:
            warnings, self._warnings = self._warnings, []
            return warnings
        if self._analysis.due and self._jobs and self._clock() - self._submitted_s >= WAIT_S:
            self._analysis.due = False
            waiting = None if self._ran else next((key for key, job in self._jobs.items() if not job.over), None)
            if waiting is not None:
                self._analysis.begin(*waiting)
        reason = self._analysis.take()
        return [] if reason is None else [reason]

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """As in the contract, except that the pool and the job decide the grace."""
        name = job_of(worker)
        if name in self._pending:
            self._pending.remove(name)
            detail = "cancelled before it was submitted"
            self._events.append(JobEvent(self._clock(), worker, State.EVICTED, detail=detail, cancelled=True))
            return
        for key, job in self._jobs.items():
            if job.worker == worker and not job.over and not job.cancelled:
                self._cancel(key)

    def scale(self, workers: int) -> None:
        """As in the contract. Later jobs get another share of the spool, which depends on the number of workers."""
        settings, directory, marks = self._description_args
        self._commands = submit_description.description(replace(settings, workers=workers), directory, marks)

    def avoid(self, machines: Collection[str]) -> None:
        self._avoided = frozenset(machines)

    def leave(self) -> None:
        """As in the contract: the jobs stay in the queue, and their events in the log."""
        self._closed = True
        self._analysis.close()

    def close(self) -> None:
        """Remove every job and wait until they have left the queue, at most `CLOSE_TIMEOUT_S` of real time."""
        for name in list(self._pending):
            self.cancel(name)
        for key, job in self._jobs.items():
            if not job.over and not job.cancelled:
                self._cancel(key)
        self.leave()
        self._next_try_s = float("-inf")
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while any(not job.over for job in self._jobs.values()) and time.monotonic() < deadline:
            if self._clock() >= self._next_try_s:
                self._try(self._remove_cancelled)
            self._read_log()
            time.sleep(0.05)

    def _cancel(self, key: tuple[int, int]) -> None:
        self._jobs[key] = replace(self._jobs[key], cancelled=True)
        self._removing.add(key)

    def _submit_pending(self) -> None:
        if not self._pending:
            return
        try:
            if self._may_have_submitted:
                self._adopt()
            group = self._pending[: self._at_once]
            if group:
                (self._root / submit_description.NAMES).write_text("".join(f"{name}\n" for name in group))
                self._may_have_submitted = True  # until the answer arrives
                now = {f"+{submit_description.AVOIDED}": self._no_start_on, "request_memory": f"{self._memory}MB"}
                done = self._schedd.submit(
                    self._condor.Submit({**self._commands, **now}),
                    itemdata=iter([{"worker": name} for name in group]),
                )
                for number, name in enumerate(group):
                    self._add_job((done.cluster(), done.first_proc() + number), name)
            del self._pending[: len(group)]
            self._at_once = min(MAX_GROUP, 2 * self._at_once)
            self._may_have_submitted = False
            self._refusal = self._refusal if self._pending else ""
            self._submitted_s = min(self._submitted_s, self._clock())
        except self._condor.HTCondorException as error:
            if not self._jobs and "SUBMIT" in str(error).upper():
                raise UsageError(f"HTCondor refused the jobs: {error}. See {self._root}/condor.sub.") from error
            why, count = about_refusal(str(error)), len(self._pending)
            if why is not None:  # a group above a limit is refused as a whole
                self._at_once = max(1, min(self._at_once, count) // 2)
                if why != self._refusal:
                    again = f"is asked again every {RETRY_S:.0f} s"
                    self._warnings.append(f"the schedd refuses {count} jobs, and {again}: {why}")
                self._refusal = why
            raise

    def _try(self, ask: Callable[[], None]) -> None:
        """Send a request to the schedd; back off if it does not answer."""
        try:
            ask()
        except self._condor.HTCondorException:
            self._back_off()

    def _back_off(self) -> None:
        """Send the schedd nothing for `RETRY_S`, and locate it again: after a restart it has another address."""
        self._next_try_s = self._clock() + RETRY_S
        with contextlib.suppress(self._condor.HTCondorException):
            self._schedd = local_schedd(self._condor)

    def _adopt(self) -> None:
        """Adopt jobs that the schedd accepted without answering, so that none is submitted twice."""
        for ad in self._schedd.query(f"{self._constraint} && {_STAYS}", ["ClusterId", "ProcId", _NAME]):
            if (name := ad[_NAME]) in self._pending:
                self._add_job((int(ad["ClusterId"]), int(ad["ProcId"])), name)
                self._pending.remove(name)
        unclaimed, self._unclaimed = self._unclaimed, []
        for key, name, facts in unclaimed:
            if key in self._jobs:
                self._handle_event(key, name, facts)

    @property
    def _no_start_on(self) -> str:
        """The avoided machines, as a ClassAd string."""
        return submit_description.quoted(",".join(sorted(self._avoided)))

    def _update_avoided(self) -> None:
        """Set the avoided machines in the ads of queued jobs."""
        machines = self._no_start_on
        if machines != self._avoided_in_queue and any(not job.over for job in self._jobs.values()):
            self._schedd.edit(self._constraint, submit_description.AVOIDED, machines)
        self._avoided_in_queue = machines

    def _remove_cancelled(self) -> None:
        if self._removing:
            self._schedd.act(self._condor.JobAction.Remove, _ids(self._removing), reason=("cancelled by gridml", 0))
            self._removing.clear()

    def _release_held(self) -> None:
        """Release held jobs. First raise the memory request of all waiting jobs to the amount known to be needed."""
        short = [key for key, job in self._jobs.items() if job.memory < self._memory and not (job.running or job.over)]
        if short:
            self._raise_memory(short)
        if self._releasing:
            self._schedd.act(self._condor.JobAction.Release, _ids(self._releasing), reason=("released by gridml", 0))
            self._releasing.clear()

    def _raise_memory(self, short: Collection[tuple[int, int]]) -> None:
        try:
            self._schedd.edit(_ids(short), "RequestMemory", str(self._memory))
        except self._condor.HTCondorException:  # a job may have left the queue: select by constraint instead of by id
            waiting = f"{self._constraint} && JobStatus =!= 2 && RequestMemory < {self._memory}"
            self._schedd.edit(waiting, "RequestMemory", str(self._memory))
        self._jobs |= {key: replace(self._jobs[key], memory=self._memory) for key in short}

    def _query_limits(self) -> None:
        """Read the time limit of jobs from the ad of one job, to which the schedd added attributes on submission."""
        if self._limits_known or not self._jobs:
            return
        ads = self._schedd.query(self._constraint, list(holds.COLUMNS), limit=1)
        self._limits_known = bool(ads)
        self._longest_s = holds.longest_s(ads[0] if ads else {}, self._options.job_hours)

    def _read_log(self) -> None:
        for key, name, facts in self._new_log_events():
            if key in self._jobs:
                self._handle_event(key, name, facts)
            elif self._may_have_submitted:
                self._unclaimed.append((key, name, facts))  # the job may be adopted later

    def _new_log_events(self) -> Iterator[tuple[tuple[int, int], str, dict[str, Any]]]:
        """Yield (job, event, facts) for new events of the log. A damaged event, left by a full disk, is skipped."""
        with contextlib.suppress(self._condor.HTCondorException, UnicodeDecodeError):
            for event in self._log.events(stop_after=0):
                yield (int(event.cluster), int(event.proc)), event.type.name, dict(event)

    def _handle_event(self, key: tuple[int, int], name: str, facts: dict[str, Any]) -> None:
        if name == "SUBMIT":
            self._drop_reused_number(key)
        if name == "JOB_HELD" and not facts.get("HoldReason"):
            facts = {**facts, **self._query_job(key, ("HoldReason", "HoldReasonCode", "HoldReasonSubCode"))}
        self._jobs[key], events = translate(self._jobs[key], name, facts, self._clock())
        self._events += [event if self._inheriting else self._with_memory_raised(key, event) for event in events]
        self._ran = self._ran or self._jobs[key].running
        if name in GONE:  # not on eviction: a cancelled job that is evicted at the same time must still be removed
            self._removing.discard(key)

    def _with_memory_raised(self, key: tuple[int, int], held: JobEvent) -> JobEvent:
        """If a job is held for its memory, raise the request of all jobs, unless it was raised since the job started.

        If the request is the maximum already, the hold becomes a `HeldFor.JOB`, which no release can end.
        """
        if held.held_for is not HeldFor.MEMORY:
            return held
        too_little = self._jobs[key].memory or self._memory
        if too_little < self._memory:
            return held
        used = self._query_job(key, ("ResidentSetSize",)).get("ResidentSetSize")
        used_mb = round(used / 1024) if isinstance(used, int | float) else None
        asked, why = next_request(too_little, used_mb, self._options.memory.most)
        if asked is None:
            return replace(held, held_for=HeldFor.JOB, detail=f"{why}: {held.detail}")
        self._memory = asked
        self._warnings.append(f"{held.worker} was held for its memory: {why}")
        return held

    def _query_job(self, key: tuple[int, int], columns: tuple[str, ...]) -> dict[str, Any]:
        """Return attributes of a job that its log events may lack; empty if the schedd does not answer."""
        with contextlib.suppress(self._condor.HTCondorException, IndexError):
            ad = self._schedd.query(f"ClusterId == {key[0]} && ProcId == {key[1]}", list(columns))[0]
            return {name: ad[name] for name in columns if name in ad}
        return {}

    def _drop_reused_number(self, key: tuple[int, int]) -> None:
        """Drop earlier log events with this job's number: a schedd with a new spool numbers jobs from 1 again."""
        job = self._jobs[key]
        self._jobs[key] = Job(job.name, cancelled=job.cancelled, memory=job.memory)
        queued = (job.name, State.QUEUED)
        self._events = [e for e in self._events if job_of(e.worker) != job.name or (e.worker, e.state) == queued]

    def _add_job(self, key: tuple[int, int], name: str) -> None:
        """Follow a job. An earlier job of the same number was lost with the spool of its schedd."""
        before = self._jobs.get(key)
        if before is not None and not before.over:
            detail = "its schedd does not know it any more"
            self._events.append(
                JobEvent(self._clock(), before.worker, State.EVICTED, before.machine, detail, graceful=None)
            )
        self._jobs[key] = Job(name, memory=self._memory)


def _ids(keys: Iterable[tuple[int, int]]) -> list[str]:
    return [f"{cluster}.{proc}" for cluster, proc in sorted(keys)]

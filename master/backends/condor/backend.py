"""Workers as jobs of an HTCondor pool: submitted in groups, followed through one event log per run.

The queue is never polled: what becomes of a job is read from the log. The schedd may be away for a while (it is
restarted, or its machine is): what is to be submitted or removed then waits, and is tried again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from gridml.errors import UNFIT, RunError, UsageError
from gridml.protocol.attempts import job_of
from master.backends.base import Backend, JobEvent, State
from master.backends.condor import submit_description as condor_submit
from master.backends.condor.advice import about_hold, about_refusal
from master.backends.condor.analysis import WAIT_S, Analysis
from master.backends.condor.events import Job, translate
from master.backends.condor.options import CondorOptions
from master.backends.condor.schedd import RUN, bindings, explained, own_cluster
from master.store.rundir import RunDirectory
from master.store.settings import Settings

GROUP = 1000  # jobs submitted at once, at most
AGAIN_S = 5.0  # how long a schedd that did not answer is left alone
PATIENCE_S = 120.0  # how long a master that is a job waits for its schedd to answer the first question
FAREWELL_S = 20.0  # how long `close` waits for jobs to leave the queue
_NAME, _MASTER = "GridmlWorker", "GridmlMaster"  # attributes of every job: its name in the run, its master's job
_STAYS = "JobStatus =!= 3"  # is not being removed


class Condor(Backend):
    """One job per submitted name, under the schedd that CONDOR_CONFIG names.

    `clock` gives seconds and is what events carry. Raises RunError when HTCondor cannot be reached, UsageError for an
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
        marks = {RUN: condor_submit.quoted(str(self._root)), _NAME: '"$(worker)"'}
        self._own = own_cluster()
        if self._own is not None:
            marks[_MASTER] = str(self._own)  # condor_rm of the master's job removes these
        self._commands = condor_submit.description(settings, directory, marks)
        condor_submit.prepare(directory, self._commands)
        self._jobs: dict[tuple[int, int], Job] = {}
        self._pending: list[str] = []  # names to be submitted at the next polls,
        self._at_once = GROUP
        self._events: list[JobEvent] = []
        self._removing: set[tuple[int, int]] = set()
        self._unfit: set[str] = set()  # machines that lack something, and
        self._avoided: frozenset[str] = frozenset()  # those that the master avoids
        self._told = ""  # which of both the jobs in the queue know of
        self._quiet_until_s = float("-inf")
        self._closed = False
        self._submitted_s = float("inf")  # when the first jobs were
        self._ran = False  # whether a job ever did
        self._analysis = Analysis(self._root)
        self._unheard: list[tuple[tuple[int, int], str, dict[str, Any]]] = []
        self._unsure = False  # the last submission failed: the schedd may have taken it all the same
        self._refusal = ""  # why the schedd refused the last submission
        self._warnings: list[str] = []
        with explained(self._condor):
            self._schedd = self._patiently(self._condor.Schedd)
            (self._root / condor_submit.LOG).touch()
            self._log = self._condor.JobEventLog(str(self._root / condor_submit.LOG))

    @property
    def _ours(self) -> str:
        return f"{RUN} =?= {condor_submit.quoted(str(self._root))}"

    def inherit(self, *, keep: bool) -> list[str]:
        """As the contract says: the queue tells which jobs there are, the log what became of them so far."""
        with explained(self._condor):
            if not keep:
                because = ("their master has ended", 0)
                self._patiently(lambda: self._schedd.act(self._condor.JobAction.Remove, self._ours, reason=because))
                return []
            columns = ["ClusterId", "ProcId", _NAME]
            ads = self._patiently(lambda: self._schedd.query(f"{self._ours} && {_STAYS}", columns))
            if ads:
                own = "undefined" if self._own is None else str(self._own)
                self._patiently(lambda: self._schedd.edit(self._ours, _MASTER, own))
        self._jobs = {(int(ad["ClusterId"]), int(ad["ProcId"])): Job(ad[_NAME]) for ad in ads}
        self._read_log()
        last = {event.worker: event for event in self._events}
        self._events = []
        for job in self._jobs.values():
            event = last.get(job.worker, JobEvent(self._clock(), job.worker, State.QUEUED))
            if event.state is State.OUT_OF_REACH:
                self._events.append(replace(event, state=State.RUNNING))
            if not job.over:
                self._events.append(event)
        return [job.worker for job in self._jobs.values() if not job.over]

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """What the schedd answers. A master that is its job was started by it, so it will answer soon if not now."""
        deadline = time.monotonic() + (PATIENCE_S if self._own is not None else 0.0)
        while True:
            try:
                return ask()
            except self._condor.HTCondorException:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(AGAIN_S)
                self._wait_for_schedd()

    def submit(self, worker: str) -> None:
        if self._closed:
            raise RunError(f"worker {worker} was submitted to a back end that is closed: start a new one")
        if any(job.name == worker for job in self._jobs.values()) or worker in self._pending or "." in worker:
            raise UsageError(f"got the worker name {worker!r}, expected one that is new in this run and has no dot")
        self._pending.append(worker)
        self._events.append(JobEvent(self._clock(), worker, State.QUEUED))

    def poll(self) -> list[JobEvent]:
        if self._clock() >= self._quiet_until_s:
            self._tell_the_queue()
            self._submit_pending()
            self._remove_cancelled()
        self._read_log()
        events, self._events = self._events, []
        return events

    def advice(self, detail: str) -> str:
        return about_hold(detail)

    def news(self) -> list[str]:
        """Once each: why the schedd refuses jobs; and where nothing has run for a while, why no machine takes them, if
        none ever would."""
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
        """As the contract says; the grace is the pool's and the job's own."""
        name = job_of(worker)
        if name in self._pending:
            self._pending.remove(name)
            detail = "cancelled before it was submitted"
            self._events.append(JobEvent(self._clock(), worker, State.EVICTED, detail=detail, cancelled=True))
            return
        for key, job in self._jobs.items():
            if job.worker == worker and not job.over and not job.cancelled:
                self._cancel(key)

    def avoid(self, machines: Collection[str]) -> None:
        self._avoided = frozenset(machines)

    def leave(self) -> None:
        """The schedd keeps the jobs, and the log what becomes of them."""
        self._closed = True
        self._analysis.close()

    def close(self) -> None:
        """Removes every job and waits until they have left, or for `FAREWELL_S` of real time."""
        for name in list(self._pending):
            self.cancel(name)
        for key, job in self._jobs.items():
            if not job.over and not job.cancelled:
                self._cancel(key)
        self.leave()
        self._quiet_until_s = float("-inf")
        deadline = time.monotonic() + FAREWELL_S
        while any(not job.over for job in self._jobs.values()) and time.monotonic() < deadline:
            if self._clock() >= self._quiet_until_s:
                self._remove_cancelled()
            self._read_log()
            time.sleep(0.05)

    def _cancel(self, key: tuple[int, int]) -> None:
        self._jobs[key] = replace(self._jobs[key], cancelled=True)
        self._removing.add(key)

    def _submit_pending(self) -> None:
        if not self._pending:
            return
        try:
            if self._unsure:
                self._adopt()
            group = self._pending[: self._at_once]
            if group:
                (self._root / condor_submit.NAMES).write_text("".join(f"{name}\n" for name in group))
                self._unsure = True
                done = self._schedd.submit(
                    self._condor.Submit({**self._commands, f"+{condor_submit.AVOIDED}": self._no_start_on}),
                    itemdata=iter([{"worker": name} for name in group]),
                )
                for number, name in enumerate(group):
                    self._jobs[done.cluster(), done.first_proc() + number] = Job(name)
            del self._pending[: len(group)]
            self._at_once = min(GROUP, 2 * self._at_once)
            self._unsure = False
            self._refusal = self._refusal if self._pending else ""
            self._submitted_s = min(self._submitted_s, self._clock())
        except self._condor.HTCondorException as error:
            if not self._jobs and "SUBMIT" in str(error).upper():
                raise UsageError(f"HTCondor refused the jobs: {error}. See {self._root}/condor.sub.") from error
            why = about_refusal(str(error))
            if why is not None:  # of a group that is over a limit, the schedd takes none
                self._at_once = max(1, min(self._at_once, len(self._pending)) // 2)
            if why is not None and why != self._refusal:
                self._refusal = why
                count = len(self._pending)
                self._warnings.append(
                    f"the schedd refuses {count} jobs, and is asked again every {AGAIN_S:.0f} s: {why}"
                )
            self._wait_for_schedd()

    def _wait_for_schedd(self) -> None:
        """Leave a schedd that did not answer alone for a while. One that is restarted has another address."""
        self._quiet_until_s = self._clock() + AGAIN_S
        with contextlib.suppress(self._condor.HTCondorException, TypeError):  # TypeError: none is to be found
            self._schedd = self._condor.Schedd()

    def _adopt(self) -> None:
        """Jobs that the schedd took although it did not answer."""
        for ad in self._schedd.query(f"{self._ours} && {_STAYS}", ["ClusterId", "ProcId", _NAME]):
            if ad[_NAME] in self._pending:
                self._jobs[int(ad["ClusterId"]), int(ad["ProcId"])] = Job(ad[_NAME])
                self._pending.remove(ad[_NAME])
        unheard, self._unheard = self._unheard, []
        for key, name, facts in unheard:
            if key in self._jobs:
                self._take(key, name, facts)

    @property
    def _no_start_on(self) -> str:
        """The machines on which no job is to start, as the ad of a job has them."""
        return condor_submit.quoted(",".join(sorted(self._unfit | self._avoided)))

    def _tell_the_queue(self) -> None:
        """Tell the jobs that are in the queue already on which machines none is to start."""
        machines = self._no_start_on
        if machines == self._told:
            return
        try:
            if any(not job.over for job in self._jobs.values()):
                self._schedd.edit(self._ours, condor_submit.AVOIDED, machines)
            self._told = machines
        except self._condor.HTCondorException:
            self._wait_for_schedd()

    def _remove_cancelled(self) -> None:
        if not self._removing:
            return
        names = [f"{cluster}.{proc}" for cluster, proc in sorted(self._removing)]
        try:
            self._schedd.act(self._condor.JobAction.Remove, names, reason=("cancelled by gridml", 0))
            self._removing.clear()
        except self._condor.HTCondorException:
            self._wait_for_schedd()

    def _read_log(self) -> None:
        for key, name, facts in self._heard():
            if key in self._jobs:
                self._take(key, name, facts)
            elif self._unsure:
                self._unheard.append((key, name, facts))  # perhaps of a job that is to be adopted

    def _heard(self) -> Iterator[tuple[tuple[int, int], str, dict[str, Any]]]:
        """(job, event, facts) of what is new in the log. A damaged event, as a full disk leaves it, is passed over."""
        with contextlib.suppress(self._condor.HTCondorException):
            for event in self._log.events(stop_after=0):
                yield (int(event.cluster), int(event.proc)), event.type.name, dict(event)

    def _take(self, key: tuple[int, int], name: str, facts: dict[str, Any]) -> None:
        if name == "JOB_HELD" and not facts.get("HoldReason"):
            facts["HoldReason"] = self._hold_reason(key)
        self._jobs[key], events = translate(self._jobs[key], name, facts, self._clock())
        self._events += events
        self._ran = self._ran or self._jobs[key].running
        for ended in events:
            if ended.exit_code == UNFIT and "@" in ended.machine:
                self._unfit.add(ended.host)
        if self._jobs[key].over:
            self._removing.discard(key)

    def _hold_reason(self, key: tuple[int, int]) -> str:
        """The log does not always have it; the queue does."""
        with contextlib.suppress(self._condor.HTCondorException, IndexError, KeyError):
            ads = self._schedd.query(f"ClusterId == {key[0]} && ProcId == {key[1]}", ["HoldReason"])
            return str(ads[0]["HoldReason"])
        return ""

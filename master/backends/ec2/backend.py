"""The EC2 back end: one instance per worker, launched in fleets and found by tags.

AWS is called on a separate thread, so that the master's loop never blocks. The roster, which the master's SSH server
writes, holds the enrolment and the goodbye message of an instance; EC2 reports the instance's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from gridml.errors import RunError, UsageError
from master.backends.ec2.answers import CloudError, ListedInstance, is_boot_overdue, is_master_unreachable, is_overdue
from master.backends.ec2.budget import BudgetMonitor
from master.backends.ec2.cleanup import POLL_INTERVAL_S, remove_run
from master.backends.ec2.cloud import PLACE, RUN, Cloud
from master.backends.ec2.launching import Launching, SentRequest
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.provisioning import (
    BackgroundCalls,
    location_of,
    master_endpoint,
    provision,
    site_of,
    user_data,
    write_bundle,
)
from master.backends.ec2.states import (
    Goodbye,
    Stage,
    end_of,
    goodbye_of,
    in_full,
    is_there,
    note_end,
    note_unwatched_end,
    stage_of,
    was_taken,
)
from master.ports.environment import SteadyClock
from master.sftp.roster import End, GoodbyeMessage, Instance, Roster
from master.sftp.spending import Spend
from master.state.jobs import Backend, JobEvent, State
from master.store.rundir import RunDirectory
from master.store.settings import Settings

POLL_S = 5.0  # between two calls of DescribeInstances
GOODBYE_POLL_S = 1.0  # from a worker's goodbye to the next call of DescribeInstances
ROSTER_POLL_S = 0.25  # between two reads of the roster
LISTING_DELAY_S = 120.0  # for this time EC2, which is eventually consistent, may not list an instance that exists


@dataclass(frozen=True)
class Ec2Environment:
    """External dependencies of the back end, replaced in tests."""

    cloud: Cloud
    clock: Callable[[], float] = field(default_factory=SteadyClock)  # seconds since 1970
    rest: Callable[[float], None] = time.sleep  # sleeps between two polls of `close`
    executor: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "ec2")


@dataclass
class _LiveWorker:
    """A worker that has not ended, and its instance."""

    worker: str
    instance: Instance
    enrolled: bool = False
    running: bool = False  # EC2 listed the instance as running at the last poll
    goodbye: GoodbyeMessage | None = None
    said_s: float = 0.0  # when the goodbye was read
    cancelled: bool = False
    ends_s: float = float("inf")  # if the master cancelled the worker: when to terminate its instance
    listed_s: float | None = None  # when EC2 last listed the instance


@dataclass
class _Terminating:
    """An instance that has not ended although its worker has."""

    since_s: float  # when the worker ended
    notified: bool  # the instance got EC2's interruption notice
    listed_s: float | None = None  # when EC2 last listed this instance


class Ec2(Backend):
    """One instance per submitted worker. Raises UsageError or RunError if AWS refuses what the run needs to start.

    `_live` and `_terminating` track the instances of the run. If EC2 lists an instance of the run that neither tracks,
    the back end terminates it after a poll, so that no instance is paid for without a worker.
    """

    name = "ec2"

    def __init__(self, settings: Settings, directory: RunDirectory, world: Ec2Environment) -> None:
        self._options = Ec2Options.among(settings.options)
        self._cloud, self._clock, self._rest = world.cloud, world.clock, world.rest
        self._roster = Roster(directory.root)
        self._site = site_of(self._cloud, self._options, self._roster)
        self._endpoint = master_endpoint(directory.root, settings.address)
        facts, token = provision(directory, self._roster, self._site)
        self.run = facts.run
        tags = {RUN: self.run, PLACE: location_of(directory), "Name": f"gridml {directory.place.name}"[:200]}
        self._user_data = user_data(self.run, self._endpoint, token, self._options.orphan_patience)
        write_bundle(settings, directory, self._site)
        self._launching = Launching(self.run, self._site, self._options, tags)
        self._calls = BackgroundCalls(world.executor())
        self._live: dict[str, _LiveWorker] = {}  # by worker
        self._terminating: dict[str, _Terminating] = {}  # by instance id
        self._names: set[str] = set()  # names of all workers ever submitted, because no name is used twice
        self._to_end: set[str] = set()  # ids of instances to terminate, until EC2 accepts the call
        self._events: list[JobEvent] = []  # for the next `poll`
        self._news: list[str] = []  # warnings for the next `notices`
        self._budget = BudgetMonitor(directory.root, self._options, self._clock())
        self._spend, self._spend_why = Spend.GO_ON, ""
        self._template = ""  # name of the launch template; "" before the first launch
        self._asked: SentRequest | None = None  # the launch in progress
        self._ending: tuple[str, ...] = ()  # ids in the termination call in progress
        self._poll_begun_s = self._next_poll_s = self._next_roster_s = self._next_end_s = float("-inf")
        self._any_enrolled = any(self._roster.enrolment(id) is not None for id in self._roster.ids())
        # Until this time EC2 may list instances of the run that are not tracked. They come from a killed master, or
        # from a request whose answer was lost.
        self._untracked_until_s = float("-inf")
        self._reported: set[str] = set()  # problems already reported; none is reported again while it persists
        self._closed = False

    def inherit(self, *, keep: bool) -> list[str]:
        """As in the contract. EC2 finds the instances by their tags; the roster has the worker of each."""
        seen, now = self._listed(), self._clock()
        alive = {id for id, each in seen.items() if is_there(each)}
        self._untracked_until_s = now + LISTING_DELAY_S
        for id in self._roster.ids():
            instance = self._roster.instance(id)
            if instance is None:
                continue
            self._names.add(instance.worker)
            late = id not in seen and now - instance.launched_s < LISTING_DELAY_S
            end = self._roster.end(id)
            if keep and end is None and (id in alive or late):
                enrolled = self._roster.enrolment(id) is not None
                running = id in alive and seen[id].state == "running"
                listed_s = now if id in alive else None
                life = _LiveWorker(instance.worker, instance, enrolled, running, listed_s=listed_s)
                self._live[instance.worker] = life
                state = State.RUNNING if enrolled else State.QUEUED
                self._events.append(JobEvent(now, instance.worker, state, machine=id if enrolled else ""))
            elif keep and end is not None and id in alive:
                self._terminating[id] = _Terminating(end.ended_s, end.taken, now)
            else:
                note_unwatched_end(self._roster, id, seen, now, "its master had ended")
        if not keep:
            remove_run(self._cloud, self.run, self._rest, max_polls=1)
            return []
        self._to_end |= alive - self._tracked()  # instances that their master, when it was killed, had not recorded yet
        return [*self._live]

    def submit(self, worker: str) -> None:
        if self._closed:
            raise RunError(f"worker {worker} was submitted to a back end that is closed: start a new one")
        if worker in self._names or "." in worker:
            raise UsageError(f"got the worker name {worker!r}, expected one that is new in this run and has no dot")
        self._names.add(worker)
        self._launching.waiting.append(worker)
        self._events.append(JobEvent(self._clock(), worker, State.QUEUED))

    def poll(self) -> list[JobEvent]:
        if not self._closed:
            now = self._clock()
            self._handle_launch(now)
            self._handle_poll(now)
            self._handle_terminations(now)
            self._handle_prices(now)
            self._check_budget(now)
            if now >= self._next_roster_s:
                self._next_roster_s = now + ROSTER_POLL_S
                self._read_roster(now)
                self._end_overdue(now)
                self._check_for_silence(now)
            self._send_requests(now)
        events, self._events = self._events, []
        return events

    def cancel(self, worker: str, *, grace_s: float = 0.0) -> None:
        """As in the contract. Within the grace an enrolled worker leaves, and its instance shuts itself down."""
        now = self._clock()
        if worker in self._launching.waiting:
            self._launching.waiting.remove(worker)
            detail = "cancelled before it had an instance"
            self._events.append(JobEvent(now, worker, State.EVICTED, detail=detail, cancelled=True))
        elif (life := self._live.get(worker)) is not None:
            life.cancelled, life.ends_s = True, now + (grace_s if life.enrolled else 0.0)

    @property
    def max_workers(self) -> int | None:
        """As in the contract. `--budget` sets the limit."""
        return {Spend.GO_ON: None, Spend.NO_MORE: len(self._live), Spend.LEAVE: 0}[self._spend]

    def notices(self) -> list[str]:
        news = [*self._launching.news, *self._news]
        self._launching.news.clear()
        self._news.clear()
        return news

    def exhausted(self) -> str | None:
        if self._spend is not Spend.GO_ON and not self._live and not self._launching.waiting:
            return f"the budget ends the run: {self._spend_why}"
        return None if self._live else self._launching.no_use()

    def more_machines(self, resume: str) -> str:
        if self._spend is not Spend.GO_ON:
            return f"What is credited is kept. Go on with more money: {resume} --budget DOLLARS"
        if self._launching.denied:
            return f"Fix that, then go on: {resume}"
        return f"Offer other --instance-types, --zones or a higher --max-price: {resume}"

    def leave(self) -> None:
        """As in the contract: instances continue, and end themselves after `--orphan-patience` without a master."""
        if not self._closed:
            self._closed = True
            self._calls.close()
            self._handle_launch(self._clock())  # records instances of a launch that completed during the shutdown

    def close(self) -> None:
        """Remove the run's resources and wait until all are gone. Raises RunError if any is left or EC2 refuses."""
        if self._closed:
            return
        self.leave()
        now = self._clock()
        for worker in [*self._launching.waiting]:
            self.cancel(worker)
        late = self._to_end | {life.instance.id for life in self._live.values() if life.listed_s is None}
        for life in [*self._live.values()]:
            life.cancelled = True
            self._end(life, State.EVICTED, "ended with the run", now)
        try:
            self._wait_until_listed(late)
            _, left = remove_run(self._cloud, self.run, self._rest)
            seen = self._listed()
        except CloudError as error:
            raise RunError(f"{error} {_sweep(self.run)}") from error
        for id in [*self._terminating]:
            self._follow_termination(id, seen.get(id), now)
        if left:
            raise RunError(f"on EC2 there is still {left} of this run. {_sweep(self.run)}")

    # --- requests to AWS

    def _listed(self) -> dict[str, ListedInstance]:
        return {each.id: each for each in self._cloud.instances(self.run)}

    def _wait_until_listed(self, late: set[str]) -> None:
        """Wait until EC2 lists these instances, at most `LISTING_DELAY_S`, because `remove_run` needs that."""
        until_s = self._clock() + LISTING_DELAY_S
        while late and self._clock() < until_s:
            late = late - self._listed().keys()
            if late:
                self._rest(POLL_INTERVAL_S)

    def _send_requests(self, now: float) -> None:
        if self._to_end and now >= self._next_end_s and not self._calls.busy("end"):
            ids = self._ending = tuple(sorted(self._to_end))
            self._calls.begin("end", lambda: self._cloud.end(ids))
        if not self._calls.busy("launch"):
            may_launch = self._spend is Spend.GO_ON
            most = self._budget.affords if may_launch else 0
            self._asked = asked = self._launching.due(self._template, now, most)
            if asked is not None:
                self._calls.begin("launch", lambda: self._launching.launch(self._cloud, self._user_data, asked))
        wanted = bool(self._live) or self._options.budget is not None
        if wanted and not self._calls.busy("prices") and self._budget.due(now):
            self._calls.begin("prices", lambda: self._budget.fetch(self._cloud, self._site))
        wanted = bool(self._live or self._terminating) or now < self._untracked_until_s
        if wanted and now >= self._next_poll_s and not self._calls.busy("poll"):
            self._poll_begun_s = now
            self._calls.begin("poll", self._listed)

    # --- answers of AWS

    def _handle_launch(self, now: float) -> None:
        answer, asked = self._calls.take("launch"), self._asked
        if answer is None or asked is None:
            return
        try:
            self._template, launched, errors = answer.result()
        except CloudError as error:
            self._launching.failed(asked, error, now)
            self._untracked_until_s = now + LISTING_DELAY_S
        else:
            given, spare = self._launching.answered(asked, launched, errors, now)
            self._to_end.update(each.id for each in spare)
            self._budget.launched(len(launched))
            for worker, each in given:
                full, spot = self._budget.full_price(each.pool.type), not self._options.on_demand
                instance = Instance(each.id, worker, each.pool.type, each.pool.zone, now, full, spot)
                self._roster.keep(instance)
                self._live[worker] = _LiveWorker(worker, instance)

    def _has_failed(self, call: str, answer: Future[Any], trouble: str) -> bool:
        """Return whether a call failed. A failure is reported unless the last call failed, too."""
        try:
            answer.result()
        except CloudError as error:
            if call not in self._reported:
                self._news.append(trouble.format(error))
            self._reported.add(call)
            return True
        self._reported.discard(call)
        return False

    def _handle_poll(self, now: float) -> None:
        answer = self._calls.take("poll")
        if answer is None:
            return
        self._next_poll_s = now + POLL_S
        if self._has_failed("poll", answer, "EC2 does not list the instances; the call is retried: {}"):
            return
        seen: dict[str, ListedInstance] = answer.result()
        for life in [*self._live.values()]:
            self._update_worker(life, seen.get(life.instance.id), now)
        for id in [*self._terminating]:
            self._follow_termination(id, seen.get(id), now)
        if not self._calls.busy("launch") and not self._launching.unanswered:
            there = {id for id, each in seen.items() if is_there(each)}
            self._to_end |= there - self._tracked()

    def _tracked(self) -> set[str]:
        """Return the ids of all instances in `_live` and `_terminating`."""
        return {life.instance.id for life in self._live.values()} | {*self._terminating}

    def _handle_terminations(self, now: float) -> None:
        answer = self._calls.take("end")
        if answer is None:
            return
        if self._has_failed("end", answer, "EC2 does not end instances; the call is retried: {}"):
            self._next_end_s = now + POLL_S
            return
        self._to_end.difference_update(self._ending)
        for life in [*self._live.values()]:
            if life.instance.id in self._ending:
                self._end(life, State.EVICTED, "cancelled", now)

    def _handle_prices(self, now: float) -> None:
        answer = self._calls.take("prices")
        if answer is None:
            return
        held = "" if self._options.budget is None else " Without a price, nothing is launched within --budget."
        if self._has_failed("prices", answer, f"instances' prices are not known; the call is retried: {{}}{held}"):
            self._budget.retry_soon(now)
        else:
            self._budget.update(answer.result())

    def _check_budget(self, now: float) -> None:
        under_way = len(self._asked.workers) if self._asked is not None and self._calls.busy("launch") else 0
        spend, why = self._budget.check(under_way, now)
        if spend is not self._spend:
            self._spend, self._spend_why = spend, why
            if spend is not Spend.GO_ON:
                self._news.append(f"the budget says: {spend.value}. {why}")

    def _update_worker(self, life: _LiveWorker, seen: ListedInstance | None, now: float) -> None:
        """Apply the result of a poll to one worker; `seen` is None if EC2 did not list its instance."""
        if seen is None:
            if now - (life.listed_s or life.instance.launched_s) < LISTING_DELAY_S:
                return
            state, reason = "terminated", ""
        else:
            life.listed_s, life.running = now, seen.state == "running"
            state, reason = seen.state, seen.reason
            if (seen.type, seen.zone) != (life.instance.type, life.instance.zone):
                full = self._budget.full_price(seen.type)
                life.instance = replace(life.instance, type=seen.type, zone=seen.zone, on_demand=full)
                self._roster.keep(life.instance)
        if life.goodbye is None:
            life.goodbye = self._roster.goodbye(life.instance.id)  # a goodbye may have come since the last read
        elif life.said_s > self._poll_begun_s and stage_of(state) is Stage.THERE:
            return  # the poll began before the goodbye, so its state may predate an interruption by EC2
        end = end_of(state, reason, life.goodbye)
        if end is not None:
            self._end(life, end, in_full(state, reason, life.goodbye), now, seen)

    def _follow_termination(self, id: str, seen: ListedInstance | None, now: float) -> None:
        """Apply the result of a poll to an instance whose worker has ended; terminate it if it is overdue."""
        leaving = self._terminating[id]
        if seen is not None:
            leaving.listed_s = now
        elif now - (leaving.listed_s or leaving.since_s) < LISTING_DELAY_S and not self._closed:
            return
        if seen is not None and seen.state.startswith("stop"):
            self._to_end.add(id)  # a stopped instance still costs its disk
        if seen is None or stage_of(seen.state) is Stage.GONE:
            del self._terminating[id]
            note_end(self._roster, id, seen, now)
        elif is_overdue(leaving.since_s, now, notified=leaving.notified)[0]:
            self._to_end.add(id)

    # --- messages of instances

    def _read_roster(self, now: float) -> None:
        for life in self._live.values():
            id = life.instance.id
            if not life.enrolled and self._roster.enrolment(id) is not None:
                life.enrolled = self._any_enrolled = True
                where = f"{life.instance.type} in {life.instance.zone}"
                self._events.append(JobEvent(now, life.worker, State.RUNNING, machine=id, detail=where))
            if life.goodbye is None and (goodbye := self._roster.goodbye(id)) is not None:
                life.goodbye, life.said_s = goodbye, now
                self._next_poll_s = min(self._next_poll_s, now + GOODBYE_POLL_S)

    def _end_overdue(self, now: float) -> None:
        """Terminate instances that did not enrol in time, and those of cancelled workers whose grace is over."""
        for life in [*self._live.values()]:
            late, why = is_boot_overdue(life.instance.launched_s, now, self._options.boot_patience)
            if life.cancelled and now >= life.ends_s:
                self._to_end.add(life.instance.id)
            elif late and not life.enrolled and not life.cancelled:
                self._to_end.add(life.instance.id)
                self._end(life, State.LOST, why, now)

    def _check_for_silence(self, now: float) -> None:
        since = [life.instance.launched_s for life in self._live.values() if life.running]
        silent, why = is_master_unreachable(since, now, any_enrolled=self._any_enrolled)
        if silent and "reach" not in self._reported:
            self._reported.add("reach")
            self._news.append(
                f"{why}: perhaps they cannot reach this machine at {self._endpoint}. Open that port in its firewall or "
                "security group, or resume the run with an address that they can reach: --address HOST:PORT. If "
                f"they can reach this address, the image does not start its worker: {self._site.image.id}"
            )

    def _end(self, life: _LiveWorker, state: State, why: str, now: float, seen: ListedInstance | None = None) -> None:
        """End a worker: report its end, and record it in the roster, so that the SSH server rejects the instance."""
        del self._live[life.worker]
        id, notified = life.instance.id, goodbye_of(life.goodbye) is Goodbye.TAKEN
        taken = was_taken(seen, notified=notified)
        cancelled = life.cancelled and not taken
        state = State.EVICTED if cancelled else state
        self._roster.keep(End(id, now, why, taken=taken))
        self._terminating[id] = _Terminating(now, notified, life.listed_s)
        status = None if life.goodbye is None or state is State.EVICTED else life.goodbye.exit_status
        # None: only the worker's last push can show whether the worker had a grace.
        graceful = None if state is State.EVICTED else False
        where = id if life.enrolled else ""
        self._events.append(
            JobEvent(now, life.worker, state, where, why, graceful, exit_code=status, cancelled=cancelled)
        )


def _sweep(run: str) -> str:
    return f"Remove it later: gridml ec2 sweep --run {run} --yes"

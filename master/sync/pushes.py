"""Pushes: admit them, merge them one after another, and credit them to one new version in one transaction.

Admission decides whether a push is merged, was merged before, or is refused, and whether a worker that sends malformed
messages is still accepted. A push stands for all tensors of the vertices that it names: a tensor that it leaves out is
equal to the tensor of its base.

The number of names that f logs under is limited per run and per job, so that no worker can fill the ledger with names
or displace the names of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from numpy.typing import NDArray

from gridml.aggregates import Merge
from gridml.caching.master_copy import reconstruct
from gridml.errors import DamagedError, GridmlError, RunError, UserCodeError
from gridml.protocol.foreign import MAX_TRACEBACK_CHARS, described, printable
from gridml.protocol.messages import MAX_LOGGED, Failure, Logged, Push, Verdict
from gridml.protocol.outbox import job_of
from gridml.protocol.push import Fields, PushContent
from master.caching.known_rows import keep_latest_writes, taken_rows
from master.leases.leases import Leases
from master.ports.environment import Hook
from master.state.failures import Alteration
from master.state.lease_records import LeaseState
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.schema import ENOUGH
from master.store.store import Store
from master.store.versions import Base
from master.sync.gate import GateResult
from master.sync.merger import Merged, Merger
from master.sync.owner_work import OwnerChanges
from master.sync.recovery import Recovery
from master.sync.rounds import RoundEnds
from master.sync.rows import PendingReply, sent_rows
from master.sync.tick_end import TickEnds
from master.telemetry.worth import KeptTraining, kept_share
from master.trust.trust import Trust

Array = NDArray[Any]


#: Maximum number of names that a run logs under.
MAX_NAMES = 64
#: Maximum number of names that only one job logs under. One push can contain as many names.
MAX_NAMES_ALONE = MAX_LOGGED
#: Pushes between two records of how much of the workers' training is kept.
KEPT_EVERY = 32
#: The job that logs under a name, while it is the only one; empty as soon as a second job logs under the name.
Loggers = frozenset[str]


def admit_names(name: str, job: str, names: Mapping[str, Loggers]) -> tuple[bool, str]:
    """Return (whether a name in a credited push of `job` is accepted, reason). `names` are the run's names so far."""
    if name in names:
        return True, "it is known"
    if len(names) >= MAX_NAMES:
        return False, f"f logs under more than {MAX_NAMES} names"
    alone = sum(job in jobs for jobs in names.values())
    if alone >= MAX_NAMES_ALONE:
        return False, f"{job} logs under more than {MAX_NAMES_ALONE} names that no other worker does"
    return True, f"it is one of {alone + 1} that only {job} logs under"


class LoggedNames:
    """The names that one run logs under. Methods must be called inside the ledger's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: jobs by name; None until the first push that logs, when the names are read from the ledger
        self._names: dict[str, Loggers] | None = None
        self._warned = False

    def admitted(self, worker: str, logged: Sequence[Logged], warn: Callable[[str], None]) -> Sequence[Logged]:
        """Return the accepted ones of a worker's logged values. `warn` is called when a value is left out for the first
        time."""
        if not logged:
            return logged
        if self._names is None:
            self._names = {
                name: frozenset(map(job_of, first)) & frozenset(map(job_of, last))
                for name, first, last in self._ledger.logged_names()
            }
        job, taken = job_of(worker), []
        for each in logged:
            admits, reason = admit_names(each.name, job, self._names)
            if admits:
                self._names[each.name] = self._names.get(each.name, frozenset([job])) & {job}
                taken.append(each)
            elif not self._warned:
                self._warned = True
                warn(f"{reason}; {each.name!r} and later ones are left out")
        return taken


#: A worker with this many malformed messages is rejected. An honest worker sends none, unless its version of gridml is
#: another one.
MAX_MALFORMED = 3
#: A worker with this many damaged messages is rejected, if most of its messages are damaged. A bad network damages
#: some.
MAX_DAMAGED = 8


def after_unreadable(malformed: int, damaged: int, whole: int) -> tuple[bool, str]:
    """Return (whether a worker is still accepted after these numbers of messages, reason)."""
    if malformed >= MAX_MALFORMED:
        return False, f"{malformed} of its messages made no sense: its messages are ignored from now on"
    if damaged >= MAX_DAMAGED and damaged > whole:
        return False, f"{damaged} of its {damaged + whole} messages came damaged: its messages are ignored from now on"
    other = " (does it run another version of gridml?)" if malformed else ""
    return True, f"{malformed} malformed{other} of at most {MAX_MALFORMED}, {damaged} damaged and {whole} whole so far"


@dataclass(frozen=True)
class LeaseFacts:
    """A lease as the ledger has it, for `admit`."""

    #: the worker that may push: the holder of the lease, or a later attempt of the holder's job
    worker: str
    term: int
    start: int
    stop: int
    #: position up to which it is credited
    upto: int
    #: number of the last push that was merged; 0: no push was merged
    sequence: int
    #: False: the lease has ended, whatever the reason
    open: bool
    closed_because: str = ""
    #: True: the lease has ended, but the range of this push was not leased to another worker
    untouched: bool = False


def admit(
    push: Push, worker: str, lease: LeaseFacts | None, *, base_kept: bool, leaves_few: bool = False
) -> tuple[Verdict, str]:
    """Return the verdict on a push, and the reason. `leaves_few` is True if the push would leave fewer vertices of the
    lease than the smallest permitted batch has.

    A push with a wrong worker or term is refused before its content is read. A repetition of the last push is
    recognised next, even after the lease has ended, because the reply to the push may have been lost. A push under an
    ended lease is still merged if its range was not leased to another worker.
    """
    if lease is None:
        return Verdict.REFUSED, f"there is no lease {push.lease}"
    if worker != lease.worker or push.term != lease.term:
        return Verdict.REFUSED, f"lease {push.lease} is now held by {lease.worker} in term {lease.term}"
    if push.sequence == lease.sequence and push.upto == lease.upto and push.sequence > 0:
        return Verdict.REPEATED, f"push {push.sequence} of lease {push.lease} was merged before"
    if not lease.open and not lease.untouched:
        return Verdict.REFUSED, f"lease {push.lease} has ended: {lease.closed_because}"
    if push.sequence != lease.sequence + 1:
        return Verdict.REFUSED, f"got push number {push.sequence}, expected {lease.sequence + 1}"
    if not lease.upto < push.upto <= lease.stop or push.vertices != push.upto - lease.upto:
        return (
            Verdict.REFUSED,
            f"a push of {push.vertices} vertices up to {push.upto} does not continue [{lease.upto}, {lease.stop})",
        )
    if leaves_few:  # after the push was sent, the lease was shortened to an end that is not the end of a batch
        return Verdict.REFUSED, f"it leaves too few vertices of [{lease.upto}, {lease.stop}) for a batch"
    if not base_kept:
        return Verdict.REFUSED, f"version {push.base}, from which it was trained, is not kept any more"
    return Verdict.MERGED, "continues its lease" if lease.open else "its lease has ended, no other worker has its range"


#: Errors of the run itself, not of a push.
RUN_ERRORS = (GridmlError, OSError, sqlite3.Error, AssertionError)


@dataclass(frozen=True)
class Accepted:
    """A push that was merged into the version that is being made."""

    pending: PendingReply
    lease: LeaseState
    fields: Fields


class Pushes:
    """Merges the pushes of a group of messages. Methods must be called inside the ledger's transaction."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        trust: Trust,
        merger: Merger,
        recovery: Recovery,
        events: Events,
        hook: Hook,
        rounds: RoundEnds,
        ticks: TickEnds | None = None,
    ) -> None:
        """`ticks` holds pushes until their tick is complete; None: a push is merged as it arrives."""
        self._rounds = rounds
        self._store = store
        self._ticks = ticks
        self._recovery = recovery
        self._leases = leases
        self._merger = merger
        self._moments = recovery.moments
        self._kept = KeptTraining(**store.ledger.get(KeptTraining.FACT, {}))
        self._kept_pushes = 0  # pushes in `_kept` that are not recorded yet
        self._trust = trust
        self._failures = recovery.failures
        self._events = events
        self._hook = hook
        self._names = LoggedNames(store.ledger)

    def merge(self, group: Sequence[PendingReply], now: float) -> list[Fields]:
        """Merge the pushes of a group of messages, one per worker; return the local fields of the credited pushes."""
        self._store.replica.begin_version()
        accepted: list[Accepted] = []
        for pending in group:
            if pending.sync.push is not None:
                self._take(pending, accepted, now)
                if pending.verdict is Verdict.REFUSED and not pending.is_held_back:
                    self._record_altered(Alteration.REFUSED, pending, pending.reason, now)
        if accepted:
            self._commit(accepted, now)
        return [push.fields for push in accepted]

    def _take(self, pending: PendingReply, accepted: list[Accepted], now: float) -> None:
        """Merge one push, credit it and append it to `accepted`, or record in its reply why it is refused."""
        ledger, push, worker = self._store.ledger, pending.push, pending.sync.worker
        base_credit = ledger.credited_at(push.base)
        lease, facts = self._facts(push, worker, now)
        few = facts is not None and self._leases.epochs.is_too_short(push.upto, facts.stop)
        pending.verdict, pending.reason = admit(push, worker, facts, base_kept=base_credit is not None, leaves_few=few)
        if pending.verdict is Verdict.REPEATED:
            pending.gathered = self._rounds.round_of(pending.record, push)
        if pending.verdict is not Verdict.MERGED or base_credit is None or lease is None:
            return
        base = self._base(push.base)
        if base is None:
            pending.verdict, pending.reason = admit(push, worker, facts, base_kept=False)
            return
        if ledger.leases.get(lease.id) is None:
            text = f"{worker} pushed {push.vertices:,} vertices of lease {push.lease}, which had ended"
            self._events.record("late", {"worker": worker, "lease": push.lease, "vertices": push.vertices}, text)
            self._leases.reopen(lease, push.upto, worker)
        held = self._ticks is not None and self._ticks.holds
        # Includes pushes of this group that were merged before.
        others = self._ticks.others(push.base) if self._ticks is not None and held else ledger.credited - base_credit
        # A step that was taken under another pace than the worker was told last is averaged, which does no harm.
        added = push.added and push.vertices <= pending.record.assignment.max_added
        live, rounds = max(1, self._leases.live), self._rounds.facts(pending.record, push)
        merge = Merge(self._version, push.base, push.vertices, others, live, added, *rounds)
        decision, outcome, trace = self._try_merge(pending, lease, merge, base, now)
        if decision.flagged:
            self._trust.flag(pending.record, lease, decision.reason, now, excess=decision.excess)
            self._moments.withdraw(pending.record)
        if outcome is None:
            pending.verdict, pending.reason, pending.drop_optimiser = Verdict.REFUSED, decision.reason, True
            pending.record.moments.tainted = True
            self._moments.withdraw(pending.record)
            if decision.failed:
                self._recovery.record_failure(lease, push.base)
                failure = Failure(lease.id, lease.term, decision.reason, trace, -1, -1)
                self._failures.record(lease, failure, now, upto=push.upto)
            return
        kept = self._trust.hold_back(pending.record, lease, pending.content, (push.upto, push.base), now)
        if kept is not None:
            pending.verdict, pending.reason, pending.is_held_back = Verdict.REFUSED, kept, True
            return
        merged, fields = outcome
        if decision.scale is not None and decision.scale < 1.0:
            self._record_altered(Alteration.SHORTENED, pending, decision.reason, now)
        if pending.left_out:
            more = f", and {len(pending.left_out) - 1} more" if len(pending.left_out) > 1 else ""
            self._record_altered(Alteration.LEFT_OUT, pending, pending.left_out[0] + more, now)
        if merged.clipped:
            clipped = f"the rule clipped the step of {_named(merged.clipped)}"
            self._record_altered(Alteration.CLIPPED, pending, clipped, now)
        # From here on the replica is changed; everything above could still refuse the push.
        rows = pending.content.replica.rows
        if self._ticks is not None:
            pending.unmerged = self._ticks.take(lease, push, rows, base, decision.scale or 1.0, self._version)
        if not held:
            self._store.replica.put(merged.modules, merged.rows, self._version)
            pending.pushed, pending.as_pushed = taken_rows(rows, merged.rows)
            pending.fast_forward = merged.fast_forward
            if merged.gathered:
                pending.gathered = self._rounds.gather(pending.record, push, merge)
        share = kept_share(merge.live, averages=self._merger.averages, added=added)
        self._kept.add(push.vertices, share)
        self._take_moments(pending, now, trusted=not decision.flagged)
        pending.sent = sent_rows(rows, self._merger.added)
        pending.release()
        logged = self._names.admitted(worker, push.logged, lambda text: self._events.record("warning", {}, text))
        ledger.credit(lease, push.upto, self._version, merge.staleness, now, logged)
        self._recovery.record_success(push)
        self._trust.credit(pending.record, push.vertices, lease.since_s, now, flagged=decision.flagged)
        self._leases.credit(lease, now)
        if pending.record.faults.failures:
            self._failures.clear(pending.record)
        accepted.append(Accepted(pending, lease, fields))

    def _record_altered(self, how: Alteration, pending: PendingReply, reason: str, now: float) -> None:
        """Count a push that was not merged as sent. An event is recorded for a worker's first shortened push, and for
        its first, tenth, hundredth, ... push that was merged only in part."""
        worker, vertices = pending.sync.worker, pending.push.vertices
        count = self._store.ledger.add_altered(worker, how, vertices, printable(reason), now)
        if how is Alteration.SHORTENED and count == 1:
            # The text contains no path, because the same seed must give the same ledger in any folder.
            text = f"{worker}: {reason}; `gridml report` counts them"
            self._events.record("shortened", {"worker": worker, "lease": pending.push.lease}, text)
        if how is Alteration.LEFT_OUT and str(count).strip("0") == "1":  # the first, the tenth, the hundredth, ...
            so_far = "" if count == 1 else f"; {count:,} of its pushes so far"
            facts = {"worker": worker, "lease": pending.push.lease, "pushes": count}
            self._events.record("left out", facts, f"{worker}: {reason}; left out, the rest is merged{so_far}")

    def _take_moments(self, pending: PendingReply, now: float, *, trusted: bool) -> None:
        """Count the moments of a push as its worker's vote. If they are left out, record the reason."""
        moments = pending.content.replica.moments if trusted else {}
        reason = self._moments.take(pending.record, moments, self._store.ledger.credited + pending.push.vertices)
        if reason is not None:
            self._record_altered(Alteration.LEFT_OUT, pending, reason, now)

    @property
    def _version(self) -> int:
        """The number of the version that is being made."""
        return self._store.replica.next_version

    def _facts(self, push: Push, worker: str, now: float) -> tuple[LeaseState | None, LeaseFacts | None]:
        """Return the lease of a push, open or ended, and the facts that its admission depends on."""
        lease = self._store.ledger.leases.get(push.lease)
        if lease is not None:
            return lease, _facts_of(lease, lease.worker)
        ended = self._store.ledger.closed_lease(push.lease)
        if ended is None:
            return None, None
        lease, because = ended
        # A later attempt of the job sends the push of the earlier attempt, under the earlier attempt's lease.
        later_attempt = job_of(worker) == job_of(lease.worker)
        untouched = (
            later_attempt
            and self._leases.reserved(lease.id, now)
            and self._store.ledger.uncredited_rest(lease, push.upto) is not None
            and self._leases.epochs.cuts_component(lease.epoch, push.upto) is None
        )
        holder = worker if later_attempt else lease.worker
        return lease, replace(_facts_of(lease, holder), open=False, closed_because=because, untouched=untouched)

    def _base(self, version: int) -> Base | None:
        """Return the version that a push is based on. If it cannot be read, drop it from the ledger and return None."""
        ledger = self._store.ledger
        try:
            return self._store.replica.base(version, ledger.sha256_of(version))
        except (DamagedError, OSError) as error:
            ledger.drop_version(version)
            text = f"version {version} is not kept any more: {error}; uncredited work that is based on it is repeated"
            self._events.record("warning", {"version": version}, text)
            return None

    def _try_merge(
        self, pending: PendingReply, lease: LeaseState, merge: Merge, base: Base, now: float
    ) -> tuple[GateResult, tuple[Merged, Fields] | None, str]:
        """Return the result of `_merge`, and the user's traceback, if any. If the push causes an error, it is refused;
        nothing has been changed yet."""
        try:
            return *self._merge(pending, lease, merge, base, now), ""
        except UserCodeError as error:  # g may succeed on the pushes of others
            trace = printable(error.traceback_text, MAX_TRACEBACK_CHARS)
            return GateResult(None, printable(str(error)), failed=True), None, trace
        except RUN_ERRORS:
            raise
        except MemoryError as error:  # no fault of the push, which `Merger.check` has compared with the replica
            raise RunError(
                f"the master has no memory left to merge a push of {pending.nbytes:,} bytes ({error}). Free some on "
                f"its machine, or give its job more, then go on from the last credit with gridml resume."
            ) from error
        except Exception as error:
            pending.problem = f"it cannot be merged: {described(error)}"
            return GateResult(None, pending.problem, failed=True), None, ""

    def _merge(
        self, pending: PendingReply, lease: LeaseState, merge: Merge, base: Base, now: float
    ) -> tuple[GateResult, tuple[Merged, Fields] | None]:
        """Return (decision, changes that the push would make). The changes are None if the push is refused. This method
        itself changes no state of the run."""
        push = pending.push
        part, fields = pending.content.replica, pending.content.fields
        trained = self._leases.epochs.driver, self._leases.epochs.vertices(lease.epoch, lease.upto, push.upto)
        problem = (
            pending.problem
            or self._merger.check(part, pending.content.changes)
            or self._leases.epochs.cuts_component(lease.epoch, push.upto)
            or self._store.fields.check(fields, lease.cut.local, trained)
        )
        if problem is not None:
            return GateResult(None, problem, failed=True), None
        too_fast = self._trust.check(pending.record, push.vertices, now)
        if too_fast is not None:
            return GateResult(None, too_fast, flagged=True), None
        try:
            tensors = {key: state.tensors for key, state in base.modules.items()}
            part = reconstruct(pending.content, tensors, base.rows)
        except ValueError as error:
            return GateResult(None, str(error), failed=True), None
        is_last = self._store.ledger.credited + push.vertices >= self._leases.epochs.total
        sifted = self._merger.untrained.filter(
            part, base, pending.sync.worker, push.vertices, now, workers=self._merger.workers, is_last=is_last
        )
        pending.content = PushContent(sifted.part, fields)
        merged, decision = self._merger.merge(sifted.part, base, merge, pending.sync.worker, now)
        if merged is None:
            return decision, None
        pending.left_out = sifted.reasons
        return decision, (replace(merged, fast_forward=merged.fast_forward and not sifted.differs), fields)

    def _commit(self, accepted: Sequence[Accepted], now: float) -> None:
        """Commit the version that was credited. Epochs that it completes are flushed and closed."""
        store, version = self._store, self._version
        if self._ticks is not None:
            for problem in self._ticks.merge(version, min(store.ledger.saved_versions)):
                self._events.record("warning", {}, problem)
        epochs = {push.lease.epoch for push in accepted}
        complete = store.ledger.epochs_to_close() if any(map(store.ledger.is_epoch_complete, epochs)) else []
        ends_round = bool(complete) and not self._leases.epochs.is_followed(max(complete))
        flushed = self._merger.flush(max(1, self._leases.live), gathered=ends_round) if complete else {}
        if ends_round and self._rounds.used:
            self._rounds.ended(version)
        ended = self._merger.end_pass() if complete else OwnerChanges({})
        if flushed or ended.rows:
            store.replica.put(flushed, ended.rows, version)
        enough = [*(self._ticks.enough if self._ticks is not None else ()), *ended.enough]
        if enough and store.ledger.get(ENOUGH) is None:
            store.ledger.set(ENOUGH, {"version": version, "epoch": max(epochs), "by": " and ".join(enough)})
        if flushed or ended.rows or len(accepted) > 1:  # the new version differs from what each single worker pushed
            for push in accepted:
                push.pending.fast_forward = False
        group = [push.pending for push in accepted]
        # The end of a pass writes after all pushes, so their writers lack these rows.
        last = {name: rows.ids for name, rows in ended.rows.items()}
        pushed, alike = [pending.pushed for pending in group], [pending.as_pushed for pending in group]
        for pending, as_pushed in zip(group, keep_latest_writes([*pushed, last], alike), strict=False):
            pending.as_pushed = as_pushed
        # The version is durable before the ledger names it. A crash in between leaves an unnamed file, which the next
        # master removes.
        self._hook("before-version")
        sha256 = store.replica.commit_version(version, store.ledger.credited)
        self._hook("after-version")
        store.ledger.add_version(version, sha256, len(accepted), now)
        self._kept_pushes += len(accepted)
        if complete or self._kept_pushes >= KEPT_EVERY:
            self._kept_pushes = 0
            store.ledger.set(KeptTraining.FACT, asdict(self._kept))
        if store.fields.any:
            patch = store.fields.write_patch(version, [push.fields for push in accepted])
            store.ledger.add_patch(version, min(epochs), patch)
            self._hook("after-patch")
        for push in accepted:
            if not push.lease.left:
                self._leases.end(push.lease, now, "trained to its end")
        for epoch in complete:
            store.ledger.close_epoch(epoch, version, now)
            if self._leases.epochs.skips_evaluation(epoch):
                store.ledger.set_metrics(epoch, {})
            vertices, epoch_s = self._leases.epochs.vertex_count, store.ledger.epoch_s(epoch)
            facts = {"epoch": epoch + 1, "version": version, "vertices": vertices, "epoch_s": epoch_s}
            self._events.record("epoch", facts, f"epoch {epoch + 1} is credited in full, in version {version}")
            if ended.totals:
                text = ", ".join(f"{name} {total:.6g}" for name, total in ended.totals.items())
                self._events.record(
                    "totals", {"epoch": epoch + 1, "totals": ended.totals}, f"epoch {epoch + 1}: {text}"
                )


def _named(tensors: frozenset[str]) -> str:
    """Return the name of one tensor, and the number of the others."""
    first, more = min(tensors), len(tensors) - 1
    return f"{first} and {more:,} more" if more else first


def _facts_of(lease: LeaseState, holder: str) -> LeaseFacts:
    return LeaseFacts(holder, lease.term, lease.start, lease.stop, lease.upto, lease.sequence, open=True)

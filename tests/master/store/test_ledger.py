"""The ledger: transactions are atomic, and the mirror equals the file."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridml.errors import StorageError
from gridml.protocol.foreign import MAX_INTEGER
from gridml.protocol.messages import Sync
from master.state.failures import Alteration, Failed
from master.state.lease_records import LeaseState
from master.state.spans import Span
from master.store.ledger import Ledger
from master.store.ledger_rows import WriteBatch
from tests.support.effort import examples
from tests.support.in_ledger import credits_of, epochs_of

COUNT = 20
FAILED = Failed("w1", "slot-1", COUNT)

PERSISTED = (
    *("id", "term", "epoch", "start", "stop", "upto", "worker", "sequence", "failed", "trained", "version"),
    "reserved_until_s",
)
Fields = tuple[object, ...]


def fields(lease: LeaseState) -> Fields:
    """Return the row of a lease in the file."""
    return tuple(getattr(lease, name) for name in PERSISTED)


State = tuple[dict[int, Fields], dict[int, Fields], list[Span], int, int, list[tuple[Span, int]]]


def state(ledger: Ledger) -> State:
    spans = [replace(span, isolated=False) for span in sorted(ledger.spans, key=lambda s: (s.epoch, s.start))]
    leases = {lease.id: fields(lease) for lease in ledger.leases}
    reserved = {number: fields(lease) for number, lease in ledger.leases.reserved.items()}
    return leases, reserved, spans, ledger.credited, ledger._next_lease, ledger.reassigned_ranges()


def reread(ledger: Ledger) -> State:
    other = Ledger(ledger.path, shared_disk=False)
    try:
        return state(other)
    finally:
        other.close()


# --- facts from workers


def test_vertices_of_hostile_pushes_add_up_to_what_a_ledger_may_hold(ledger: Ledger) -> None:
    """Regression: two pushes with messages of the largest size made a ledger that no master could read."""
    with ledger.transaction():
        counts = [
            ledger.add_altered("w1", Alteration.REFUSED, MAX_INTEGER, "its lease has ended", 1.0) for _ in range(3)
        ]
    assert counts == [1, 2, 3]
    other = Ledger(ledger.path, shared_disk=False)
    other.close()


# --- transactions


def test_a_transaction_that_fails_leaves_nothing_in_the_file(ledger: Ledger) -> None:
    before = reread(ledger)

    def fail() -> None:
        with ledger.transaction():
            lease = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
            ledger.credit(lease, 3, 1, 0.0, 1.0)
            ledger.set("status", "spoilt")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert reread(ledger) == before
    assert ledger.get("status", "untouched") == "untouched"
    assert list(credits_of(ledger)) == []


@pytest.mark.parametrize("failing", ["before", "within"])
def test_the_next_transaction_writes_nothing_of_one_that_failed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    with ledger.transaction():
        held = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
    before = reread(ledger)

    def no_room(self: WriteBatch, *arguments: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    def fail() -> None:
        with ledger.transaction(), monkeypatch.context() as patched:
            ledger.credit(held, 3, 1, 0.0, 1.0)
            ledger.lease(ledger.spans[0], 9, "w2", 1.0, "test")
            ledger.worker_reported(Sync("w1", trained=3, train_s=1.0), 1.0, 10)
            if failing == "before":
                raise OSError(28, "No space left on device")
            patched.setattr(WriteBatch, "write", no_room)
            ledger._write_batch()

    with pytest.raises((OSError, StorageError)):
        fail()
    with ledger.transaction():
        ledger.set("status", "failed")  # like a master that gives up
    assert reread(ledger) == before == state(ledger)
    assert list(credits_of(ledger)) == []
    with ledger.transaction():
        lease = ledger.lease(ledger.spans[0], 9, "w2", 1.0, "test")
        ledger.end_lease(lease, 2.0, "test")
    assert reread(ledger) == state(ledger)


def test_committed_data_is_visible_to_other_readers(ledger: Ledger) -> None:
    with ledger.transaction():
        lease = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
        ledger.credit(lease, 3, 1, 0.0, 1.0)
        inside = reread(ledger)
    assert inside[0] == {}  # no reader sees a partial transaction
    assert reread(ledger) == state(ledger)
    assert list(credits_of(ledger)) == [(0, 0, 3)]


# --- the mirror

OPERATIONS = ["lease", "lease", "credit", "credit", "end", "fail", "reassign", "reserve", "reopen", "cut", "open"]
OPERATIONS += ["isolate", "rejoin"]
Operation = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(1, COUNT))


def perform(ledger: Ledger, operation: str, which: int, much: int) -> None:
    leases = sorted(ledger.leases, key=lambda lease: lease.id)
    lease = leases[which % len(leases)] if leases else None
    reserved = [*ledger.leases.reserved.values()]
    if operation == "lease" and ledger.spans:
        span = ledger.spans[which % len(ledger.spans)]
        ledger.lease(span, min(span.stop, span.start + much), f"w{which}", 1.0, "test")
    elif operation == "isolate" and ledger.spans:
        span = ledger.spans[which % len(ledger.spans)]
        ledger.isolate(replace(span, start=span.start + which % span.count))
    elif operation == "rejoin":
        for span in [span for span in ledger.spans if span.isolated]:
            ledger.rejoin(span)
    elif operation == "open":
        newest, _ = ledger.newest_epoch()
        if newest < 2:
            ledger.open_epoch(newest + 1, COUNT, 1.0)
    elif operation == "reopen" and reserved:
        ended = reserved[which % len(reserved)]
        stop = min(ended.stop, ended.upto + much)
        if ledger.uncredited_rest(ended, stop) is not None:
            ledger.reopen(ended, stop, f"{ended.worker}.1")
    elif lease is None:
        return
    elif operation == "credit" and lease.left:
        ledger.credit(lease, min(lease.stop, lease.upto + much), 1, 0.0, 1.0)
    elif operation == "cut" and lease.left > 1:
        ledger.cut(lease, min(lease.stop - 1, lease.upto + much))
    elif operation in ("end", "fail", "reassign", "reserve"):
        lease.reserved_until_s = 100.0 if operation == "reserve" else None
        ledger.end_lease(
            lease, 2.0, "test", failed=FAILED if operation == "fail" else None, reassigned=operation == "reassign"
        )


@settings(
    max_examples=examples(150), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(transactions=st.lists(st.lists(Operation, min_size=1, max_size=4), max_size=15))
def test_the_mirror_is_what_a_fresh_read_of_the_file_gives(
    made: Callable[[Path], Ledger], transactions: list[list[tuple[str, int, int]]]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ledger"))
    ledger = made(folder / "ledger.db")
    try:
        for operations in transactions:
            with ledger.transaction():
                for operation in operations:
                    perform(ledger, *operation)
            assert reread(ledger) == state(ledger)
            for row in epochs_of(ledger):
                parts = [(a, b) for e, a, b in credits_of(ledger) if e == row["epoch"]]
                assert row["credited"] == sum(b - a for a, b in parts)
                parts += [(s.start, s.stop) for s in ledger.spans if s.epoch == row["epoch"]]
                parts += [
                    (lease.upto, lease.stop) for lease in ledger.leases if lease.epoch == row["epoch"] and lease.left
                ]
                covered = [position for a, b in sorted(parts) for position in range(a, b)]
                assert covered == list(range(COUNT))
    finally:
        ledger.close()
        shutil.rmtree(folder)


def test_free_ranges_join_what_they_touch(ledger: Ledger) -> None:
    with ledger.transaction():
        leases = [ledger.lease(ledger.spans[-1], stop, "w1", 0.0, "test") for stop in (5, 10, 15)]
        for lease in (leases[0], leases[2], leases[1]):
            ledger.end_lease(lease, 1.0, "test")
    assert ledger.spans == [Span(0, 0, COUNT)]


def test_a_separated_range_is_not_merged_until_it_is_returned(ledger: Ledger) -> None:
    with ledger.transaction():
        isolated = ledger.isolate(Span(0, 5, 10))
        assert isolated == Span(0, 5, 10, isolated=True)
        assert ledger.isolate(Span(0, 6, 8)) is None, "it is isolated already"
        assert ledger.isolate(Span(0, 0, COUNT + 1)) is None, "there is no such range"
        lease = ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test")
        ledger.end_lease(lease, 1.0, "test")
        assert ledger.spans == [Span(0, 0, 5), isolated, Span(0, 10, COUNT)]
        ledger.rejoin(isolated)
        assert ledger.spans == [Span(0, 0, COUNT)]
        ledger.rejoin(isolated)
        assert ledger.spans == [Span(0, 0, COUNT)], "once is enough"


def test_the_rest_of_a_separated_range_is_free_for_all(ledger: Ledger) -> None:
    with ledger.transaction():
        isolated = ledger.isolate(Span(0, 5, 10))
        assert isolated is not None
        ledger.lease(isolated, 8, "w1", 0.0, "test")
        assert Span(0, 8, 10) in ledger.spans
        assert not ledger.is_free(isolated)


def test_a_range_in_which_f_failed_stays_separate(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.end_lease(ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test"), 1.0, "test", failed=FAILED)
    assert sorted(ledger.spans, key=lambda s: s.start) == [Span(0, 0, 5, (FAILED,)), Span(0, 5, COUNT)]


def test_a_failure_is_refuted_by_the_credit_of_its_vertex(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.end_lease(
            ledger.lease(ledger.spans[0], 10, "w1", 0.0, "test"), 1.0, "test", failed=FAILED._replace(upto=6)
        )
        again = ledger.lease(ledger.spans[0], 10, "w2", 1.0, "test")
        ledger.credit(again, 5, 1, 0.0, 2.0)
    assert state(ledger) == reread(ledger) and len(again.failed) == 1
    with ledger.transaction():
        ledger.credit(again, 6, 2, 0.0, 3.0)
        ledger.cut(again, 8)
    assert again.failed == () and state(ledger) == reread(ledger)
    assert ledger.spans == [Span(0, 8, COUNT)]


def test_an_ended_lease_is_remembered(ledger: Ledger) -> None:
    with ledger.transaction():
        lease = ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test")
        ledger.credit(lease, 2, 1, 0.0, 1.0)
        ledger.end_lease(lease, 1.0, "worker evicted")
    ended = ledger.closed_lease(lease.id)
    assert ended is not None
    assert (fields(ended[0]), ended[1]) == (fields(lease), "worker evicted")
    assert ledger.closed_lease(lease.id + 1) is None


def test_a_lease_is_remembered_in_the_transaction_in_which_it_ended(ledger: Ledger) -> None:
    with ledger.transaction():
        lease = ledger.lease(ledger.spans[0], 5, "w1", 0.0, "test")
        assert ledger.closed_lease(lease.id) is None
        ledger.end_lease(lease, 1.0, "test")
        ended = ledger.closed_lease(lease.id)
        assert ended is not None and fields(ended[0]) == fields(lease)
    assert reread(ledger) == state(ledger)


# --- facts that must survive the master: reservations, and counts of reassigned ranges


def reserve(ledger: Ledger, until_s: float) -> LeaseState:
    """A lease that has ended after 2 of its 5 vertices, and is reserved."""
    with ledger.transaction():
        lease = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
        ledger.credit(lease, 2, 1, 0.0, 1.0)
        lease.reserved_until_s = until_s
        ledger.end_lease(lease, 2.0, "worker evicted")
    return lease


def begin_again(ledger: Ledger) -> Ledger:
    ledger.close()
    return Ledger(ledger.path, shared_disk=False, durable=False)


def test_a_reservation_survives_its_master(ledger: Ledger) -> None:
    lease = reserve(ledger, 600.0)
    for _ in range(2):
        ledger = begin_again(ledger)
        assert {number: fields(each) for number, each in ledger.leases.reserved.items()} == {lease.id: fields(lease)}
        assert ledger.leases.reserved[lease.id].reserved_until_s == 600.0
        assert ledger.leases.reserved[lease.id].rest == Span(0, 2, 5)
    assert [*ledger.leases] == []


def test_a_reservation_that_expired_is_not_read_again(ledger: Ledger) -> None:
    lease = reserve(ledger, 600.0)
    with ledger.transaction():
        ledger.event(599.0, "test", "the run goes on")
    ledger = begin_again(ledger)
    assert {*ledger.leases.reserved} == {lease.id}
    with ledger.transaction():
        ledger.event(600.0, "test", "and on")
    ledger = begin_again(ledger)
    assert ledger.leases.reserved == {}
    ended = ledger.closed_lease(lease.id)
    assert ended is not None and ended[1] == "worker evicted"


def test_a_lease_that_is_opened_again_is_reserved_no_more(ledger: Ledger) -> None:
    number = reserve(ledger, 600.0).id
    ledger = begin_again(ledger)
    with ledger.transaction():
        ledger.reopen(ledger.leases.reserved[number], 4, "w1.1")
    before = state(ledger)
    ledger = begin_again(ledger)
    assert state(ledger) == before
    assert ledger.leases.reserved == {}
    assert [fields(lease) for lease in ledger.leases] == [(number, 1, 0, 0, 4, 2, "w1.1", 1, (), 2, 1, None)]
    assert ledger.closed_lease(number) is None
    with ledger.transaction():
        ledger.end_lease(ledger.leases[number], 3.0, "the worker left")
    assert begin_again(ledger).leases.reserved == {}


def test_a_lease_that_ends_without_reservation_leaves_none(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.end_lease(ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test"), 2.0, "test")
    assert ledger.leases.reserved == begin_again(ledger).leases.reserved == {}


def test_overtaken_ranges_survive_their_master(ledger: Ledger) -> None:
    with ledger.transaction():
        lease = ledger.lease(ledger.spans[0], 5, "w1", 1.0, "test")
        ledger.credit(lease, 2, 1, 0.0, 1.0)
        ledger.end_lease(lease, 2.0, "too slow", reassigned=True)
        again = ledger.lease(ledger.spans[0], 4, "w2", 3.0, "test")
        again.times_reassigned = 1
        ledger.end_lease(again, 4.0, "too slow", reassigned=True)
        ledger.end_lease(ledger.lease(ledger.spans[-1], 9, "w3", 5.0, "test"), 6.0, "released")
    ranges = [(Span(0, 2, 5), 1), (Span(0, 2, 4), 2)]  # oldest first: the later one holds for their overlap
    assert ledger.reassigned_ranges() == ranges
    ledger = begin_again(ledger)
    assert ledger.reassigned_ranges() == ranges
    with ledger.transaction():
        ledger.close_epoch(0, 1, 7.0)
    assert begin_again(ledger).reassigned_ranges() == []

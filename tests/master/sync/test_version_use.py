"""Old versions that may still be the base of a push."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from master.state.lease_records import LeaseState, LeaseTable
from master.state.worker_records import WorkerRecord
from master.sync.version_use import VersionUse


def version_use() -> VersionUse:
    return VersionUse(cast(Any, SimpleNamespace(leases=LeaseTable())))


def end(use: VersionUse, record: WorkerRecord, reserved_until_s: float) -> None:
    """End a worker that will be restarted; the rest of its lease is reserved for it."""
    lease = LeaseState(1, 1, 0, 0, 10, 0, record.name, reserved_until_s=reserved_until_s)
    lease.reserved_versions = use.forget(record)
    use._ledger.leases.reserved[lease.id] = lease


def speak(use: VersionUse, name: str, base: int) -> WorkerRecord:
    """Handle a worker's report of its version, and answer with the next one."""
    record = WorkerRecord(name)
    use.handle(record, base, 1)
    use.record_reply(record, base + 1)
    return record


def versions_in_use(use: VersionUse, now: float) -> set[int]:
    return {version for version in range(20) if use.in_use(version, now)}


def test_a_worker_may_use_the_version_it_names_or_a_later_answer() -> None:
    use = version_use()
    w1, _ = speak(use, "w1", 3), speak(use, "w2", 7)
    assert versions_in_use(use, 0.0) == {3, 4, 7, 8}
    use.handle(w1, 4, 2)  # its next message: it has received the last answer
    assert versions_in_use(use, 1.0) == {4, 7, 8}
    assert use.active_workers == 2


def test_a_message_that_comes_again_changes_nothing() -> None:
    use = version_use()
    w1 = speak(use, "w1", 3)
    use.handle(w1, 3, 1)
    use.record_reply(w1, 9)
    assert versions_in_use(use, 0.0) == {3, 4, 9}
    use.handle(w1, 9, 2)
    assert versions_in_use(use, 0.0) == {9}
    assert use.active_workers == 1


def test_one_that_has_ended_stands_on_nothing() -> None:
    use = version_use()
    w1, _ = speak(use, "w1", 3), speak(use, "w2", 7)
    use.forget(w1)
    assert versions_in_use(use, 0.0) == {7, 8}
    assert use.active_workers == 1
    use.forget(w1)
    assert (versions_in_use(use, 0.0), use.active_workers) == ({7, 8}, 1)


def test_one_that_is_started_again_may_bring_what_stands_on_its_last_versions() -> None:
    use = version_use()
    end(use, speak(use, "w1", 3), 10.0)
    assert versions_in_use(use, 9.0) == {3, 4}
    assert versions_in_use(use, 11.0) == set()


def test_what_is_brought_settles_it() -> None:
    use = version_use()
    end(use, speak(use, "w1", 3), 10.0)
    use.handle(WorkerRecord("w1.1"), -1, 1)
    assert versions_in_use(use, 5.0) == set()


def test_versions_of_an_earlier_master_are_kept_until_all_who_may_stand_on_them_have_spoken() -> None:
    use, w1, w2 = version_use(), WorkerRecord("w1"), WorkerRecord("w2")
    use.inherit([w1, w2], [5, 6], 0.0)
    use.handle(w1, 6, 9)
    assert versions_in_use(use, 0.0) == {5, 6}
    use.handle(w2, 5, 4)
    use.forget(w2)
    assert versions_in_use(use, 0.0) == {6}


def test_a_survivor_that_ends_without_a_word_may_stand_on_any_of_them() -> None:
    use, w1 = version_use(), WorkerRecord("w1")
    use.inherit([w1], [5, 6], 0.0)
    end(use, w1, 10.0)
    assert versions_in_use(use, 9.0) == {5, 6}


def test_versions_of_an_earlier_master_are_kept_while_anything_is_reserved_from_its_time() -> None:
    use = version_use()
    use.inherit([], [5, 6], 10.0)
    assert versions_in_use(use, 9.0) == {5, 6}
    assert versions_in_use(use, 10.0) == set()

"""The table of workers: counts by status, and the names of those that have ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from master.state.worker_records import WorkerStatus, WorkerTable


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([*WorkerStatus, None, "end"]))))
def test_workers_are_counted_by_status(changes: list[tuple[int, WorkerStatus | str | None]]) -> None:
    workers, plain = WorkerTable(), dict[str, WorkerStatus | None]()
    for number, change in changes:
        name = f"w{number}"
        if change == "end":
            workers.end(workers.of(name))
            plain.pop(name, None)
        else:
            assert not isinstance(change, str)
            workers.move(workers.add(name), change)
            plain[name] = change
    for status in WorkerStatus:
        assert workers.count(status) == [*plain.values()].count(status)
    assert workers.alive == workers.count(WorkerStatus.QUEUED, WorkerStatus.RUNNING) == sum(r.is_alive for r in workers)
    assert {record.name: record.status for record in workers} == plain


def test_only_the_name_of_an_ended_worker_is_kept() -> None:
    workers = WorkerTable()
    workers.add_ended(["w0"])
    record = workers.add("w1")
    assert workers.add("w1") is workers.get("w1") is workers.of("w1") is record
    workers.end(record)
    workers.end(record)
    assert workers.get("w1") is None and workers.of("w1") is not record
    assert ["w0" in workers, "w1" in workers, "w2" in workers] == [True, True, False]
    assert [*workers] == []
    assert "stranger" not in workers and workers.of("stranger") is not workers.of("stranger")

"""Events are rows of a transaction, and are reported once it is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from master.simulation.faulty_network import VirtualClock
from master.store.journal import MAX_WARNINGS, WARNINGS, Events
from master.store.ledger import Ledger


class Log:
    """A ledger with its events, and the reported ones."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.log"
        self.ledger = Ledger(folder / "ledger.db", shared_disk=False, create=True, durable=False)
        self.reported: list[str] = []
        self.clock = VirtualClock(5.0)
        self.events = Events(self.ledger, self.path, self.report, self.clock)

    def report(self, topic: str, text: str, facts: object) -> None:
        assert not self.ledger.in_transaction, "the receiver of a report may read the ledger"
        self.reported.append(text)

    @property
    def rows(self) -> list[tuple[float, str, str]]:
        return list(self.ledger._db.execute("SELECT at_s, topic, text FROM events ORDER BY rowid"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    yield log
    log.events.close()
    log.ledger.close()


def test_an_event_is_reported_once_its_transaction_is_committed(log: Log) -> None:
    with log.ledger.transaction():
        log.events.record("epoch", {"epoch": 1}, "first")
        log.events.record("cut", {}, "only kept", quiet=True)
        log.events.record("sizing", {}, "second", why="Because")
        assert log.reported == [] and not log.path.exists()
    assert log.reported == ["first", "second"]
    assert [line.split(maxsplit=2)[2] for line in log.path.read_text().splitlines()] == [
        "epoch     first",
        "sizing    second",
    ]
    assert log.rows == [(5.0, "epoch", "first"), (5.0, "cut", "only kept"), (5.0, "sizing", "second. Because")]


def test_what_a_transaction_that_fails_says_has_not_happened(log: Log) -> None:
    with pytest.raises(KeyError), log.ledger.transaction():
        log.events.record("epoch", {}, "credited in full")
        raise KeyError
    with log.ledger.transaction():
        pass
    assert (log.rows, log.reported) == ([], [])


def test_outside_of_a_transaction_an_event_has_its_own(log: Log) -> None:
    log.events.record("warning", {}, "no machine")
    assert log.reported == ["no machine"] and log.rows == [(5.0, "warning", "no machine")]
    assert log.ledger.get(WARNINGS) is None, "what a worker causes pushes nothing out"
    for number in range(5):
        log.events.record("warning", {}, f"number {number}", standing=True)
    assert [text for _, text in log.ledger.get(WARNINGS)] == [f"number {n}" for n in range(5 - MAX_WARNINGS, 5)]

"""The history of a run: columns that end with the figures of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.sftp.roster import End, FleetFacts, Instance, Roster
from master.store.reader import opened, read_clock
from master.views.page.document import History, SizeReason, gather_reasons, read_history, read_page_facts


def history(root: Path, points: int = 400) -> History:
    with opened(root) as db:
        return read_history(db, root, read_clock(db, root), points)


def test_credit_rises_to_all_that_was_credited(finished: Path) -> None:
    credit = history(finished).credit
    assert credit["at_s"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert credit["credited"] == [250.0 * i for i in range(1, 9)]


def test_workers_are_counted_at_each_moment_that_changed_them(finished: Path) -> None:
    workers = history(finished).workers
    assert workers["at_s"] == [0.0, 1.0, 3.0, 9.0, 10.0]
    assert workers["alive"] == [2.0, 3.0, 2.0, 1.0, 0.0]
    assert workers["lost"] == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_bytes_end_at_what_the_report_counts_and_none_is_left_out(finished: Path) -> None:
    facts = read_page_facts(finished)
    assert facts.history.bytes["up"][-1] == pytest.approx(facts.report.bytes_up) == 5300
    assert facts.history.bytes["down"][-1] == pytest.approx(facts.report.bytes_down) == 9000


def test_staleness_has_its_mean_and_its_largest(finished: Path) -> None:
    staleness = history(finished, points=2).staleness
    assert staleness["most"] == [3.0, 3.0]
    assert sum(staleness["mean"]) == pytest.approx(3.0)


def test_sizes_are_given_with_their_reasons_the_most_usual_first(finished: Path) -> None:
    shown = history(finished)
    assert [(one.reason, one.number, one.least, one.most) for one in shown.chunk_reasons] == [
        ("sized for its life", 6, 250, 250),
        ("the first chunk", 2, 250, 250),
    ]
    assert set(shown.chunks["mean"]) == {250.0}


def test_reasons_that_differ_in_their_numbers_alone_are_one() -> None:
    reasons = [SizeReason("half of 3,232 left, 0.5 s", 1, 5, 5), SizeReason("half of 96 left, 0.7 s", 2, 3, 9)]
    alone = SizeReason("1/8 of its share", 2, 4, 4)
    assert gather_reasons([*reasons, alone]) == [SizeReason("half of … left, … s", 3, 3, 9), alone]


def test_what_f_logged_is_there_by_name(finished: Path) -> None:
    logged = history(finished).logged
    assert list(logged) == ["loss"]
    assert logged["loss"]["credited"][-1] == 2000.0
    assert set(logged["loss"]["mean"]) == {0.5}


@pytest.mark.parametrize("points", [1, 3, 50])
def test_no_more_points_than_asked_for_and_the_last_value_is_the_same(finished: Path, points: int) -> None:
    credit = history(finished, points).credit
    assert len(credit["at_s"]) <= points + 1  # the last moment begins another part
    assert credit["credited"][-1] == 2000.0


def test_a_run_without_instances_has_no_cost(finished: Path) -> None:
    assert history(finished).cost == {"at_s": [], "dollars": []}


def test_what_instances_cost_ends_at_what_the_report_says(finished: Path) -> None:
    roster = Roster(finished)
    roster.create(FleetFacts("run", "0" * 64, "1", "us-east-1", "ami-1", ""))
    roster.keep(Instance("i-1", "w1", "c5.large", "us-east-1a", 100.0, 36.0))  # a cent a second, on demand
    roster.keep(End("i-1", 190.0, "the run is finished"))
    facts = read_page_facts(finished)
    cost = facts.history.cost
    assert facts.report.money is not None
    assert cost["at_s"][0] == 0.0 and cost["at_s"][-1] == 10.0
    assert cost["dollars"] == sorted(cost["dollars"])
    assert 0 < cost["dollars"][-1] <= facts.report.money.dollars


def test_events_come_after_the_one_that_was_seen(finished: Path) -> None:
    both = read_page_facts(finished).events
    assert (both.topic, both.at_s, both.left_out) == (["submitted", "evicted"], [0.0, 3.0], 0)
    assert both.after(1).topic == ["evicted"]
    assert (both.after(both.last).topic, both.after(both.last).last) == ([], both.last)

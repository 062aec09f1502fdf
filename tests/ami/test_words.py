"""What the daemon hears, from threads and from signal handlers."""

from __future__ import annotations

from ami.decisions import LeaveInstance, Words, WorkerExited

NOTICE, SIGNAL = LeaveInstance("spot interruption", evicted=True), LeaveInstance("the instance is shutting down")


def test_that_it_is_to_leave_stays_said() -> None:
    words = Words()
    assert words.leave is None and words.hear(0.0) is None
    words.say(SIGNAL)
    assert words.pause(1e6) == SIGNAL
    assert words.leave == SIGNAL and words.going_down


def test_a_notice_tells_more_than_a_signal() -> None:
    for order in ([NOTICE, SIGNAL], [SIGNAL, NOTICE]):
        words = Words()
        for word in order:
            words.say(word)
        assert words.leave == NOTICE and words.going_down


def test_a_notice_alone_does_not_mean_that_the_system_goes_down() -> None:
    words = Words()
    words.say(NOTICE)
    assert words.leave == NOTICE and not words.going_down


def test_the_end_of_a_worker_is_heard_once() -> None:
    words = Words()
    words.say(WorkerExited(0, ""))
    assert words.hear() == WorkerExited(0, "") and words.hear(0.0) is None and words.leave is None

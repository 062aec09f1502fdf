"""The event queue of the daemon, filled by threads and signal handlers."""

from __future__ import annotations

from ami.decisions import EventQueue, LeaveInstance, WorkerExited

NOTICE, SIGNAL = LeaveInstance("spot interruption", evicted=True), LeaveInstance("the instance is shutting down")


def test_that_it_is_to_leave_stays_said() -> None:
    events = EventQueue()
    assert events.leave is None and events.get(0.0) is None
    events.put(SIGNAL)
    assert events.pause(1e6) == SIGNAL
    assert events.leave == SIGNAL and events.going_down


def test_a_notice_tells_more_than_a_signal() -> None:
    for order in ([NOTICE, SIGNAL], [SIGNAL, NOTICE]):
        events = EventQueue()
        for event in order:
            events.put(event)
        assert events.leave == NOTICE and events.going_down


def test_a_notice_alone_does_not_mean_that_the_system_goes_down() -> None:
    events = EventQueue()
    events.put(NOTICE)
    assert events.leave == NOTICE and not events.going_down


def test_the_end_of_a_worker_is_one_event() -> None:
    events = EventQueue()
    events.put(WorkerExited(0, ""))
    assert events.get() == WorkerExited(0, "") and events.get(0.0) is None and events.leave is None

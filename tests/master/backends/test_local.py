"""The local back end: its script kills real processes, at the times of an injected clock."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

from chunk_model.families import Normal
from chunk_model.traces import parse_trace
from gridml.errors import StorageError, UsageError
from master.backends.local import _REAP_S, Ending, Local, classify
from master.backends.script import PlannedLife, Replay, Script, ScriptedLives, Steady
from master.simulation.faulty_network import VirtualClock
from master.state.jobs import JobEvent, State

LIMIT_S = 60
ENDS = [state for state in State if state.ended]
WAITS = "echo ready; exec sleep 600"
LEAVES = "trap 'echo pushed; exit 0' TERM; echo ready; sleep 600 & wait"
STAYS = "trap '' TERM; echo ready; exec sleep 600"


@dataclass
class Pool:
    """A local back end of shells, whose clock only moves in `at`."""

    backend: Local
    clock: VirtualClock
    logs: Path
    events: list[JobEvent] = field(default_factory=list)

    def at(self, script_s: float) -> None:
        """Move the script's clock, and let the back end act."""
        self.clock.now_s = 1000.0 + script_s
        self.poll()

    def poll(self) -> None:
        self.events += self.backend.poll()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s; events: {self.events}"
            time.sleep(0.002)
            self.poll()

    def until_ready(self, *workers: str) -> None:
        for worker in workers:
            self.until(partial(self.ready, worker))

    def ready(self, worker: str) -> bool:
        return bool(self.of(State.RUNNING, worker=worker)) and "ready" in self.log(worker)

    def of(self, *states: State, worker: str = "", machine: str = "") -> list[JobEvent]:
        """Return the events with these states; of one worker or machine if given."""
        events = [event for event in self.events if event.state in states]
        return [event for event in events if worker in ("", event.worker) and machine in ("", event.machine)]

    def ended(self, workers: int) -> bool:
        return len(self.of(*ENDS)) == workers

    def until_ended(self, worker: str) -> JobEvent:
        self.until(lambda: self.state(worker).ended)
        return self.last(worker)

    def last(self, worker: str) -> JobEvent:
        return [event for event in self.events if event.worker == worker][-1]

    @property
    def kills(self) -> Counter[tuple[str, bool | None]]:
        """Count the workers ended by the script, by machine and whether SIGTERM came first."""
        return Counter((event.machine, event.graceful) for event in self.of(State.EVICTED) if not event.cancelled)

    def state(self, worker: str) -> State:
        return self.last(worker).state

    def log(self, worker: str) -> str:
        return (self.logs / f"{worker}.log").read_text()


Make = Callable[..., Pool]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A maker of pools that are closed after the test. Workers run the shell text, or the one of their name."""
    pools: list[Pool] = []

    def make(script: Script, text: str | dict[str, str] = WAITS, **options: object) -> Pool:
        clock, logs = VirtualClock(1000.0), tmp_path / "logs"

        def command(worker: str) -> Sequence[str]:
            return ["/bin/sh", "-c", text if isinstance(text, str) else text[worker]]

        pool = Pool(Local(command, script, logs, clock=clock, close_grace_s=0.1, **options), clock, logs)  # type: ignore[arg-type]
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.backend.close()


@dataclass(frozen=True)
class Fixed(Script):
    """One slot whose lives last `duration_s` and end in one way."""

    duration_s: float
    graceful: bool
    grace_s: float = 30.0

    @property
    def slots(self) -> int:
        return 1

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        return PlannedLife(free_s, self.duration_s, graceful=self.graceful, grace_s=self.grace_s)


def next_change_s(backend: Local) -> float | None:
    """Return the seconds until `poll` has work for the script, 0 or more; None if it only waits for workers."""
    now = backend._now()
    changes = [
        now + _REAP_S if job.killed else job.ends_s if job.ending is None else job.ending.kill_s
        for job in backend._jobs.values()
    ]
    if backend._queue:
        changes += [life.opens_s for slot, life in backend._open_slots(now) if not backend._is_avoided(slot)]
    planned = [change for change in changes if change is not None]
    return max(0.0, min(planned) - now) if planned else None


def started(pool: Pool, *workers: str) -> None:
    for worker in workers:
        pool.backend.submit(worker)
    pool.poll()
    pool.until_ready(*workers)


@pytest.mark.real
def test_sigterm_with_grace_lets_the_worker_push(make: Make) -> None:
    pool = make(Fixed(8.1, graceful=True), LEAVES)
    started(pool, "w1")
    pool.at(8.0)
    assert pool.state("w1") is State.RUNNING and next_change_s(pool.backend) == pytest.approx(0.1)
    pool.at(8.1)
    end = pool.until_ended("w1")
    assert (end.state, end.graceful, end.exit_code) == (State.EVICTED, True, 0)
    assert end.detail == "SIGTERM, left with exit status 0 after 8.1 s (script: life 1 of slot-1)"
    assert "pushed" in pool.log("w1") and pool.kills == {("slot-1", True): 1}


@pytest.mark.real
def test_a_worker_that_ignores_sigterm_gets_sigkill_after_the_grace_and_not_before(make: Make) -> None:
    pool = make(Fixed(8.0, graceful=True, grace_s=30.0), STAYS)
    started(pool, "w1")
    pid = pool.last("w1").pid
    assert pid is not None
    pool.at(8.0)
    pool.at(37.9)
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and pool.state("w1") is State.RUNNING
    assert next_change_s(pool.backend) == pytest.approx(0.1)
    pool.at(38.0)
    end = pool.until_ended("w1")
    assert (end.state, end.graceful, end.exit_code) == (State.EVICTED, True, -signal.SIGKILL)
    assert end.detail == "SIGTERM, then SIGKILL after 38.0 s (script: life 1 of slot-1)"
    assert pool.kills == {("slot-1", True): 1} and not psutil.pid_exists(pid)


@pytest.mark.real
def test_sigkill_without_grace_gives_the_worker_no_chance(make: Make) -> None:
    pool = make(Fixed(8.0, graceful=False), LEAVES)
    started(pool, "w1")
    pool.at(8.0)
    end = pool.until_ended("w1")
    assert (end.state, end.graceful, end.exit_code) == (State.EVICTED, False, -signal.SIGKILL)
    assert end.detail == "SIGKILL after 8.0 s (script: life 1 of slot-1)" and "pushed" not in pool.log("w1")
    assert pool.kills == {("slot-1", False): 1}


@pytest.mark.real
def test_a_kill_takes_the_worker_s_children_too(make: Make) -> None:
    pool = make(Fixed(8.0, graceful=False), "sleep 600 & echo $!; echo ready; wait")
    started(pool, "w1")
    child = psutil.Process(int(pool.log("w1").split()[0]))
    assert child.is_running()
    pool.at(8.0)
    pool.until_ended("w1")
    pool.until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.real
def test_a_worker_leads_a_session_of_its_own_out_of_reach_of_the_terminal(make: Make) -> None:
    pool = make(Steady(1))
    started(pool, "w1")
    pid = pool.last("w1").pid
    assert pid is not None and os.getsid(pid) == pid


@pytest.mark.real
def test_a_second_cancel_never_lengthens_the_grace(make: Make) -> None:
    pool = make(Steady(1), STAYS)
    started(pool, "w1")
    pool.backend.cancel("w1", grace_s=5.0)
    pool.backend.cancel("w1", grace_s=500.0)
    pool.at(6.0)
    end = pool.until_ended("w1")
    assert end.detail == "SIGTERM, then SIGKILL after 6.0 s (cancelled)" and not pool.kills


@pytest.mark.real
def test_children_left_behind_by_a_worker_that_finished_go_with_it(make: Make) -> None:
    pool = make(Steady(1), "sleep 600 & echo $!; exit 0")
    pool.backend.submit("w1")
    pool.poll()
    assert pool.until_ended("w1").state is State.FINISHED
    left = int(pool.log("w1").split()[0])
    pool.until(lambda: not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.real
def test_seeded_lives_kill_every_slot_again_and_again_half_of_them_with_sigkill(make: Make) -> None:
    script = ScriptedLives(4, Normal(100, 20), seed=3, grace_s=1e6, late=0)
    pool = make(script, LEAVES)
    for number in range(16):
        # Four are alive at any time; the clock jumps to the next planned end, and stands until that worker has gone.
        started(pool, *(["w0", "w1", "w2", "w3"] if number == 0 else [f"w{number + 3}"]))
        wait_s = next_change_s(pool.backend)
        assert wait_s is not None
        pool.at(pool.clock.now_s - 1000.0 + wait_s + 1e-6)
        pool.until(partial(pool.ended, number + 1))
    kills = pool.kills
    slots = [f"slot-{number}" for number in range(1, 5)]
    assert {slot for slot, _ in kills} == {*slots}
    for graceful, sudden in [(kills[slot, True], kills[slot, False]) for slot in slots]:
        assert abs(graceful - sudden) <= 1 <= min(graceful, sudden)
    assert kills.total() == 16
    for slot in range(4):
        begun, ended = (pool.of(*states, machine=f"slot-{slot + 1}") for states in ([State.RUNNING], ENDS))
        for k, (begin, end) in enumerate(zip(begun, ended, strict=False)):
            life = script.life(slot, k)
            assert end.time_s - begin.time_s == pytest.approx(life.duration_s, abs=1e-4)
            assert (end.state, end.graceful) == (State.EVICTED, life.graceful)


@pytest.mark.real
def test_a_life_that_counts_from_the_first_message_does_not_end_before_it(make: Make) -> None:
    """Regression: lives of 9 s on a slow machine, whose workers took 10 s to begin, all ended before they began."""
    pool = make(Fixed(9.0, graceful=False), from_message=True)
    started(pool, "w1")
    pool.at(60.0)
    pool.poll()
    assert pool.state("w1") is State.RUNNING
    pool.backend.reported("w1")
    assert next_change_s(pool.backend) == 9.0
    pool.at(68.9)
    pool.poll()
    assert pool.state("w1") is State.RUNNING
    pool.at(69.0)
    assert pool.until_ended("w1").state is State.EVICTED
    assert "SIGKILL 9.0 s after its first message" in pool.of(State.RUNNING)[0].detail
    pool.backend.reported("w1")  # it has ended


def test_a_late_slot_takes_its_worker_when_it_opens(make: Make) -> None:
    script = ScriptedLives(4, Normal(100, 20), seed=3)
    pool = make(script)
    workers = ["w1", "w2", "w3", "w4"]
    for worker in workers:
        pool.backend.submit(worker)
    pool.poll()
    assert [pool.state(worker) for worker in workers] == [State.RUNNING] * 3 + [State.QUEUED]
    assert next_change_s(pool.backend) == pytest.approx(script.opens_s(3))
    pool.at(script.opens_s(3) + 1e-6)
    assert pool.state("w4") is State.RUNNING and pool.last("w4").machine == "slot-4"


@pytest.mark.real
def test_there_are_places_for_more_workers_and_who_is_there_stays(make: Make) -> None:
    pool = make(Steady(1))
    started(pool, "w1")
    pool.backend.submit("w2")
    pool.at(10.0)
    assert pool.state("w2") is State.QUEUED
    pool.backend.scale(2)
    pool.poll()
    assert pool.state("w2") is State.RUNNING and pool.last("w2").machine == "slot-2"
    pool.backend.scale(1)
    pool.poll()
    assert pool.state("w1") is pool.state("w2") is State.RUNNING


@pytest.mark.real
def test_replay_of_a_trace(make: Make) -> None:
    trace = parse_trace(
        ["0,add,a", "5000,add,b", "7000,remove,b", "9000,remove,a", "20000,add,b", "30000,add,c", "31000,remove,c"]
    )
    pool = make(Replay(trace, graceful_share=0.0))
    started(pool, "w1")
    pool.backend.submit("w2")
    pool.at(4.9)
    assert pool.last("w1").machine == "a" and pool.state("w2") is State.QUEUED
    pool.at(5.0)
    assert pool.last("w2").machine == "b"
    pool.at(7.0)
    assert pool.until_ended("w2").detail == "SIGKILL after 2.0 s (script: life 1 of b)"
    pool.at(9.0)
    assert pool.until_ended("w1").state is State.EVICTED
    pool.backend.submit("w3")
    pool.poll()
    assert pool.state("w3") is State.QUEUED and next_change_s(pool.backend) == pytest.approx(11.0)
    pool.at(20.0)
    assert pool.last("w3").machine == "b"
    pool.at(31.5)  # c opened and closed without a worker, and never opens again
    pool.backend.submit("w4")
    pool.poll()
    assert pool.state("w4") is State.QUEUED and next_change_s(pool.backend) is None
    assert pool.kills == {("a", False): 1, ("b", False): 1}


@pytest.mark.real
def test_a_worker_that_ended_before_its_kill_is_not_counted_as_killed(make: Make) -> None:
    pool = make(Fixed(8.0, graceful=False), {"w1": "exit 0", "w2": "exit 7", "w3": "kill -SEGV $$"})
    for worker, state, detail in [
        ("w1", State.FINISHED, "exit status 0 after"),
        ("w2", State.LOST, "exit status 7 after"),
        ("w3", State.LOST, "signal SIGSEGV after"),
    ]:
        pool.backend.submit(worker)
        pool.poll()
        pid = pool.last(worker).pid
        assert pid is not None
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        pool.at(pool.clock.now_s - 1000.0 + 100.0)
        end = pool.until_ended(worker)
        assert end.state is state and end.detail.startswith(detail)
    assert not pool.kills and "see w3.log" in pool.last("w3").detail


@pytest.mark.real
def test_logs_hold_what_each_worker_wrote(make: Make) -> None:
    pool = make(Steady(2), {"w1": "echo out; echo err >&2", "w2": "read line || echo no input"})
    for worker in ("w1", "w2"):
        pool.backend.submit(worker)
    pool.poll()
    pool.until_ended("w1")
    pool.until_ended("w2")
    assert pool.log("w1") == "out\nerr\n" and pool.log("w2") == "no input\n"


@pytest.mark.real
def test_threads_and_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("FROM_MASTER", "kept")
    pool = make(
        Steady(1),
        "echo $OMP_NUM_THREADS $MKL_NUM_THREADS $FROM_MASTER",
        threads=3,
    )
    pool.backend.submit("w1")
    pool.poll()
    pool.until_ended("w1")
    assert pool.log("w1") == "3 3 kept\n"


def test_a_command_that_does_not_exist_loses_the_worker_and_says_why(tmp_path: Path) -> None:
    backend = Local(lambda worker: ["/no/such/worker"], Steady(1), tmp_path)
    backend.submit("w1")
    events = backend.poll()
    assert [event.state for event in events] == [State.QUEUED, State.LOST]
    assert "could not be started" in events[1].detail and "/no/such/worker" in events[1].detail
    backend.close()


@pytest.mark.parametrize("worker", ["", "../w1", "/w1"])
def test_a_name_that_cannot_name_a_log_is_refused(tmp_path: Path, worker: str) -> None:
    backend = Local(lambda worker: ["true"], Steady(1), tmp_path)
    with pytest.raises(UsageError, match="worker name"):
        backend.submit(worker)


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 threads"):
        Local(lambda worker: ["true"], Steady(1), tmp_path, threads=0)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="folder of the logs"):
        Local(lambda worker: ["true"], Steady(1), tmp_path / "file" / "logs")


SUDDEN = Ending(8.0, graceful=False)
GRACE = Ending(38.0, graceful=True)


@pytest.mark.parametrize(
    ("code", "ending", "state", "graceful", "why"),
    [
        (0, None, State.FINISHED, False, "exit status 0"),
        (3, None, State.LOST, False, "exit status 3"),
        (-signal.SIGKILL, None, State.LOST, False, "signal SIGKILL"),  # the kernel, short of memory
        (-signal.SIGTERM, None, State.LOST, False, "signal SIGTERM"),
        (-40, None, State.LOST, False, "signal 40"),
        (-signal.SIGKILL, SUDDEN, State.EVICTED, False, "SIGKILL"),
        (0, SUDDEN, State.FINISHED, False, "exit status 0"),  # it was faster
        (3, SUDDEN, State.LOST, False, "exit status 3"),
        (0, GRACE, State.EVICTED, True, "SIGTERM, left with exit status 0"),
        (3, GRACE, State.EVICTED, True, "SIGTERM, left with exit status 3"),
        (-signal.SIGTERM, GRACE, State.EVICTED, True, "SIGTERM, left with signal SIGTERM"),
        (-signal.SIGKILL, GRACE, State.EVICTED, True, "SIGTERM, then SIGKILL"),
    ],
)
def test_classify(code: int, ending: Ending | None, state: State, graceful: bool, why: str) -> None:
    assert classify(code, ending) == (state, graceful, why)


def test_machines_that_rest_are_not_gone(make: Make) -> None:
    pool = make(Steady(2))
    pool.backend.avoid(["slot-1", "slot-2"])
    pool.backend.submit("w1")
    pool.at(5.0)
    assert not pool.of(State.RUNNING)
    assert pool.backend.exhausted() is None
    assert next_change_s(pool.backend) is None, "nothing to wake up for: who lets them rest looks again"
    pool.backend.avoid(["slot-1"])
    pool.at(6.0)
    assert pool.of(State.RUNNING, worker="w1", machine="slot-2")


def test_a_worker_that_is_stopped_is_suspended_until_it_goes_on(make: Make) -> None:
    pool = make(Steady(1))
    pool.backend.submit("w1")
    pool.until_ready("w1")
    pid = pool.last("w1").pid
    assert pid is not None
    for number, state in ((signal.SIGSTOP, State.SUSPENDED), (signal.SIGCONT, State.RUNNING)):
        os.kill(pid, number)
        pool.until(lambda state=state: pool.state("w1") is state)  # type: ignore[misc]
    os.kill(pid, signal.SIGSTOP)
    pool.until(lambda: pool.state("w1") is State.SUSPENDED)
    pool.backend.cancel("w1")
    assert pool.until_ended("w1").cancelled, "a stopped process can be killed"


def test_a_worker_that_ends_during_a_poll_is_reaped_by_the_next(make: Make) -> None:
    """Regression: the stop state of an ended process cannot be read, which ended the master."""
    pool = make(Steady(1), "exit 0")
    pool.backend.submit("w1")
    pool.poll()
    job = pool.backend._jobs["w1"]
    os.waitid(os.P_PID, job.process.pid, os.WEXITED | os.WNOWAIT)
    pool.backend._check_stopped(job)
    assert pool.until_ended("w1").state is State.FINISHED

"""An instance's life in virtual time, with a scripted master, EC2 and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ami.daemon import GOODBYE_TIMEOUT_S, MAX_EVICTION_WAIT_S, Daemon, DaemonServices
from ami.decisions import EventQueue, LeaveInstance, WorkerExited
from ami.imds import Identity, OwnInstance
from gridml.carriers.enrolment import Assignment, Refused
from gridml.errors import RunError
from gridml.protocol.outbox import SAVED
from master.simulation.faulty_network import VirtualClock

ORPHAN_S = 900.0
INSTANCE = OwnInstance("a run", "master", 2222, "AAAA", "t0ken", ORPHAN_S)
NOTICE = LeaveInstance("spot interruption: terminate at noon", evicted=True)
SHUTDOWN = LeaveInstance("the instance is shutting down")
WORK = Assignment("w7", (), "mnist.py", ("--patience", "120"))


class TimedEventQueue(EventQueue):
    """An event queue in virtual time: waiting for an event advances the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def get(self, within_s: float | None = None) -> LeaveInstance | WorkerExited | None:
        until_s = self._clock() + (float("inf") if within_s is None else within_s)
        while (event := super().get(0.0)) is None and self._clock() < until_s:
            next_s = self._clock.next_s
            self._clock.advance(until_s if next_s is None else min(next_s, until_s))
        return event


class World:
    """A scripted world. `enrolments` are the master's answers in turn, the last one repeated; `lives` are workers:
    seconds and status."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.events = TimedEventQueue(self.clock)
        self.enrolments: list[Assignment | Exception] = [WORK]
        self.lives: list[tuple[float, int]] = [(1000.0, 0)]
        self.goodbyes: list[tuple[str, int, str, bool]] = []
        self.goodbye_error: Exception | None = None
        self.preparing: list[Exception] = []
        self.taken = False  # reported by the metadata service
        self.imds_error: Exception | None = None
        self.asked_s: list[float] = []
        self.log: list[str] = []
        self.runs = 0
        self.output = self.told_output = ""  # of the worker

    # the master

    def enrol(self, token: str, document: str, signature: str) -> Assignment:
        assert (token, document, signature) == ("t0ken", "document", "signature")
        self.asked_s.append(self.clock())
        answer = self.enrolments.pop(0) if len(self.enrolments) > 1 else self.enrolments[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def goodbye(self, job: str, exit_status: int, why: str, evicted: bool, log: str) -> None:
        if self.goodbye_error is not None:
            raise self.goodbye_error
        self.goodbyes.append((job, exit_status, why, evicted))
        self.told_output = log

    # EC2

    def check(self) -> bool:
        if self.imds_error is not None:
            raise self.imds_error
        if self.taken:
            self.events.put(NOTICE)
        return self.taken

    def take(self) -> None:
        self.taken = True
        self.events.put(NOTICE)

    # the instance

    def prepare(self, assignment: Assignment) -> None:
        if self.preparing:
            raise self.preparing.pop(0)

    def run(self, assignment: Assignment) -> WorkerExited:
        self.runs += 1
        seconds, status = self.lives.pop(0)
        began_s = self.clock()
        self.events.get(seconds)  # an event ends it early
        return WorkerExited(status if self.clock() - began_s >= seconds else 0, self.output)

    def live(self) -> None:
        services = DaemonServices(
            self,
            lambda: Identity("document", "signature"),
            self.check,
            self.prepare,
            self.run,
            self.events,
            self.log.append,
            self.clock,
            lambda: 0.5,
        )
        Daemon(INSTANCE, services).live()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    assert not any("t0ken" in line for line in world.log)


def test_a_worker_works_to_its_end(world: World) -> None:
    world.live()
    assert world.goodbyes == [("w7", 0, "the worker ended with status 0", False)]
    assert world.clock() == 1000.0


def test_the_workers_output_is_sent_to_the_master(world: World) -> None:
    world.output = "no torch here\nUnfit: torch is missing"
    world.lives = [(5.0, 69)]
    world.live()
    assert world.goodbyes == [("w7", 69, "the worker ended with status 69: Unfit: torch is missing", False)]
    assert world.told_output == world.output


def test_a_notice_ends_the_worker_at_once_and_the_instance_waits_to_be_taken(world: World) -> None:
    world.clock.at(300.0, world.take)
    world.clock.at(400.0, lambda: world.events.put(SHUTDOWN))
    world.live()
    assert world.goodbyes == [("w7", 0, NOTICE.why, True)]
    assert world.clock() == 400.0 and world.runs == 1


def test_an_instance_that_is_not_taken_after_all_ends_itself(world: World) -> None:
    world.clock.at(300.0, world.take)
    world.live()
    assert world.clock() == 300.0 + MAX_EVICTION_WAIT_S and world.runs == 1


def test_who_is_to_be_taken_does_not_enrol(world: World) -> None:
    world.taken = True
    world.clock.at(100.0, lambda: world.events.put(SHUTDOWN))
    world.live()
    assert (world.asked_s, world.runs, world.goodbyes) == ([], 0, [])
    assert world.clock() == 100.0


def test_who_is_taken_between_enrolment_and_work_does_not_work(world: World) -> None:
    world.preparing = [ConnectionResetError("broke")]
    world.clock.at(0.1, world.take)
    world.live()
    assert world.runs == 0 and world.goodbyes == [("w7", 0, NOTICE.why, True)]


def test_a_shutdown_is_no_eviction(world: World) -> None:
    world.clock.at(300.0, lambda: world.events.put(SHUTDOWN))
    world.live()
    assert world.goodbyes == [("w7", 0, SHUTDOWN.why, False)] and world.clock() == 300.0


def test_a_shutdown_that_ec2_is_behind_is_one(world: World) -> None:
    def go_down() -> None:
        world.taken = True  # not polled since
        world.events.put(SHUTDOWN)

    world.clock.at(300.0, go_down)
    world.live()
    assert world.goodbyes == [("w7", 0, NOTICE.why, True)]
    assert world.clock() == 300.0  # the system goes down: it does not wait


def test_a_worker_that_saved_its_push_is_started_again(world: World) -> None:
    world.lives = [(500.0, SAVED), (700.0, 0)]
    world.live()
    assert world.runs == 2 and len(world.asked_s) == 2
    assert world.goodbyes == [("w7", 0, "the worker ended with status 0", False)]


def test_a_master_that_stays_away_is_given_up(world: World) -> None:
    world.lives = [(500.0, SAVED)]
    world.enrolments = [WORK, ConnectionRefusedError("refused")]
    world.live()
    # The worker ended because it had no contact for its patience.
    assert world.clock() == pytest.approx(500.0 - 120.0 + ORPHAN_S)
    assert world.runs == 1 and world.goodbyes == []
    assert "nothing was heard from the master" in world.log[-1]


def test_a_master_that_comes_back_gets_the_push(world: World) -> None:
    world.lives = [(500.0, SAVED), (700.0, 0)]
    world.enrolments = [WORK, *[ConnectionRefusedError("refused")] * 10, WORK]
    world.live()
    assert world.runs == 2 and world.goodbyes


def test_a_master_that_never_answers_is_given_up(world: World) -> None:
    world.enrolments = [TimeoutError("no answer")]
    world.live()
    assert world.clock() == pytest.approx(ORPHAN_S) and world.runs == 0
    pauses = [later - earlier for earlier, later in zip(world.asked_s, world.asked_s[1:], strict=False)]
    assert pauses[0] < 2.0 and max(pauses) <= 30.0
    assert len(pauses) < 60


def test_a_silent_metadata_service_ends_an_instance_too(world: World) -> None:
    world.imds_error = OSError("no route")
    world.live()
    assert world.clock() == pytest.approx(ORPHAN_S) and world.asked_s == []


def test_who_is_refused_leaves(world: World) -> None:
    world.enrolments = [Refused("this instance is not of the fleet")]
    world.live()
    assert (world.clock(), world.runs, world.goodbyes) == (0.0, 0, [])
    assert "not of the fleet" in world.log[-1]


def test_who_is_to_ask_again_does(world: World) -> None:
    # A back end records a launch a little later. However long it takes, the master has answered.
    world.enrolments = [*[Refused("not known yet", 100.0)] * 20, WORK]
    world.live()
    assert world.runs == 1 and len(world.asked_s) == 21
    assert world.asked_s[1] == pytest.approx(100.0)


def test_an_instance_refused_after_its_worker_ended_sends_no_goodbye(world: World) -> None:
    world.lives = [(500.0, SAVED)]
    world.enrolments = [WORK, Refused("the run is over")]
    world.live()
    assert world.runs == 1 and world.goodbyes == []


def test_a_bundle_that_must_not_be_run_is_not(world: World) -> None:
    world.preparing = [RunError("mnist.py is not what the master announced")]
    world.live()
    assert world.runs == 0
    assert world.goodbyes == [("w7", RunError.exit_status, "mnist.py is not what the master announced", False)]


def test_a_bundle_out_of_reach_is_asked_for_again(world: World) -> None:
    world.preparing = [ConnectionResetError("broke"), TimeoutError("slow")]
    world.live()
    assert world.runs == 1 and len(world.asked_s) == 3


def test_workers_that_end_at_once_are_not_started_for_ever(world: World) -> None:
    world.lives = [(1.0, SAVED)] * 10
    world.live()
    assert world.runs == 3
    assert world.goodbyes[0][1] == SAVED


@pytest.mark.parametrize("error", [Refused("who are you"), PermissionError("the key is no longer known")])
def test_a_goodbye_that_is_refused_is_not_repeated(world: World, error: Exception) -> None:
    world.goodbye_error = error
    world.live()
    assert world.clock() == 1000.0


def test_an_undelivered_goodbye_does_not_keep_the_instance(world: World) -> None:
    world.goodbye_error = ConnectionRefusedError("refused")
    world.live()
    assert 1000.0 < world.clock() <= 1000.0 + GOODBYE_TIMEOUT_S


def test_a_worker_that_cannot_be_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(assignment: Assignment) -> WorkerExited:
        raise FileNotFoundError("no python")

    monkeypatch.setattr(world, "run", fails)
    world.live()
    assert world.goodbyes == [("w7", 1, "the worker cannot be started: no python", False)]


Planned = Callable[[World], None]


@pytest.mark.parametrize("at_s", [0.0, 0.3, 50.0, 500.0, 501.0, 1300.0])
@pytest.mark.parametrize("plan", [World.take, lambda world: world.events.put(SHUTDOWN)])
def test_no_worker_starts_after_a_request_to_leave(at_s: float, plan: Planned) -> None:
    world = World()
    world.enrolments = [ConnectionRefusedError("refused"), WORK, ConnectionRefusedError("refused"), WORK]
    world.lives = [(500.0, SAVED), (1000.0, 0)]
    runs_seen: list[int] = []

    def tell() -> None:
        plan(world)
        runs_seen.append(world.runs)

    world.clock.at(at_s, tell)
    world.live()
    assert runs_seen == [world.runs]
    assert len(world.goodbyes) == (1 if world.runs else 0)

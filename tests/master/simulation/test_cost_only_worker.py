"""The cost-only worker follows the worker's protocol: its messages, their times, and its reactions to replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chunk_model.goodput import Costs
from gridml.protocol.messages import Lease, Pace, Reply, Sync, Verdict
from gridml.protocol.push import InProcessPayload, in_process_payload
from gridml.protocol.worker_state import GOODBYE_TIMEOUT_S, WorkerOptions
from master.simulation.cost_only_worker import RESEND_S, CostOnlyWorker

COSTS = Costs(exec_s=1.0, copy_s=0.5, start_s=4.0, end_s=2.0, push_s=3.0, boot_s=7.0)
FREE = Costs(exec_s=1.0)
LEASE = Lease(1, 1, 0, 100, 120, "lease-1", "")


class Desk:
    """A worker's end of the wire. It records messages with their times; the test advances the clock."""

    def __init__(
        self, costs: Costs = FREE, speed: float = 1.0, chunks: int | None = None, kind: str = "", start_s: float = 0.0
    ) -> None:
        self.now_s = start_s
        self.said: list[tuple[float, int, Sync]] = []
        self.notes: list[tuple[int, int]] = []
        self.worker = CostOnlyWorker(WorkerOptions("w1", kind, chunks), costs, self, speed)
        self._life: Iterator[float] = self.worker.life()
        self.wake_s = start_s
        self.gone = False

    def send(self, number: int, payload: bytes) -> None:
        assert isinstance(payload, InProcessPayload)
        assert isinstance(payload.message, Sync)
        self.said.append((self.now_s, number, payload.message))

    def beat(self, lease: int, upto: int) -> None:
        self.notes.append((lease, upto))

    def run(self, until_s: float) -> None:
        while self.wake_s <= until_s and not self.gone:
            self.now_s = self.wake_s
            self.step()
        self.now_s = until_s

    def step(self) -> None:
        try:
            self.wake_s = self.now_s + next(self._life)
        except StopIteration:
            self.gone = True

    def answer(self, reply: Reply, number: int | None = None) -> None:
        woken: list[int] = []
        self.worker.woken = lambda: woken.append(1)
        self.worker.receive(self.said[-1][1] if number is None else number, in_process_payload(reply))
        if woken and self.worker.is_interruptible:
            self.step()

    @property
    def last(self) -> Sync:
        return self.said[-1][2]


def leased(push_every: int = 5, lease: Lease | None = LEASE) -> Reply:
    return Reply(0, Pace(push_every=push_every), lease=lease)


def test_it_boots_asks_starts_trains_and_pushes_as_long_as_that_takes() -> None:
    desk = Desk(COSTS)
    desk.run(7.0)
    assert [(at, s.wants) for at, _, s in desk.said] == [(7.0, True)]
    desk.answer(leased(push_every=10))
    desk.run(7 + 4 + 20 * 0.5 + 10 + 3)
    assert desk.said[-1][0] == 34.0
    push = desk.last.push
    assert push is not None
    assert (push.lease, push.sequence, push.upto, push.vertices, push.base) == (1, 1, 110, 10, 0)
    assert desk.notes[0] == (1, 100)


def test_a_fast_machine_trains_in_less_time() -> None:
    desk = Desk(speed=4.0)
    desk.run(0.0)
    desk.answer(leased(push_every=8))
    desk.run(2.0)
    assert desk.last.push is not None
    assert desk.last.trained == 8
    assert desk.last.train_s == 2.0


def test_it_says_what_machine_it_is_on() -> None:
    desk = Desk(kind="x86_64 avx")
    desk.run(0.0)
    assert desk.last.kind == "x86_64 avx"


def test_a_vertex_that_is_too_short_for_the_clock_is_trained_all_the_same() -> None:
    desk = Desk(Costs(exec_s=1e-8), start_s=2e8)  # the last digit of such a time is 3e-8 s
    desk.run(2e8)
    desk.answer(leased(lease=replace(LEASE, stop=LEASE.start + 1)))
    for _ in range(10):
        desk.now_s = desk.wake_s
        desk.step()
    assert desk.last.push is not None
    assert (desk.last.push.upto, desk.last.trained) == (LEASE.start + 1, 1)


def test_a_message_without_a_reply_is_sent_again_under_its_number() -> None:
    desk = Desk()
    desk.run(2 * RESEND_S)
    assert [(at, number) for at, number, _ in desk.said] == [(0.0, 1), (RESEND_S, 1), (2 * RESEND_S, 1)]
    desk.answer(Reply(0), number=99)  # a reply to another message is dropped
    desk.run(3 * RESEND_S)
    assert desk.said[-1][1] == 1


def test_a_push_without_an_answer_is_sent_again_while_training_goes_on() -> None:
    desk = Desk(replace(FREE, exec_s=2.0))
    desk.run(0.0)
    desk.answer(leased(push_every=5, lease=replace(LEASE, stop=1000)))
    desk.run(60.0)
    assert [(at, number) for at, number, _ in desk.said] == [(0.0, 1), (10.0, 2), (24.0, 2), (38.0, 2), (52.0, 2)]
    assert desk.worker.is_interruptible
    desk.answer(Reply(1, Pace(push_every=5), Verdict.MERGED))
    desk.run(60.0)
    push = desk.last.push
    assert push is not None
    assert (push.upto, desk.last.trained) == (130, 30)  # all the time was spent training


def test_at_most_one_push_is_under_way_and_training_goes_on_meanwhile() -> None:
    desk = Desk()
    desk.run(0.0)
    desk.answer(leased(push_every=5))
    desk.run(12.0)
    assert len(desk.said) == 2
    desk.answer(Reply(1, Pace(push_every=5), Verdict.MERGED))
    desk.run(12.0)
    push = desk.last.push
    assert push is not None
    assert (push.sequence, push.upto, push.vertices, push.base) == (2, 112, 7, 1)


def test_what_a_refused_push_held_is_dropped_and_the_lease_with_it() -> None:
    desk = Desk()
    desk.run(0.0)
    desk.answer(leased(push_every=5))
    desk.run(6.0)
    desk.answer(Reply(3, Pace(push_every=5), Verdict.REFUSED))
    desk.run(10.0)  # once the batch is complete
    assert desk.last.push is None
    assert (desk.last.wants, desk.last.holds, desk.last.have) == (True, (), -1)


def test_a_cut_lease_ends_where_it_was_cut() -> None:
    desk = Desk()
    desk.run(0.0)
    desk.answer(leased(push_every=5))
    desk.run(5.0)
    desk.answer(Reply(1, Pace(push_every=5), Verdict.MERGED, stop_at=112))
    for at_s, version in ((10.0, 2), (12.0, 3)):
        desk.run(at_s)
        push = desk.last.push
        assert push is not None
        assert push.upto == 100 + at_s
        desk.answer(Reply(version, Pace(push_every=5), Verdict.MERGED, stop_at=112))
    desk.run(13.0)
    assert desk.last.holds == ()


def test_trained_beyond_a_cut_it_drops_what_belongs_to_another() -> None:
    desk = Desk()
    desk.run(0.0)
    desk.answer(leased(push_every=5))
    desk.run(10.0)
    desk.answer(Reply(1, Pace(push_every=5), Verdict.MERGED, stop_at=107))
    desk.run(20.0)
    assert desk.last.push is None
    assert desk.last.wants


def test_asked_to_leave_it_pushes_what_there_is_and_goes() -> None:
    desk = Desk()
    desk.run(0.0)
    desk.answer(leased(push_every=10))
    desk.run(3.0)
    desk.worker.evict()
    desk.run(30.0)
    assert desk.gone
    assert desk.last.leaving
    assert desk.last.push is not None
    assert desk.last.push.upto == 110  # the batch in training is completed


def test_asked_to_leave_while_it_waits_for_an_answer_it_does_so_for_its_last_words_only() -> None:
    desk = Desk()
    desk.run(1.0)
    desk.worker.evict()
    assert desk.worker.is_interruptible
    desk.step()
    assert not desk.gone
    desk.run(1.0 + GOODBYE_TIMEOUT_S)
    assert desk.gone
    assert len(desk.said) == 1


def test_it_leaves_after_its_chunks_and_when_it_is_told() -> None:
    desk = Desk(chunks=1)
    desk.run(0.0)
    desk.answer(leased(push_every=100))
    desk.run(25.0)
    assert desk.last.push is not None
    assert not desk.last.wants
    desk.answer(Reply(1, verdict=Verdict.MERGED))
    desk.run(60.0)
    assert desk.last.leaving
    assert not desk.gone  # before that is answered
    desk.answer(Reply(1))
    assert desk.gone
    dismissed = Desk()
    dismissed.run(0.0)
    dismissed.answer(Reply(1, leave=True))
    dismissed.run(1.0)
    assert dismissed.gone

"""Mutation tests of the checks of carriers: each kind of broken carrier is detected by its law."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from gridml.carriers.base import Forwarding, Heartbeat, Message, WorkerMailbox
from gridml.protocol.payload import Payload, in_pieces
from gridml.testing import carriers
from gridml.testing.carriers import CHECKS, CarrierPair, check_carrier
from gridml.testing.contracts import ContractBroken
from master.simulation.faulty_network import FaultyNetwork, Mailbox, VirtualClock
from tests.support.damage import damage_in_network


class Master(Forwarding):
    """A sound master's end; the broken ones override what they break."""

    def __init__(self, network: FaultyNetwork) -> None:
        super().__init__(network.master())
        self.network = network


class Worker(WorkerMailbox):
    """A sound worker's end; the broken ones override what they break."""

    def __init__(self, network: FaultyNetwork, name: str) -> None:
        self.network, self.name = network, name
        self.sound = network.worker(name)

    def send(self, number: int, payload: Payload) -> None:
        self.sound.send(number, payload)

    def receive(self, number: int) -> bytes | None:
        return self.sound.receive(number)

    def fetch(self, name: str, sha256: str) -> bytes:
        return self.sound.fetch(name, sha256)

    def beat(self, lease: int, upto: int) -> None:
        self.sound.beat(lease, upto)

    def close(self) -> None:
        self.sound.close()


class CollectsTorn(Master):
    def collect(self) -> list[Message]:
        mailboxes = self.network.mailboxes.items()
        return [Message(name, sync.number, sync.payload) for name, mailbox in mailboxes for sync in mailbox.syncs]


class AnswersNobody(Master):
    def answer(self, worker: str, number: int, payload: Payload) -> None:
        self.discard(worker, number)


class AnswersOnce(Master):
    """It treats a sync that has a reply as answered."""

    def collect(self) -> list[Message]:
        replies = {name: {r.number for r in mailbox.replies} for name, mailbox in self.network.mailboxes.items()}
        return [message for message in super().collect() if message.number not in replies[message.worker]]


class CollectsOnce(Master):
    def collect(self) -> list[Message]:
        messages = super().collect()
        for message in messages:
            self.discard(message.worker, message.number)
        return messages


class DropsWhatItHolds(Master):
    def hold(self, worker: str, number: int) -> None:
        self.lost = worker

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        if worker != getattr(self, "lost", None):
            super().answer(worker, number, payload)


class CollectsTheOldest(Master):
    def collect(self) -> list[Message]:
        mailboxes = {name: self.network.arrived(mailbox.syncs)[0] for name, mailbox in self.network.mailboxes.items()}
        return [Message(name, syncs[0].number, syncs[0].payload) for name, syncs in mailboxes.items() if syncs]


class ReportsTornAlone(Master):
    def collect(self) -> list[Message]:
        messages = super().collect()
        return [message for message in messages if message.is_damaged] or messages


class ReadsWhatIsTooLong(Master):
    def limit(self, longest: int) -> None:
        pass


class CollectsAsSomebodyElses(Master):
    def collect(self) -> list[Message]:
        return [Message("w1", message.number, message.payload) for message in super().collect()]


class NeverSettles(Master):
    def discard(self, worker: str, number: int) -> None:
        pass


class KeepsWhatIsOlder(Master):
    def discard(self, worker: str, number: int) -> None:
        syncs = self.network.mailboxes[worker].syncs
        syncs[:] = [sync for sync in syncs if sync.number != number]

    def answer(self, worker: str, number: int, payload: Payload) -> None:
        older = [sync for sync in self.network.mailboxes[worker].syncs if sync.number < number]
        super().answer(worker, number, payload)
        self.network.mailboxes[worker].syncs += older


class NeverRetracts(Master):
    def retract(self, name: str) -> None:
        pass


class OpensAfresh(Master):
    def open(self, worker: str) -> None:
        self.network.mailboxes[worker] = Mailbox()


class KeepsClosedMailboxes(Master):
    def close(self, worker: str) -> None:
        pass


class ClearsNothing(Master):
    def clear(self) -> None:
        pass


class ForgetsHeartbeats(Master):
    def heartbeat(self, worker: str) -> Heartbeat | None:
        return None


class InventsHeartbeats(Master):
    def heartbeat(self, worker: str) -> Heartbeat | None:
        return super().heartbeat(worker) or Heartbeat(0, 0, 0)


class ReceivesTorn(Worker):
    def receive(self, number: int) -> bytes | None:
        mailbox = self.network.mailboxes.get(self.name)
        if mailbox is None:
            raise FileNotFoundError(self.name)
        return next((reply.payload for reply in mailbox.replies if reply.number == number), None)


class ReceivesAnyReply(Worker):
    def receive(self, number: int) -> bytes | None:
        mailbox = self.network.mailboxes.get(self.name)
        if mailbox is None:
            raise FileNotFoundError(self.name)
        return mailbox.replies.pop().payload if mailbox.replies else None


class CutsLongPayloads(Worker):
    def send(self, number: int, payload: Payload) -> None:
        self.sound.send(number, bytes(payload)[: 1 << 16])


class SendsTheLongestPiece(Worker):
    def send(self, number: int, payload: Payload) -> None:
        self.sound.send(number, bytes(max(in_pieces(payload).pieces, key=len, default=b"")))


class SendsANumberOnce(Worker):
    def send(self, number: int, payload: Payload) -> None:
        if number not in {sync.number for sync in self.network.mailboxes[self.name].syncs}:
            self.sound.send(number, payload)


class SpeaksAfterItsEnd(Worker):
    def send(self, number: int, payload: Payload) -> None:
        self.network.mailboxes.setdefault(self.name, Mailbox())
        self.sound.send(number, payload)


class FetchesAnything(Worker):
    def fetch(self, name: str, sha256: str) -> bytes:
        if name not in self.network.chunks:
            raise FileNotFoundError(name)
        return self.network.chunks[name]


class SaysItsHeartbeatOnce(Worker):
    def beat(self, lease: int, upto: int) -> None:
        before = self.network.mailboxes[self.name].heartbeat
        if before is None or before[:2] != (lease, upto):
            super().beat(lease, upto)


class TakesBackItsHeartbeat(Worker):
    def close(self) -> None:
        self.network.mailboxes[self.name].heartbeat = None


BROKEN: list[tuple[type[Master], type[Worker], str]] = [
    (CollectsTorn, Worker, "a_damaged_sync_is_not_delivered_and_can_be_sent_again"),
    (ReportsTornAlone, Worker, "damaged_syncs_in_number_hold_up_nobody"),
    (AnswersNobody, Worker, "a_sync_is_collected_and_its_reply_received"),
    (AnswersOnce, Worker, "a_sync_sent_again_after_its_answer_is_collected_again"),
    (CollectsOnce, Worker, "a_sync_is_collected_until_it_is_answered"),
    (CollectsTheOldest, Worker, "the_newest_sync_of_a_worker_is_collected"),
    (ReadsWhatIsTooLong, Worker, "a_sync_that_is_too_long_is_a_problem_and_not_read"),
    (CollectsAsSomebodyElses, Worker, "mailboxes_are_separate"),
    (NeverSettles, Worker, "a_discarded_sync_is_not_collected"),
    (KeepsWhatIsOlder, Worker, "an_answer_settles_the_syncs_before_it"),
    (NeverRetracts, Worker, "a_published_chunk_is_fetched_until_it_is_retracted"),
    (NeverRetracts, Worker, "a_shared_file_is_fetched_until_it_is_retracted"),
    (OpensAfresh, Worker, "opening_and_closing_twice_are_harmless"),
    (KeepsClosedMailboxes, Worker, "nothing_can_be_sent_to_a_closed_mailbox"),
    (KeepsClosedMailboxes, Worker, "a_reply_to_a_closed_mailbox_is_harmless"),
    (ClearsNothing, Worker, "cleared_mailboxes_are_empty_and_can_be_opened_again"),
    (ForgetsHeartbeats, Worker, "the_last_heartbeat_is_read"),
    (InventsHeartbeats, Worker, "a_worker_without_a_mailbox_has_no_heartbeat"),
    (Master, ReceivesTorn, "a_damaged_reply_counts_as_none"),
    (Master, ReceivesAnyReply, "a_reply_to_another_number_is_not_received"),
    (Master, CutsLongPayloads, "payloads_of_any_content_travel_both_ways"),
    (Master, SendsTheLongestPiece, "payloads_in_pieces_travel_as_their_bytes"),
    (DropsWhatItHolds, Worker, "a_sync_that_is_held_can_be_answered_later"),
    (Master, SendsANumberOnce, "sending_a_number_again_replaces_it"),
    (Master, SpeaksAfterItsEnd, "nothing_can_be_sent_to_a_closed_mailbox"),
    (Master, FetchesAnything, "a_chunk_with_another_digest_is_refused"),
    (Master, SaysItsHeartbeatOnce, "a_repeated_heartbeat_differs_from_the_last"),
    (Master, TakesBackItsHeartbeat, "a_heartbeat_outlives_its_worker"),
]


@dataclass(frozen=True)
class Carrier:
    """A carrier in memory with these two ends."""

    master: type[Master] = Master
    worker: type[Worker] = Worker

    @contextmanager
    def __call__(self) -> Iterator[CarrierPair]:
        network = FaultyNetwork(VirtualClock())
        yield CarrierPair(self.master(network), lambda name: self.worker(network, name), damage_in_network(network))


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip waiting: in memory nothing takes time, so an event that has not happened will not happen."""
    monkeypatch.setattr(carriers, "HEARTBEAT_LIMIT_S", 0.0)


@pytest.mark.parametrize(("master", "worker", "law"), BROKEN)
def test_a_broken_carrier_is_caught_by_the_law_it_breaks(master: type[Master], worker: type[Worker], law: str) -> None:
    (check,) = (check for check in CHECKS if check.__name__ == law)
    with Carrier(master, worker)() as pair, pytest.raises(ContractBroken):
        check(pair)


def test_all_checks_are_run_and_a_sound_carrier_passes() -> None:
    check_carrier(Carrier())
    for master, worker, _ in BROKEN:
        with pytest.raises(ContractBroken):
            check_carrier(Carrier(master, worker))


def test_every_law_is_run_and_can_fail() -> None:
    functions = inspect.getmembers(carriers, inspect.isfunction)
    takes_a_pair = {name for name, function in functions if [*inspect.signature(function).parameters] == ["pair"]}
    assert (
        takes_a_pair - {"_collected", "_damaged"}
        == {check.__name__ for check in CHECKS}
        == {law for _, _, law in BROKEN}
    )

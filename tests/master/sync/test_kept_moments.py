"""Second moments that new workers get from others, for any moments that those have sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gridml
from gridml.protocol.compression import bfloat16, from_bfloat16
from master.state.worker_records import WorkerRecord, WorkerStatus, WorkerTable
from master.sync.moments import EXTRA_ASKED, MAX_VOTES, VOTE_EVERY, MomentsFile, SharedMoments

KEY = ("Network", 0)
OF = "exp_avg_sq/Network/0/net/weight"


def linear() -> torch.nn.Module:
    return torch.nn.Linear(2, 2, bias=False)


def network(optimiser: Any) -> type[gridml.Vertex]:
    class Network(gridml.Vertex):
        net = gridml.module(linear, optimiser)
        aggregate = gridml.stale_mean()

    return Network


ADAM, SGD = (network(partial(make, lr=0.1)) for make in (torch.optim.Adam, torch.optim.SGD))


class Desk:
    """The master's side, with a number of workers."""

    def __init__(self, folder: Path, workers: int = 1, of: type[gridml.Vertex] = ADAM) -> None:
        graph = gridml.Graph()
        graph.add(of)
        self.table = WorkerTable(workers)
        self.kept = SharedMoments(graph, self.table, MomentsFile(folder))

    def worker(self, name: str, machine: str = "") -> WorkerRecord:
        record = self.table.add(name)
        record.machine = machine
        return record

    def vote(self, record: WorkerRecord, square: float, step: int = 10) -> str | None:
        record.moments.asked = True
        return self.kept.take(record, moments(square, step), 1000)

    def squares(self) -> list[float]:
        given = self.kept.of([KEY])
        return from_bfloat16(given[OF]).ravel().tolist() if given else []


def moments(square: float, step: int = 10) -> dict[str, Any]:
    values = {"exp_avg_sq": bfloat16(np.full((2, 2), square, np.float32))}
    values |= {"exp_avg": np.zeros((), np.float32), "step": np.array(step, np.float32)}
    return {f"{entry}/Network/0/net/weight": each for entry, each in values.items()}


def test_what_was_not_asked_for_is_left_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    liar = desk.worker("w1")
    assert "did not ask" in str(desk.kept.take(liar, moments(1), 1000))
    assert desk.squares() == []
    assert desk.kept.should_ask(liar)
    assert desk.kept.take(liar, moments(1), 1000) is None
    assert not desk.kept.should_ask(liar)
    assert "did not ask" in str(desk.kept.take(liar, moments(2), 1000)), "once for each time"
    assert desk.squares() == [1] * 4


def test_a_push_whose_transaction_was_undone_brings_what_was_asked_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    record = desk.worker("w1")
    assert desk.kept.should_ask(record)
    for _ in range(2):
        assert desk.kept.take(record, moments(1), 1000) is None
    assert desk.squares() == [1] * 4


def test_what_an_earlier_master_may_have_asked_for_is_dropped_without_a_word_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    survivor = desk.worker("w1")
    survivor.moments.asked = None
    assert desk.kept.take(survivor, moments(1), 1000) is None
    assert desk.squares() == []
    assert desk.kept.should_ask(survivor)
    assert desk.kept.take(survivor, moments(2), 1000) is None
    assert desk.squares() == [2] * 4
    assert not desk.kept.should_ask(survivor)
    assert "did not ask" in str(desk.kept.take(survivor, moments(3), 1000))


def test_a_single_worker_is_asked_until_it_sent_moments_and_then_periodically(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    record = desk.worker("w1")
    asked = []
    for number in range(2 * VOTE_EVERY + 2):
        desk.kept.take(record, moments(1) if record.moments.asked else {}, 1000)
        asked += [number] if desk.kept.should_ask(record) else []
    assert asked == [0, VOTE_EVERY, 2 * VOTE_EVERY]


def test_of_a_thousand_that_begin_together_a_few_are_asked(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=1000)
    workers = [desk.worker(f"w{number}", f"machine {number}") for number in range(1000)]
    asked = [record for record in workers if desk.kept.should_ask(record)]
    assert asked == workers[: MAX_VOTES + EXTRA_ASKED]
    desk.table.end(asked[0])  # it has ended,
    desk.table.move(asked[1], WorkerStatus.SUSPENDED)  # and this one is out of reach,
    asked += [record for record in workers[500:] if desk.kept.should_ask(record)]
    assert asked == [*workers[:5], *workers[500:502]]
    assert not desk.kept.should_ask(asked[2]), "it has pushed and brought none: others go first,"
    assert desk.kept.should_ask(workers[600])
    for record in asked[3:6]:
        assert desk.kept.take(record, moments(2), 1000) is None
        desk.kept.should_ask(record)
    assert desk.squares() == [2] * 4


def test_without_moments_no_worker_is_asked(tmp_path: Path) -> None:
    desk = Desk(tmp_path, of=SGD)
    assert not desk.kept.should_ask(desk.worker("w1"))


def test_that_an_optimiser_cannot_be_tried_is_said_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, of=network(partial(torch.optim.LBFGS, lr=0.1)))
    record = desk.worker("w1")
    assert not desk.kept.should_ask(record)
    (problem,) = desk.kept.take_problems()
    assert "Network.net" in problem
    assert "start without" in problem
    assert not desk.kept.should_ask(record)
    assert desk.kept.take_problems() == []


def test_newcomers_are_given_nothing_before_enough_workers_voted_and_then_the_median(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=4)
    first, second, liar = (desk.worker(f"w{number}") for number in range(3))
    desk.vote(liar, 1e30, 900)
    for _ in range(5):
        desk.vote(liar, 1e30, 900)
    assert desk.squares() == [], "however often one pushes it has one vote"
    desk.vote(first, 1.0, 30)
    assert desk.squares() == []
    desk.vote(second, 2.0, 40)
    assert desk.squares() == [2.0] * 4
    assert desk.kept.of([KEY])["step/Network/0/net/weight"] == 40
    for square in (0.0, 1e-38, 3e38) * 5:
        desk.vote(liar, square, 0)
        assert desk.squares()[0] in (1.0, 2.0)
    assert desk.kept.of([("Network", 1)]) == {}
    desk.kept.clear()
    assert desk.squares() == []


def test_a_machine_has_no_more_votes_for_all_that_its_workers_die(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=3)
    for name in ("w1", "w2"):
        desk.vote(desk.worker(name, f"machine of {name}"), 1.0)
    for life in range(3, 9):
        successor = desk.worker(f"w{life}", "the liar's machine")
        desk.vote(successor, 1e30)
        desk.table.end(successor)
        assert desk.squares() in ([], [1.0] * 4)
    assert desk.squares() == [1.0] * 4, "those of the honest ones are still there"


def test_who_is_blamed_counts_no_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workers=3)
    workers = [desk.worker(f"w{number}") for number in range(4)]
    for record, square in zip(workers, (1.0, 3.0, 1e30), strict=False):
        desk.vote(record, square)
    assert desk.squares() == [3.0] * 4
    desk.kept.withdraw(workers[2])
    desk.kept.withdraw(workers[2])
    desk.vote(workers[3], 2.0)
    assert desk.squares() == [2.0] * 4


def test_the_next_master_has_them_unless_their_file_is_torn(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.vote(desk.worker("w1"), 3.0)
    (file,) = tmp_path.iterdir()
    next_one = Desk(tmp_path, workers=4)
    assert next_one.squares() == [3.0] * 4
    torn = bytearray(file.read_bytes())
    torn[-8:] = bytes(8)  # as after a power cut
    file.write_bytes(torn)
    for change in (lambda: None, lambda: file.write_bytes(b"")):
        change()
        another = Desk(tmp_path)
        assert another.squares() == []


def test_moments_of_another_program_are_not_resumed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.vote(desk.worker("w1"), 3.0)
    next_one = Desk(tmp_path, of=SGD)
    assert next_one.squares() == []


def test_where_no_file_can_be_written_they_are_had_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    desk = Desk(tmp_path / "file")
    desk.vote(desk.worker("w1"), 3.0)
    assert desk.squares() == [3.0] * 4


@pytest.mark.parametrize("bits", [0xBF80, 0x7FC0])
def test_what_is_odd_is_left_out_and_said(tmp_path: Path, bits: int) -> None:
    desk = Desk(tmp_path)
    record = desk.worker("w1")
    record.moments.asked = True
    odd = moments(1) | {OF: np.full((2, 2), bits, np.uint16)}
    assert "not finite" in str(desk.kept.take(record, odd, 1000))
    assert desk.squares() == []

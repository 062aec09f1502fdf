"""The hostile worker: every attack sends its kind of message, a seed repeats them, and it takes leases like workers."""

from __future__ import annotations

import os
import random
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.carriers.base import HEARTBEAT
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.protocol import bundle
from gridml.protocol.messages import Lease, Pace, Push, Reply, Verdict, to_json
from master.simulation.faulty_network import FaultyNetwork, VirtualClock
from tests.support.hostile_attacks import ATTACKS, REPLICAS, Stance
from tests.support.hostile_files import FILE_ATTACKS, MANY, SPARSE
from tests.support.hostile_worker import HostileWorker, main

LEASE = Lease(7, 1_000, 0, 640, 1_280, "lease-7", "")
REPLICA = {"Network/0/model/weight": np.ones((3, 4), np.float32), "Network/0/model/steps": np.array(3)}


def newcomer() -> Stance:
    return Stance("w3")


def holder() -> Stance:
    return Stance("w3", have=3, replica=dict(REPLICA), lease=LEASE, upto=LEASE.start)


def shapes_of(tensors: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("stance", [newcomer, holder])
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_sends_something_and_the_same_seed_the_same(name: str, stance: Callable[[], Stance]) -> None:
    sent, again = ([[*ATTACKS[name](rng, stance())] for _ in range(6)] for rng in (random.Random(5), random.Random(5)))
    assert all(sent) and all(isinstance(one.payload, bytes) for some in sent for one in some)
    assert sent == again


def test_well_formed_attacks_are_pushes_under_the_lease_that_is_held() -> None:
    for name, attack in REPLICAS.items():
        (sent,) = attack(random.Random(1), holder())
        message, tensors = bundle.decode(sent.payload)
        assert message["push"] == Push(7, 1_000, 1, 3, 1_280, 640)._asdict() | {"logged": []}, name
        assert {n: (t.dtype, t.shape) for n, t in tensors.items()} == {
            n: (t.dtype, t.shape) for n, t in REPLICA.items()
        }
    assert not tensors["Network/0/model/weight"].any() or name == "unchanged"


def test_it_asks_for_work_pushes_under_its_lease_and_forgets_what_was_refused() -> None:
    network = FaultyNetwork(VirtualClock())
    master = network.master()
    master.open("w3")
    worker = HostileWorker("w3", network.worker("w3"), seed=1, attacks=["unchanged"])

    def answer(reply: Reply) -> None:
        newest = max(message.number for message in master.collect())
        master.answer("w3", newest, bundle.encode(to_json(reply), REPLICA))

    worker.step()
    answer(Reply(3, Pace(), lease=LEASE))
    worker.step()
    assert worker.stance.lease == LEASE and worker.stance.have == 3
    assert master.heartbeat("w3") is not None
    answer(Reply(4, Pace(), verdict=Verdict.MERGED))
    worker.step()
    assert worker.stance.lease is None and worker.stance.trained == 640
    answer(Reply(4, Pace(), lease=LEASE))
    worker.step()
    answer(Reply(4, Pace(), verdict=Verdict.REFUSED, reason="it changed nothing"))
    worker.step()
    assert worker.stance.lease is None
    assert worker.sent.keys() <= {"unchanged", "honest"} and worker.sent.total() == 5
    master.close("w3")
    assert worker.step() is None and worker.gone


def test_all_attacks_are_tried_on_a_folder_and_the_same_seed_tries_the_same(tmp_path: Path) -> None:
    counts = []
    for run in ("one", "two"):
        DirectoryMailboxes(tmp_path / run).open("w3")
        box = tmp_path / run / "mail" / "w3"
        worker = HostileWorker("w3", DirectoryMailbox(tmp_path / run, "w3"), 3, box, ["raw", "pipe", "no mailbox"])
        assert all(worker.step() for _ in range(300))
        counts.append(worker.sent)
        worker._mailbox.close()
    assert counts[0] == counts[1]
    assert counts[0].keys() == {"raw", "pipe", "no mailbox", "honest"}


def sorts(box: Path) -> Counter[str]:
    return Counter("link" if path.is_symlink() else stat.filemode(path.lstat().st_mode)[0] for path in box.iterdir())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pipe", {"p"}),
        ("folder", {"d"}),
        ("link", {"link"}),
        ("socket", {"s"}),
        ("sparse file", {"-"}),
        ("unreadable file", {"-"}),
        ("many files", {"-"}),
        ("odd names", {"-"}),
        ("answers", {"d", "link"}),
    ],
)
def test_an_attack_on_files_makes_what_it_says(name: str, expected: set[str], tmp_path: Path) -> None:
    FILE_ATTACKS[name](random.Random(1), tmp_path, "message")
    assert sorts(tmp_path).keys() == expected
    if name == "many files":
        assert len(os.listdir(tmp_path)) == MANY
    if name == "sparse file":
        assert (tmp_path / "message").stat().st_size == SPARSE and (tmp_path / "message").stat().st_blocks == 0
    if name == "unreadable file":
        assert (tmp_path / "message").stat().st_mode & 0o777 == 0


def test_another_thing_takes_the_place_of_the_heartbeat_and_of_the_mailbox(tmp_path: Path) -> None:
    seen = set()
    for seed in range(40):
        box = tmp_path / f"{seed}"
        box.mkdir()
        (box / HEARTBEAT).write_bytes(bytes(16))
        FILE_ATTACKS["heartbeat"](random.Random(seed), box, "message")
        seen.add(next(iter(sorts(box))))
        FILE_ATTACKS["no mailbox"](random.Random(seed), box, "message")
        seen.add(
            "gone" if not os.path.lexists(box) else "file or link" if not box.is_dir() or box.is_symlink() else "?"
        )
    assert seen >= {"p", "d", "link", "s", "-", "gone", "file or link"} and "?" not in seen
    FILE_ATTACKS["unknown mailboxes"](random.Random(1), tmp_path / "0", "message")
    assert (tmp_path / "w999999").is_dir()


def test_it_takes_the_place_of_a_worker_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DirectoryMailboxes(tmp_path).open("w3")
    arguments = ["--name", "w3", "--directory", str(tmp_path), "--every", "0", "--messages", "20", "--attacks", "raw"]
    assert main(arguments) == 0
    assert "'raw'" in capsys.readouterr().out
    assert os.listdir(tmp_path / "mail" / "w3")

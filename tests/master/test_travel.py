"""Traffic of whole runs: only changes travel, and the result is as if everything did."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.caching.master_copy import MasterCopy
from gridml.protocol import bundle
from gridml.protocol.messages import Reply
from gridml.protocol.payload import Payload
from gridml.protocol.push import BundleCodec, PushContent, ReplicaPart
from master.backends.script import Script, ScriptedLives, Steady
from master.simulation.faulty_network import Chances
from master.simulation.result import verify_credits
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.sync import replies
from remote.stepped import Trainer

EMBEDDING = Path(__file__).parents[2] / "benchmarks" / "programs" / "frozen_embedding.py"
COSTS = Costs(exec_s=0.05, copy_s=0.001, start_s=1.0, push_s=0.1, boot_s=2.0)
BACKBONE, HEAD, POINTS = 4 * (1_000 * 51 + 400 * 1_001), 4 * 2 * 401, 3 * 640 * (4 * 50 + 40)  # bytes


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore torch's threads: trainers leave it with one."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def wide(tmp_path: Path, programs: Path) -> Path:
    """The perceptron with enough weights to dominate a push."""
    text = (programs / "perceptron.py").read_text()
    for narrow, broad in (("(20, 32)", "(20, 512)"), ("1d(32)", "1d(512)"), ("(32, 4)", "(512, 4)"), ("1000,", "640,")):
        assert text.count(narrow) == 1
        text = text.replace(narrow, broad)
    source = tmp_path / "wide.py"
    source.write_text(text)
    return source


def play(
    source: Path, root: Path, script: Script, faults: Chances | None = None, *, workers: int = 3, **more: str
) -> dict[str, np.ndarray]:
    """Train with real sessions under a virtual clock; return the final replica."""
    settings = Settings(source, backend="simulated", workers=workers, seed=1, chunk=160, push_every=32, **more)
    scenario = Scenario(
        script, COSTS, MachineSpeeds(sigma=0.3), faults or Chances(), travel_s=0.02, seed=1, limit_s=1e5
    )
    play_scenario(settings, scenario, root, trainer=Trainer(source, COSTS, 1))
    assert verify_credits(root).credited > 0
    return bundle.decode((root / "final.safetensors").read_bytes())[1]


def traffic(root: Path) -> tuple[int, int, int, int]:
    """(workers, pushes, bytes up, bytes down) of a run."""
    with closing(sqlite3.connect(root / "ledger.db")) as db:
        workers, up, down = db.execute("SELECT count(*), sum(bytes_up), sum(bytes_down) FROM workers").fetchone()
        return workers, db.execute("SELECT count(*) FROM credits").fetchone()[0], up, down


def test_of_a_frozen_backbone_and_a_head_only_the_head_is_pushed(tmp_path: Path, programs: Path) -> None:
    play(programs / "frozen.py", tmp_path / "run", Steady(3))
    workers, pushes, up, down = traffic(tmp_path / "run")
    assert pushes >= 30
    assert up / pushes < 2 * HEAD + 2_000
    assert workers == 3
    heads = 3 * pushes * (HEAD + 1_000)
    assert 3 * BACKBONE <= down < 3 * BACKBONE + POINTS + heads < 4 * BACKBONE  # each gets it once, in the beginning


def test_a_frozen_embedding_of_24_mb_adds_less_than_a_fifth_to_the_pushes_of_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDING_ROWS", "960")
    pushed = {}
    for place in ("inside", "outside"):
        monkeypatch.setenv("EMBEDDING", place)
        final = play(EMBEDDING, tmp_path / place, Steady(2), workers=2)
        _, pushes, up, down = traffic(tmp_path / place)
        assert pushes >= 10
        pushed[place] = up / 960
    assert sum(tensor.nbytes for tensor in final.values()) < 5_000  # outside: only the head is merged
    assert down < 1e6
    assert pushed["inside"] < 1.2 * pushed["outside"]


@pytest.mark.parametrize("name", ["frozen", "perceptron", "twins"])
@pytest.mark.parametrize("bad", [False, True])
def test_a_run_is_what_it_would_be_if_everything_travelled(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, name: str, bad: bool
) -> None:
    script = ScriptedLives(3, Exponential(20.0), 1, grace_s=1.0, gap_s=1.0) if bad else Steady(3)
    faults = Chances(lose=0.05, repeat=0.05, truncate=0.03, delay_s=3.0) if bad else None
    monkeypatch.setattr(replies, "MIN_NEAR_FILE_BYTES", 1 << 40)  # a file that is fetched meets faults of its own
    partly = play(programs / f"{name}.py", tmp_path / "partly", script, faults)
    monkeypatch.setattr(MasterCopy, "carry", lambda _, part, compress: (PushContent(part), ReplicaPart()))
    monkeypatch.setattr("master.store.replica.Replica._changed", lambda _, key, tensors, since: tensors)
    whole = play(programs / f"{name}.py", tmp_path / "whole", script, faults)
    assert partly.keys() == whole.keys()
    for tensor, values in whole.items():
        np.testing.assert_array_equal(partly[tensor], values, err_msg=tensor)
    assert traffic(tmp_path / "partly")[:2] == traffic(tmp_path / "whole")[:2]


def test_what_each_turn_moved_sums_to_what_each_worker_moved(tmp_path: Path, programs: Path) -> None:
    script = ScriptedLives(3, Exponential(20.0), 1, grace_s=1.0, gap_s=1.0)
    play(programs / "perceptron.py", tmp_path / "run", script, Chances(lose=0.05, repeat=0.05, truncate=0.03))
    workers, _, up, down = traffic(tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "ledger.db")) as db:
        turns = db.execute("SELECT sum(bytes_up), sum(bytes_down), count(DISTINCT at_s) FROM traffic").fetchone()
    assert workers > 3
    assert turns[:2] == (up, down) and min(up, down) > 0
    assert turns[2] > 10  # one row a turn that moved any


@pytest.mark.parametrize("bad", [False, True])
def test_answers_that_name_a_versions_file_bring_what_others_carry(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, bad: bool
) -> None:
    faults = Chances(lose=0.05, repeat=0.05, truncate=0.03, delay_s=3.0) if bad else None
    carried = None if bad else play(programs / "perceptron.py", tmp_path / "carried", Steady(3))
    named: list[bool] = []
    written = BundleCodec.write

    def watched(self: BundleCodec, reply: Reply, replica: ReplicaPart) -> Payload:
        named.append(reply.stored is not None)
        assert not (named[-1] and replica.modules)
        return written(self, reply, replica)

    monkeypatch.setattr(BundleCodec, "write", watched)
    monkeypatch.setattr(replies, "MIN_NEAR_FILE_BYTES", 1)
    monkeypatch.setattr(replies, "MIN_FILE_SHARE", 0.0)
    fetched = play(programs / "perceptron.py", tmp_path / "named", Steady(3), faults)
    assert sum(named) > 10
    for tensor, values in ({} if carried is None else carried).items():
        np.testing.assert_array_equal(fetched[tensor], values, err_msg=tensor)


@pytest.mark.parametrize(
    ("brings", "rows", "short", "names"),
    [
        (100_000_000, False, False, True),
        (79_000_000, False, False, False),
        (100_000_000, True, False, False),
        (100_000_000, False, True, False),
    ],
)
def test_a_file_is_named_where_most_of_it_is_wanted_as_it_is(brings: int, rows: bool, short: bool, names: bool) -> None:
    chosen, reason = replies.sends_file(brings, 100_000_000, rows=rows, short=short, near=False)
    assert chosen is names and reason


def test_a_small_file_is_named_only_where_workers_fetch_it_without_a_round_trip() -> None:
    def names(nbytes: int, *, near: bool) -> bool:
        return replies.sends_file(nbytes, nbytes, rows=False, short=False, near=near)[0]

    least, near = replies.MIN_FILE_BYTES, replies.MIN_NEAR_FILE_BYTES
    assert near < least
    assert not names(least - 1, near=False) and names(least, near=False)
    assert not names(near - 1, near=True) and names(near, near=True)


@pytest.mark.parametrize(("compress", "share"), [("int8", 0.4), ("int4", 0.35)])
def test_steps_take_a_part_of_the_bytes_and_no_worker_is_refused(
    tmp_path: Path, wide: Path, compress: str, share: float
) -> None:
    script, faults = ScriptedLives(3, Exponential(20.0), 1, grace_s=1.0, gap_s=1.0), Chances(lose=0.05, repeat=0.05)
    by_value = play(wide, tmp_path / "none", script, faults)
    rounded = play(wide, tmp_path / compress, script, faults, compress=compress)
    (_, pushes, up, _), (_, others, less, _) = traffic(tmp_path / "none"), traffic(tmp_path / compress)
    assert less / others < share * up / pushes
    with closing(sqlite3.connect(tmp_path / compress / "ledger.db")) as db:
        assert not db.execute("SELECT count(*) FROM blames").fetchone()[0]
    name = "Network/0/model/0.weight"
    difference = np.linalg.norm(rounded[name] - by_value[name]) / np.linalg.norm(by_value[name])
    assert 0 < difference < 0.3
    counted = "Network/0/model/2.num_batches_tracked"
    assert rounded[counted] > 0 and rounded[counted].dtype == np.int64


def test_one_worker_with_steps_trains_as_a_plain_loop_does_and_the_master_follows_within_half_a_level(
    tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = play(wide, tmp_path / "none", Steady(1), workers=1)
    snapshots: list[ReplicaPart] = []
    carry = MasterCopy.carry

    def watched(self: MasterCopy, part: ReplicaPart, compress: str) -> tuple[PushContent, ReplicaPart]:
        snapshots.append(part)
        return carry(self, part, compress)

    monkeypatch.setattr(MasterCopy, "carry", watched)
    final = play(wide, tmp_path / "int8", Steady(1), compress="int8", workers=1)
    trained = {name: values for tensors in snapshots[-1].modules.values() for name, values in tensors.items()}
    assert trained.keys() == final.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_array_equal(trained[name], values, err_msg=name)  # what the worker has is never rounded
        np.testing.assert_allclose(final[name], values, atol=1e-3, err_msg=name)
    assert any(not np.array_equal(final[name], values) for name, values in plain.items())


def test_weights_may_come_down_in_half_the_bytes_and_no_rounding_goes_home(
    tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = play(wide, tmp_path / "none", Steady(3), compress="int8")
    short = play(wide, tmp_path / "bf16", Steady(3), compress="int8", compress_down="bf16")
    (_, _, _, down), (_, _, _, less) = traffic(tmp_path / "none"), traffic(tmp_path / "bf16")
    rows = 640 * 3 * (4 * 20 + 8)
    assert less - rows < 0.65 * (down - rows)
    name = "Network/0/model/0.weight"
    assert 0 < np.linalg.norm(short[name] - plain[name]) < 0.1 * np.linalg.norm(plain[name])

    monkeypatch.setattr("gridml.engine.update_runner.UpdateRunner._call", lambda self, start, stop, progress: None)
    untrained = play(wide, tmp_path / "still", Steady(3), compress="int8", compress_down="bf16")
    _, first = bundle.decode((tmp_path / "still" / "versions" / "v00000000.safetensors").read_bytes())
    for tensor, values in untrained.items():
        np.testing.assert_array_equal(values, first[tensor], err_msg=tensor)

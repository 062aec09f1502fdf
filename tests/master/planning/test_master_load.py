"""Measured cost of pushes for a master, and the number of workers that it allows."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gridml.errors import UsageError
from master.leases.sizing import MERGING, merging_s
from master.planning.options import PlanOptions
from master.planning.plan import MasterLoad, make_plan, measure
from master.state.options import parse_bytes

OPTIONS = PlanOptions(lifetime="exponential(1h)", t_exec=0.01, workers=64, vertices=10**6)
NBYTES = 4_000_000


@pytest.fixture(scope="module")
def plain() -> MasterLoad:
    return measure(NBYTES)


def test_a_push_is_as_long_as_its_replica(plain: MasterLoad) -> None:
    assert plain.push_s > 0
    assert NBYTES <= plain.bytes_up < 1.01 * NBYTES
    assert NBYTES <= plain.bytes_down < 1.01 * NBYTES


@pytest.mark.parametrize(("compress", "share"), [("int8", 1 / 4 + 1 / 256), ("int4", 1 / 8 + 1 / 64)])
def test_a_compressed_one_is_shorter_on_its_way_up(plain: MasterLoad, compress: str, share: float) -> None:
    compressed = measure(NBYTES, compress)
    assert compressed.bytes_up == pytest.approx(share * NBYTES, rel=0.01)
    assert compressed.bytes_down == plain.bytes_down


def test_nothing_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure(4)
    assert not list(tmp_path.iterdir())


def test_what_has_no_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"expected at most [\d,]+: measuring its pushes needs 8 times as much memory"):
        measure(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UsageError, match=r"cannot be measured here \(No such file"):
        measure(4)


def test_as_many_as_are_carried_merge_in_half_of_the_time() -> None:
    load = MasterLoad(100, 100, push_s=0.5)
    assert load.max_workers(300.0) == 300
    assert merging_s(300, load.push_s) == 300.0
    assert 300 * load.push_s == MERGING * 300.0


def test_a_plan_pushes_no_oftener_than_the_master_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 workers each push takes a second: in half of the master's time that is one in 128 seconds of each."""
    monkeypatch.setattr("master.planning.plan.measure", lambda nbytes, *_: MasterLoad(nbytes, nbytes, 1.0))
    without, plan = make_plan(OPTIONS), make_plan(replace(OPTIONS, replica=100_000_000))
    assert without.choice.push_interval_s is not None and without.choice.push_interval_s < 128
    assert plan.choice.push_interval_s is not None and plan.choice.push_interval_s >= 128
    assert plan.max_workers is not None and plan.max_workers >= 64
    answer = plan.to_json()["master"]
    assert answer == {
        "bytes_down": 10**8,
        "bytes_up": 10**8,
        "push_s": 1.0,
        "most_workers": int(plan.choice.push_interval_s / 2),
    }
    assert without.to_json()["master"] is None


def test_a_plan_says_for_how_many_a_run_is_long_enough() -> None:
    plan = make_plan(replace(OPTIONS, epochs=3, batch=100))
    assert plan.useful is not None and plan.useful[0] == 3 * 10**6 // 100 // 150
    assert plan.to_json()["useful_workers"] == plan.useful[0]
    assert make_plan(OPTIONS).useful is None


@pytest.mark.parametrize(("push_cost", "sharing"), [(0.01, 16), (2.0, 11), (100.0, 0), (None, None)])
def test_a_plan_says_how_many_can_share_a_batch_at_a_cost_of_pushes_that_is_known(
    push_cost: float | None, sharing: int | None
) -> None:
    plan = make_plan(replace(OPTIONS, epochs=3, batch=64, t_exec=0.5, push_cost=push_cost))
    assert plan.sharing == plan.to_json()["sharing_workers"] == sharing
    assert make_plan(replace(OPTIONS, push_cost=0.01)).sharing is None  # the batch is not known


@pytest.mark.parametrize(
    ("text", "nbytes"), [("100MB", 10**8), ("250kB", 250_000), ("1.5 GB", 15 * 10**8), ("4", 4), (".5M", 500_000)]
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_bytes("--replica", text) == nbytes


@pytest.mark.parametrize("text", ["", "large", "-1MB", "0", "3", "1TB", "1e6", "100 M B", "nan", "9" * 400 + "MB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"--replica is .*; expected a size of at least 4 bytes in B, kB, MB or GB, such"
    ):
        parse_bytes("--replica", text)


def test_options_that_make_no_sense_together_are_refused() -> None:
    with pytest.raises(UsageError, match="got --compress without --replica"):
        make_plan(replace(OPTIONS, compress="int8"))
    with pytest.raises(UsageError, match="--compress is 'zip'; expected none, int8 or int4"):
        make_plan(replace(OPTIONS, compress="zip", replica=1_000_000))
    with pytest.raises(UsageError, match="--epochs is 0; expected at least 1"):
        make_plan(replace(OPTIONS, epochs=0))

"""The comparison with the expected result can fail: it detects wrong runs."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.exact_run import (
    CHAINS,
    MOMENTS,
    Outcome,
    Result,
    advised,
    begin,
    differing,
    follow,
    go_on,
    interrupt,
    isolated,
    module_of,
    wrong_on_disk,
)
from master.store.schema import encode_checksummed

CHAIN, SUPERSTEPS = CHAINS


@pytest.mark.parametrize("program", CHAINS)
def test_a_run_that_nothing_befell_is_exact(program: Path, folder: Path) -> None:
    begin(program, folder / "run")
    assert wrong_on_disk(program, folder / "run") is None


def test_numbers_differ_after_every_epoch() -> None:
    """A vertex of another epoch than its neighbours therefore has another number."""
    for program in CHAINS:
        after = [module_of(program).expected(epochs) for epochs in range(module_of(program).EPOCHS + 2)]
        for name in after[0]:
            for one, two in itertools.pairwise(after):
                assert (one[name] != two[name]).all()


def test_rows_that_differ_are_counted() -> None:
    rows = np.arange(6).reshape(3, 2)
    assert differing({"T/x": rows.copy()}, {"T/x": rows}) is None
    altered = rows + np.array([[0, 0], [0, 1], [1, 1]])
    assert differing({"T/x": altered}, {"T/x": rows}) == "2 of 3 rows of T/x are wrong"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM credits WHERE rowid = 3", "credits"),
        ("UPDATE credits SET stop = stop + 1 WHERE rowid = 3", "credits"),
        (
            f"UPDATE epochs SET (metrics, metrics_crc32) = {tuple(encode_checksummed({'total': 1}))} WHERE epoch = 1",
            "the metrics of",
        ),
        (
            f"UPDATE run SET (value, crc32) = {tuple(encode_checksummed('failed'))} WHERE key = 'status'",
            "the status is failed",
        ),
    ],
)
def test_a_ledger_that_is_wrong_is_seen(statement: str, says: str, folder: Path) -> None:
    root = folder / "run"
    begin(CHAIN, root)
    with sqlite3.connect(root / "ledger.db") as db:
        db.execute(statement)
    db.close()
    assert says in str(wrong_on_disk(CHAIN, root))


def test_the_trained_replica_is_compared(folder: Path) -> None:
    root = folder / "run"
    begin(CHAIN, root)
    final = bytearray((root / "final.safetensors").read_bytes())
    final[-1] ^= 1
    (root / "final.safetensors").write_bytes(final)
    assert "1 of 40 rows of Word/total are wrong" in str(wrong_on_disk(CHAIN, root))


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
@pytest.mark.parametrize("survive", [True, False])
def test_an_interrupted_run_goes_on(moment: object, survive: bool, folder: Path) -> None:
    for program in CHAINS:
        root, image = folder / f"{program.stem}", folder / f"{program.stem}-image"
        world = interrupt(program, root, image, moment)  # type: ignore[arg-type]
        assert go_on(program, image, world if survive else None) == Result(Outcome.EXACT)


def test_advice_is_what_it_says_to_run() -> None:
    text = "x is damaged. Restore it: rm -f 'a b' && cp c d && gridml resume r  (what was credited is trained again)"
    assert advised(text) == ["rm -f 'a b'", "cp c d", "gridml resume r"]
    assert advised("x is damaged. Restore it: gridml resume r") == ["gridml resume r"]
    assert advised("mend that") == []


def test_advice_is_followed(folder: Path) -> None:
    (folder / "c").write_text("copy")
    assert follow([f"cp {folder / 'c'} {folder / 'd'}", "gridml resume r"])
    assert (folder / "d").read_text() == "copy"
    assert not follow([f"rm -f {folder / 'd'}"])
    assert not (folder / "d").exists()


def test_the_end_of_a_process_of_its_own_is_a_result() -> None:
    assert isolated(lambda: Result(Outcome.WRONG, "so\nit is")) == Result(Outcome.WRONG, "so\nit is")
    assert isolated(lambda: os.kill(os.getpid(), signal.SIGBUS)) == Result(Outcome.CRASHED, "SIGBUS")  # type: ignore[arg-type,func-returns-value]
    assert "ZeroDivisionError" in isolated(lambda: 1 / 0).text  # type: ignore[arg-type,return-value]
    assert isolated(lambda: time.sleep(60), limit_s=0.1).outcome is Outcome.STUCK  # type: ignore[arg-type,func-returns-value]

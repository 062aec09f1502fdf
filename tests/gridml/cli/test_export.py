"""`gridml export`: what a run computed, listed and written to files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gridml as library

COMMAND = "export"
PROGRAM = Path(__file__).parents[2] / "programs" / "ranks.py"


def test_tables_are_listed_written_and_refused(gridml: Callable[..., tuple[int, str, str]]) -> None:
    run = library.simulate(PROGRAM, workers=2, cost="t_x=0.01,t_s=1,push=0.1", run_dir="run")
    status, out, _ = gridml("run")
    assert status == 0 and "Page: 300 rows, with ids int64, rank float64, below float64" in out
    assert "Shared: 1 row, with ids int64" in out
    status, out, _ = gridml("run", "--out", "ranks.csv")
    assert status == 0 and out.startswith("Wrote ranks.csv. Page: 300 rows")
    head, *rows = Path("ranks.csv").read_text().splitlines()
    assert head.split(",")[:2] == ['"ids"', '"rank"']
    np.testing.assert_array_equal([float(row.split(",")[1]) for row in rows], run.load()["Page.rank"])
    status, out, _ = gridml("run:e2", "--type", "Shared", "--out", "shared.npz", "--json")
    assert status == 0 and json.loads(out)["Shared"]["rows"] == 1
    assert np.load("shared.npz")["passes"].tolist() == [2]
    for arguments, said in (
        (("run", "--type", "Pages", "--out", "x.csv"), "no fields of Pages; expected one of its tables"),
        (("run", "--out", "x.feather"), "x.feather names no format"),
        (("nothing", "--out", "x.csv"), "is not a run"),
        (("run:v99", "--out", "x.csv"), "v99"),
    ):
        status, _, err = gridml(*arguments)
        assert status != 0 and said in " ".join(err.split()), err
    assert not Path("x.csv").exists()

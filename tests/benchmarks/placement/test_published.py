"""The papers' tables stand beside what is measured, and PaToH is called if there is a program of that name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.placement import peers
from benchmarks.placement.points import made
from benchmarks.placement.published import OPTIONS, PUBLISHED, duan_row, table_2
from benchmarks.table import RESULTS
from gridml.placement.auto import find
from tests.support.graphs import grouped

SAVED = """#!/usr/bin/env python3
import sys
file, parts = sys.argv[1:3]
base, rows, nets, pins = map(int, open(file).readline().split())
lines = open(file).read().splitlines()[1:]
assert base == 1 and len(lines) == nets and sum(len(line.split()) for line in lines) == pins
assert "UM=O" in sys.argv and "FI=0.03" in sys.argv
open(f"{file}.part.{parts}", "w").write(" ".join(str(row % int(parts)) for row in range(rows)))
"""


def test_patoh_is_called_with_the_hypergraph_of_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATOH", str(tmp_path / "patoh"))
    assert peers.patoh_program() is None
    program = tmp_path / "patoh"
    program.write_text(SAVED)
    program.chmod(0o755)
    assert peers.patoh(grouped(40, 30, 4), 4, 0).tolist() == (np.arange(40) % 4).tolist()


def test_table_2_has_what_was_measured_on_the_nearest_graph() -> None:
    lines = table_2()
    assert len(lines) == sum(len(data.parsa) for data in PUBLISHED.values())
    parsa = {line["data"]: line for line in lines if line["method"] == "parsa"}
    assert parsa["rcv1"]["T, printed"] == 112 and all("M" in line for line in parsa.values())


def test_table_5_has_every_method_on_every_nearest_graph() -> None:
    rows = json.loads((RESULTS / "placement_published.json").read_text(encoding="utf-8"))["rows"]
    found = {(row["data"], row["method"]) for row in rows if row["table"] == "Duan 5"}
    assert found >= {(name, method) for name, data in PUBLISHED.items() if data.duan for method in OPTIONS}
    graph, (name, options) = grouped(60, 40, 4), OPTIONS["TSH-2 as printed"]
    line = duan_row("20news, 2k rows", "TSH-2 as printed", made(graph, find(name), 4, options, 1))
    assert line["data"] == "news20" and line["T, printed"] == 193 and line["seeds"] == 1

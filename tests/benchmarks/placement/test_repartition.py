"""Graphs placed again are compared with fresh placements; docs/notes/placement.md has the results."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.placement.repartition import compared
from benchmarks.table import RESULTS
from tests.support.graphs import grouped

DOCS = Path(__file__).resolve().parents[3] / "docs"
HEAD = "| graph | case |"
SHOWN = 15  # lines: five of each of the judges


def test_what_is_placed_again_moves_less_than_what_is_placed_afresh() -> None:
    lines = compared("groups", grouped(1500, 900, 8, groups=16))
    assert [line["case"] for line in lines] == ["grown", *(f"on {parts} parts" for parts in (15, 17, 8, 32))]
    for line in lines:
        moved, afresh, must = (float(str(line[name])) for name in ("moved %", "afresh %", "must %"))
        assert must - 1 <= moved < must + 10 and moved <= afresh + 1
        assert float(str(line["S"])) > 0
    assert float(str(lines[0]["S"])) > float(str(lines[0]["S by chance"]))


def test_docs_say_what_was_measured() -> None:
    rows = json.loads((RESULTS / "placement_again.json").read_text(encoding="utf-8"))["rows"]
    text = (DOCS / "notes" / "placement.md").read_text(encoding="utf-8").splitlines()
    first = next(at for at, line in enumerate(text) if line.startswith(HEAD))
    said = [[cell.strip() for cell in line.strip("|").split("|")] for line in text[first + 2 : first + 2 + SHOWN]]
    rows = [row for row in rows if row["graph"] in {line[0] for line in said}]
    for line, row in zip(said, rows, strict=True):
        triples = ["/".join(f"{row[name + end]:.0f}" for name in "MTS") for end in ("", " afresh")]
        assert line == [row["graph"], row["case"], f"{row['moved %']:.1f}", f"{row['afresh %']:.1f}", *triples]

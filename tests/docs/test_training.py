"""docs/training.md describes the changes to training that the code makes."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import gridml
from gridml.engine.pace import (
    MAX_BATCH_PARTS,
    PAGE,
    STALENESS_STEP,
    averaging_cost,
    batch_size,
    rate_scale,
    used_settings,
)
from gridml.model.order import BLOCK
from master.evaluation.recalibration import MIN_ROWS
from master.store.settings import STEPS_EACH, Settings
from master.sync.version_use import MAX_TAIL_VERSIONS
from master.telemetry.worth import MIN_WORKERS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "training.md").read_text("utf-8")
CHANGES = TEXT.partition("## What gridml changes\n")[2].partition("\n## ")[0]


def test_its_line_is_one_that_a_run_begins_with() -> None:
    update = SimpleNamespace(batch=64, edges=None, accumulate=1, keeps_rate=False)
    own = {
        "min_target_batch": 1,
        "min_actual_batch": 1,
        "rates": (0.05,),
        "normalises": False,
        "gathers": False,
        "schedule": gridml.linear_decay,
    }
    _, text = used_settings(cast(Any, SimpleNamespace(shape=update, **own)), 4, adds=True)
    assert f"\ntraining  {text}\n" in CHANGES
    _, text = averaging_cost(cast(Any, SimpleNamespace(shape=update, **own)), 4, adds=True)
    assert f"\naveraged  {text}\n" in CHANGES
    assert (ROOT / PAGE).samefile(ROOT / "docs" / "training.md")


def test_its_figures_are_those_of_the_code() -> None:
    shares = [batch_size(120, 1, workers) / 120 for workers in (2, 3, 4, 5)]
    assert shares == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 4]) and MAX_BATCH_PARTS == 4
    assert "1/2, 1/3, 1/4 of the program's with 2, 3, and 4 or more workers" in CHANGES
    assert f"the root of the batch's share: {', '.join(f'{rate_scale(share):.2g}' for share in shares[:3])};" in CHANGES
    assert (
        f"train {STEPS_EACH} batches" in CHANGES
        and (MIN_WORKERS, MAX_TAIL_VERSIONS) == (4, 8)
        and "up to eight versions" in CHANGES
    )
    assert f"{STALENESS_STEP}/√c vertices" in CHANGES and f"more than {Settings(Path()).push_budget:.0%} of" in CHANGES
    assert f"blocks of {BLOCK:,}" in CHANGES and f"from {MIN_ROWS:,} rows" in CHANGES


@pytest.mark.parametrize(
    "page", ["README.md", "docs/guide.md", "docs/averaging.md", "docs/papers.md", "docs/events.md"]
)
def test_other_pages_lead_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert re.search(r"\(training\.md#what-gridml-changes\)|\(docs/training\.md\)", text), page

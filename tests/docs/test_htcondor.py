"""The pages on HTCondor name the holds, limits and sizes of the code."""

from __future__ import annotations

import re
from pathlib import Path

from master.backends.condor.holds import _CODES, CATEGORY_HOURS, WAIT_S
from master.state.jobs import HeldFor
from master.store.rundir import write_code
from master.telemetry.staffing import MAX_FAILED_STARTS, MAX_UNFIT, MIN_IDLE_JOBS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROBLEMS = (DOCS / "htcondor_problems.md").read_text("utf-8")
ROWS = {
    HeldFor.PERSON: "somebody's `condor_hold`",
    HeldFor.POLICY: "a policy",
    HeldFor.TRANSIENT: "something that may pass",
    HeldFor.JOB: "the job itself",
}


def test_each_hold_code_is_in_the_row_of_its_cause() -> None:
    for cause, row in ROWS.items():
        found = re.search(rf"^\| {re.escape(row)} \| ([^|;]*)", PROBLEMS, re.M)
        assert found is not None, row
        codes = {code for code, (its, _) in _CODES.items() if its is cause} - {34}  # 34 has the row of memory
        assert {int(code) for code in re.findall(r"\d+", found[1])} == codes, row


def test_its_limits_are_those_of_the_code() -> None:
    assert f"If {WAIT_S:.0f} s after the first submission no job runs yet" in PROBLEMS
    assert (MAX_UNFIT, MAX_FAILED_STARTS) == (20, 5) and "- twenty workers in a row" in PROBLEMS
    assert "- five in a row" in PROBLEMS
    medium, long = (f"{CATEGORY_HOURS[name]:.0f}" for name in ("medium", "long"))
    assert f"{medium} hours for Medium, {long} for Long" in PROBLEMS
    assert MIN_IDLE_JOBS == 10 and "At first ten may be idle" in (DOCS / "htcondor.md").read_text("utf-8")


def test_what_is_sent_with_a_job_is_as_large_as_the_page_says(tmp_path: Path) -> None:
    write_code(tmp_path / "code")
    said = re.search(r"\| ([\d.]+) MB of gridml,", (DOCS / "htcondor.md").read_text("utf-8"))
    assert said is not None and 0.8 < (tmp_path / "code").stat().st_size / 1e6 / float(said[1]) < 1.25

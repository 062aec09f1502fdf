"""What the log of a master's job says of its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from master.backends.condor.events import local_schedd
from master.backends.condor.master_job import LOG, Schedd
from master.store.rundir import RunDirectory

SUBMITTED = "000 (007.000.000) 2026-11-28 06:00:23 Job submitted from host: <10.80.0.1:0>\n...\n"
EXECUTING = "001 (007.000.000) 2026-11-28 06:00:24 Job executing on host: \n...\n"
TERMINATED = """005 (007.000.000) 2026-11-28 06:00:25 Job terminated.
\t({}
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Total Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Total Local Usage
...
"""
ABORTED = "009 (007.000.000) 2026-11-28 06:00:25 Job was aborted.\n\tvia condor_rm (by user root)\n...\n"
FAILED = SUBMITTED + EXECUTING + TERMINATED.format("1) Normal termination (return value 1)")
KILLED = SUBMITTED + EXECUTING + TERMINATED.format("0) Abnormal termination (signal 9)\n\t(0) No core file")


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (None, None),
        ("", None),
        (SUBMITTED, None),
        (SUBMITTED + EXECUTING, None),
        (FAILED, "job 7 ended with status 1"),
        (KILLED, "job 7 ended by signal 9"),
        (SUBMITTED + ABORTED, "job 7 was removed from the queue"),
        (FAILED + SUBMITTED.replace("007", "008"), None),  # submitted again
    ],
)
def test_the_end_of_the_last_master(log: str | None, end: str | None, tmp_path: Path) -> None:
    pytest.importorskip("htcondor2", exc_type=ImportError)
    if log is not None:
        (tmp_path / LOG).write_text(log)
    assert Schedd().master_end(RunDirectory(tmp_path)) == end


@pytest.mark.parametrize("error", [KeyError("MyAddress"), TypeError("location must be a ClassAd")])
def test_a_schedd_without_an_address_is_one_that_does_not_answer(error: Exception) -> None:
    def refuse() -> None:
        raise error

    condor = SimpleNamespace(Schedd=refuse, HTCondorException=OverflowError)
    with pytest.raises(OverflowError, match="no address"):
        local_schedd(condor)

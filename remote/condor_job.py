"""What a worker that is an HTCondor job knows of itself."""

from __future__ import annotations

import os
from pathlib import Path


def worker_name(job: str, ad: Path | None = None) -> str:
    """The name in the run of job `job` in its present life: `w7`, and after n earlier starts `w7.n`.

    The master counts the starts in the job's log, the schedd in the job's ad, which lies beside the job.
    """
    starts = int(attribute("NumJobStarts", ad) or 0)
    return f"{job}.{starts}" if starts else job


def attribute(name: str, ad: Path | None = None) -> str | None:
    """An attribute of this job's ad as it is written there, None where there is no such attribute, or no job."""
    found = ad or Path(os.environ.get("_CONDOR_JOB_AD", ".job.ad"))
    try:
        lines = found.read_text(errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition(" = ") for line in lines)
    return next((value.strip() for key, _, value in pairs if key == name), None)

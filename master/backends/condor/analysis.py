"""Why no job runs, asked of HTCondor once, beside the run's loop: in a large pool the answer takes a while."""

from __future__ import annotations

import subprocess
from pathlib import Path

from master.backends.condor.advice import about_wait

FILE = "condor.waiting"  # what condor_q -better-analyze said of the first job that waited long
WAIT_S = 20.0  # how long no job may run before it is looked into


class Analysis:
    """One question to `condor_q`, and its answer in file `FILE` of the run directory `root`."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._process: subprocess.Popen[bytes] | None = None
        self.due = True  # nobody has looked into it yet

    def begin(self, cluster: int, proc: int) -> None:
        """Ask why a job waits. Where there is no `condor_q` nobody hears: the bindings are enough for all else."""
        command = ["condor_q", "-better-analyze", f"{cluster}.{proc}"]
        try:
            with self._path.open("wb") as file:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
                )
        except OSError:
            pass

    def take(self) -> str | None:
        """Return, once, why no machine matches the job; None while there is no answer, or where one may."""
        if self._process is None or self._process.poll() is None:
            return None
        self._process = None
        return about_wait(self._path.read_text(errors="replace"))

    def close(self) -> None:
        """End the question. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

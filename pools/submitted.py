"""For tests: a run on a pool that only commands of gridml and HTCondor control, and the policies of the OSPool."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import safetensors.numpy

from pools.pool import Pool, wait_until

PROGRAM = Path(__file__).parents[1] / "tests" / "programs" / "slow_count.py"
VERTICES, EPOCHS, WORKERS = 4_000, 2, 3
LIMIT_S = 180.0  # maximum duration of each wait
_GRIDML = (sys.executable, "-P", "-m", "gridml")  # -P: modules in the working directory must not shadow gridml's
# Prints `gridml status --json` for each run named on stdin. One process serves all polls, because a new process
# for each poll would keep a core busy.
_LOOKS = """
import sys
from pathlib import Path
from master.views.terminal import print_status

for line in sys.stdin:
    print_status(Path(line.removesuffix("\\n")), as_json=True, in_one_line=True)
    sys.stdout.flush()
"""


def _end(process: subprocess.Popen[str]) -> None:
    with process:  # closes the pipes and waits for the process
        process.kill()


class Submitted:
    """A run of `program`, else of `PROGRAM`. Its master is a job of the pool or, if `foreground`, a child process."""

    def __init__(
        self,
        pool: Pool,
        root: Path,
        *options: str,
        workers: int = WORKERS,
        foreground: bool = False,
        program: Path | None = None,
    ) -> None:
        self.pool, self.root = pool, root
        self._looks: subprocess.Popen[str] | None = None
        command_line = (
            "submit", str(program or PROGRAM),
            "--workers", str(workers), "--request-memory", "256MB", "--request-disk", "100MB",
            "--run-dir", str(root), "--chunk", "500", "--json", *options,
        )  # fmt: skip
        if foreground:
            nowhere = subprocess.DEVNULL
            command = [*_GRIDML, *command_line, "--foreground"]
            self.master = subprocess.Popen(command, env=pool.environment(), stdout=nowhere, stderr=nowhere)
            wait_until((root / "ledger.db").exists, LIMIT_S, "the run did not begin")
        else:
            self.master_job = str(json.loads(self.gridml(*command_line))["master_job"])

    @property
    def master_pid(self) -> int:
        """The process of the run's master."""
        return int((self.root / "master.lock").read_text().split()[1])

    def gridml(self, *arguments: str) -> str:
        done = self.tried(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tried(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of gridml and return its result, whatever the exit status."""
        return subprocess.run(
            [*_GRIDML, *arguments], env=self.pool.environment(), capture_output=True, text=True, timeout=60
        )

    def status(self) -> dict[str, object]:
        if self._looks is None:
            self._looks = subprocess.Popen(
                [sys.executable, "-P", "-c", _LOOKS],
                env=self.pool.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            weakref.finalize(self, _end, self._looks)
        assert self._looks.stdin is not None and self._looks.stdout is not None
        self._looks.stdin.write(f"{self.root}\n")
        self._looks.stdin.flush()
        said = self._looks.stdout.readline()
        assert said, "gridml status failed, see above"
        status: dict[str, object] = json.loads(said)
        return status

    def wait(self, true: Callable[[dict[str, object]], bool], what: str) -> dict[str, object]:
        """Return the first status for which `true` holds. Raises AssertionError after `LIMIT_S`."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            status = self.status()
            if true(status):
                return status
            time.sleep(0.2)
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in (self.root / "logs").glob("master.*"))
        raise AssertionError(f"not within {LIMIT_S:g} s: {what}; {self.status()}\n{logs}")

    def under_way(self) -> None:
        """Wait for the first credit. Fails if most of the work is done by then."""
        status = self.wait(lambda now: int(str(now["all_credited"])) > 0, "a first credit")
        assert int(str(status["all_credited"])) < VERTICES * EPOCHS * 0.8, "the run was over too soon to be disturbed"

    def jobs(self, state: int = 2) -> list[str]:
        """Return one line per job of a worker whose JobStatus is `state` (2: running): the job's id and the worker."""
        constraint = f'GridmlRun =?= "{self.root}" && JobStatus == {state}'
        return self.pool.tool("condor_q", "-constraint", constraint, "-af:j", "GridmlWorker").stdout.splitlines()

    def act(self, tool: str, *options: str) -> None:
        """Run a command of HTCondor on every running job of a worker."""
        for line in self.jobs():
            assert self.pool.tool(tool, *options, line.split()[0]).returncode == 0

    def events(self, topic: str) -> list[str]:
        """Return the lines of events.log with one topic."""
        return [line for line in (self.root / "events.log").read_text().splitlines() if line.split()[2] == topic]

    def exact(self, epochs: int = EPOCHS) -> dict[str, object]:
        """Wait for the end and return the report. Fails unless, in each epoch, every vertex was credited exactly once
        and counted exactly once in the trained replica."""
        self.wait(lambda status: status["status"] == "finished", "the end of the run")
        report: dict[str, object] = json.loads(self.gridml("report", str(self.root), "--json"))
        reported = report["epochs"]
        assert isinstance(reported, list)
        assert [(e["credited"], e["duplicated"], e["lost"]) for e in reported] == [(VERTICES, 0, 0)] * epochs
        trained = safetensors.numpy.load_file(self.root / "final.safetensors")
        assert [int(values.sum()) for values in trained.values()] == [VERTICES * epochs]
        return report


# From the OSPool's documentation ("Indicate the Duration Category of Your Jobs"), and from users' reports of the limit
# of 30 starts. The configuration of the access points is not public.
STARTS = 30  # a waiting job is held after this many starts
MEDIUM_HOURS, LONG_HOURS = 20.0, 40.0  # time limits of jobs by duration category
_MEMORY = 102  # the subcode of HTCondor's own POLICY:HOLD_IF_MEMORY_EXCEEDED


def policies(*, starts: int = STARTS, medium_s: float = 3600 * MEDIUM_HOURS, long_s: float = 3600 * LONG_HOURS) -> str:
    """Return the policies of an OSPool access point, as lines for `configuration.Host.more`.

    A job is held in three cases: it waits after `starts` starts, it uses more memory than it requested, or it runs for
    longer than its category allows: `medium_s` seconds (Medium, the default) or `long_s` (Long). Tests shorten these
    limits.
    """
    return f"""
JOB_TRANSFORM_NAMES = $(JOB_TRANSFORM_NAMES) Category
JOB_TRANSFORM_Category @=end
    REQUIREMENTS JobUniverse == 5
    DEFAULT JobDurationCategory "Medium"
    EVALSET AllowedExecuteDuration ifThenElse(JobDurationCategory =?= "Long", {long_s:.0f}, {medium_s:.0f})
@end
SYSTEM_PERIODIC_HOLD_NAMES = $(SYSTEM_PERIODIC_HOLD_NAMES) Starts Memory
SYSTEM_PERIODIC_HOLD_Starts = JobUniverse == 5 && JobStatus == 1 && NumJobStarts >= {starts}
SYSTEM_PERIODIC_HOLD_Starts_REASON = strcat("The job was started ", NumJobStarts, " times.")
SYSTEM_PERIODIC_HOLD_Memory = JobUniverse == 5 && JobStatus == 2 && MemoryUsage > RequestMemory
SYSTEM_PERIODIC_HOLD_Memory_REASON = strcat("The job used ", MemoryUsage, " MB of memory and asked for ", RequestMemory)
SYSTEM_PERIODIC_HOLD_Memory_SUBCODE = {_MEMORY}
"""

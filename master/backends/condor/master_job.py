"""The master as an HTCondor job in the local universe, which survives the terminal and is restarted after a crash.

A master killed by a signal is started again, and resumes from the last credit with the workers still alive. A master
that exits by itself is not started again. After several masters in a row without progress, the next one exits by itself
(`master.takeover`). While the master's job is on hold, the workers continue. `condor_rm` of the master's job also
removes the workers' jobs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from gridml.errors import RunError
from gridml.protocol import bundle
from master.backends.condor.backend import CLOSE_TIMEOUT_S, RETRY_S
from master.backends.condor.events import RUN, bindings, job_ad, local_schedd, translate_condor_errors
from master.backends.condor.options import CondorOptions
from master.backends.condor.submit_description import DESCRIPTION as WORKERS
from master.backends.condor.submit_description import as_text, attributes, lines, quoted, word
from master.ports.plugin import BatchSystem, MasterJob
from master.store.journal import mark_cancelled
from master.store.rundir import MasterLock, RunDirectory
from master.store.settings import Settings

DESCRIPTION = "master.sub"
LOG = "master.log"
JOB = "master.job"  # file with the cluster id of the master submitted last
QUERY_TIMEOUT_S = 5.0  # of condor_q
_MARK = "GridmlMasterOf"  # attribute of the master's job; its value is the run directory
# Variables that the job gets from the user's environment, because programs and HTCondor read them.
_PASSED = "PATH, HOME, USER, LOGNAME, LANG, LC_*, PYTHONPATH, VIRTUAL_ENV, CONDOR_CONFIG, _CONDOR_*, GRIDML_*"
_WITHOUT_SCRIPT = "-P -m gridml"


def description(settings: Settings, directory: RunDirectory) -> dict[str, str]:
    """Return the submit commands of the master's job."""
    options = CondorOptions.among(settings.options)
    root = directory.place
    script = Path(sys.executable).parent / "gridml"
    begin = "" if os.access(script, os.X_OK) else f"{_WITHOUT_SCRIPT} "
    commands = {
        **{f"+{name}": value for name, value in attributes(options).items()},
        "universe": "local",
        "initialdir": os.getcwd(),  # a program may open files by paths relative to this directory
        "executable": str(script if not begin else sys.executable),
        "arguments": f'"{begin}resume {word(str(root))}"',
        "getenv": _PASSED,
        "environment": '"OPENBLAS_NUM_THREADS=1"',  # NumPy and SciPy would otherwise each start one thread per core
        "log": str(root / LOG),
        "output": str(root / "logs" / "master.out"),
        "error": str(root / "logs" / "master.err"),
        "batch_name": f"{options.batch_name or 'gridml ' + root.name} (master)",
        "kill_sig": "SIGTERM",
        "remove_kill_sig": "SIGTERM",
        "job_max_vacate_time": str(round(CLOSE_TIMEOUT_S + RETRY_S) + 10),  # seconds, enough for `Condor.close`
        "on_exit_remove": "(ExitBySignal =!= True)",
        # condor_rm of the master's job also removes the jobs that match this expression.
        "+OtherJobRemoveRequirements": '"GridmlMaster =?= $(Cluster)"',
        f"+{_MARK}": quoted(str(root)),
    }
    return lines(commands)


class Schedd(BatchSystem):
    """The schedd that CONDOR_CONFIG names, as the batch system for masters."""

    def check_reachable(self) -> None:
        condor = bindings()
        with translate_condor_errors(condor):
            local_schedd(condor).query("false", ["ClusterId"], limit=1)

    def prepare_master(self, settings: Settings, directory: RunDirectory) -> Path:
        file = directory.root / DESCRIPTION
        text = as_text(description(settings, directory), DESCRIPTION, "")
        bundle.write_atomic(file, text.encode(), durable=False)
        return file

    def submit_master(self, settings: Settings, directory: RunDirectory) -> int:
        condor = bindings()
        self.prepare_master(settings, directory)
        with translate_condor_errors(condor):
            job = int(local_schedd(condor).submit(condor.Submit(description(settings, directory))).cluster())
        bundle.write_atomic(directory.root / JOB, f"{job}\n".encode(), durable=False)
        return job

    def submission(self, prepared: Path) -> str:
        return f"condor_submit {prepared} (in a DAG: JOB train {prepared.absolute()})"

    def master_submitted(self, directory: RunDirectory) -> bool:
        return (directory.root / DESCRIPTION).exists()

    def master_job(self, directory: RunDirectory) -> MasterJob | None:
        """As in the contract."""
        # condor_q has a timeout; the bindings would block 20 s for a schedd that hangs.
        if not self.master_submitted(directory):
            return None
        columns = ("-af", "ClusterId", "JobStatus", "HoldReason")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                ["condor_q", "-constraint", _of(_MARK, directory), *columns],
                capture_output=True,
                text=True,
                timeout=QUERY_TIMEOUT_S,
            )
            for line in done.stdout.splitlines() if done.returncode == 0 else ():
                job, status, *reason = line.split(None, 2)
                if status == "5":
                    return MasterJob(int(job), "held", "".join(reason))
                return MasterJob(int(job), "queued" if status == "1" else "started")
        return None

    def master_end(self, directory: RunDirectory) -> str | None:
        """As in the contract, by the log of the job, which also holds the jobs of earlier masters."""
        end = None
        with contextlib.suppress(RunError):  # no bindings, or no log
            condor = bindings()
            with translate_condor_errors(condor):
                for event in condor.JobEventLog(str(directory.root / LOG)).events(stop_after=0):
                    end = None
                    if event.type == condor.JobEventType.JOB_ABORTED:
                        end = f"job {event.cluster} was removed from the queue"
                    elif event.type == condor.JobEventType.JOB_TERMINATED:
                        end = f"job {event.cluster} ended by signal {event.get('TerminatedBySignal')}"
                        if event.get("TerminatedNormally", False):
                            end = f"job {event.cluster} ended with status {event.get('ReturnValue')}"
        return end

    def withdraw(self, directory: RunDirectory) -> str | None:
        if not (directory.root / WORKERS).exists() and not self.master_submitted(directory):
            return None  # nothing was submitted
        condor = bindings()
        with MasterLock(directory):  # a master that starts now finds the lock taken and exits
            with translate_condor_errors(condor):
                schedd, ids = local_schedd(condor), ["ClusterId", "ProcId"]
                masters, workers = (
                    [f"{ad['ClusterId']}.{ad['ProcId']}" for ad in schedd.query(_of(mark, directory), ids)]
                    for mark in (_MARK, RUN)
                )
                jobs = masters + workers
                refused = schedd.act(condor.JobAction.Remove, jobs)["TotalPermissionDenied"] if jobs else 0
            if refused:
                raise RunError(
                    f"HTCondor did not let you remove job {jobs[0]}. Cancel it as the user who submitted it."
                )
            if jobs:
                mark_cancelled(directory)
            withdrawn = [f"its job {masters[0].partition('.')[0]}"] if masters else []
            withdrawn += [f"{len(workers)} jobs of workers"] if workers else []
            return " and ".join(withdrawn) or None

    def removal(self, job: int) -> str:
        return f"condor_rm {job}"

    def runs_this_process(self) -> bool:
        return job_ad() is not None


def _of(mark: str, directory: RunDirectory) -> str:
    """Return the query constraint for this run's live jobs: their attribute `mark` is the run directory."""
    # Job numbers would not do: another pool may have the same number, and a resubmitted master has a new one.
    return f"{mark} =?= {quoted(str(directory.place))} && JobStatus =!= 3 && JobStatus =!= 4"

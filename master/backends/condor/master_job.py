"""The master as a job of its own, in the schedd's local universe: it outlives the terminal and a crash.

Ended by a signal it is started again, and goes on from the last credit with the workers that live on; ended by a
status it is done, and so it ends after some in a row that came to nothing (`master.takeover`). While it is on hold its
workers go on without it, and `condor_rm` of it removes their jobs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gridml.errors import RunError
from gridml.protocol import bundle
from master.backends.condor.backend import AGAIN_S, FAREWELL_S
from master.backends.condor.events import RUN, bindings, explained
from master.backends.condor.options import CondorOptions
from master.backends.condor.submit_description import DESCRIPTION as WORKERS
from master.backends.condor.submit_description import as_text, attributes, lines, quoted, word
from master.ports.plugin import MasterJob
from master.store.journal import mark_cancelled
from master.store.rundir import MasterLock, RunDirectory
from master.store.settings import Settings

DESCRIPTION = "master.sub"
LOG = "master.log"
JOB = "master.job"  # the number of the job that was submitted last
ASK_S = 5.0  # how long the queue may take to say how the master's job stands
_MARK = "GridmlMasterOf"  # attribute of the master's job: its run
# What of the user's environment programs and HTCondor itself look at.
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
        "initialdir": os.getcwd(),  # a program may open files beside it
        "executable": str(script if not begin else sys.executable),
        "arguments": f'"{begin}resume {word(str(root))}"',
        "getenv": _PASSED,
        "environment": '"OPENBLAS_NUM_THREADS=1"',  # of which numpy and scipy would each have one for every core
        "log": str(root / LOG),
        "output": str(root / "logs" / "master.out"),
        "error": str(root / "logs" / "master.err"),
        "batch_name": f"{options.batch_name or 'gridml ' + root.name} (master)",
        "kill_sig": "SIGTERM",
        "remove_kill_sig": "SIGTERM",
        "job_max_vacate_time": str(round(FAREWELL_S + AGAIN_S) + 10),
        "on_exit_remove": "(ExitBySignal =!= True)",
        "+OtherJobRemoveRequirements": '"GridmlMaster =?= $(Cluster)"',
        f"+{_MARK}": quoted(str(root)),
    }
    return lines(commands)


def write(directory: RunDirectory, commands: Mapping[str, str]) -> Path:
    """Write the description into the run directory; return its file."""
    file = directory.root / DESCRIPTION
    bundle.write_atomic(file, as_text(commands, DESCRIPTION, "").encode(), durable=False)
    return file


def submit(directory: RunDirectory, commands: Mapping[str, str]) -> int:
    """Hand the run to the schedd; returns the number of the master's job. Raises RunError when it is refused."""
    condor = bindings()
    write(directory, commands)
    with explained(condor):
        job = int(condor.Schedd().submit(condor.Submit(dict(commands))).cluster())
    bundle.write_atomic(directory.root / JOB, f"{job}\n".encode(), durable=False)
    return job


def submitted(directory: RunDirectory) -> bool:
    """Return whether a job of the master's was ever described for this run, by gridml or to be submitted by hand."""
    return (directory.root / DESCRIPTION).exists()


def waiting(directory: RunDirectory) -> MasterJob | None:
    """Return how the master's job of a run stands: held with HTCondor's reason, started or queued.

    Asked of `condor_q`, which can be ended: the bindings wait 20 s for a schedd that hangs.
    """
    if not submitted(directory):
        return None
    columns = ("-af", "ClusterId", "JobStatus", "HoldReason")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["condor_q", "-constraint", _there(directory), *columns], capture_output=True, text=True, timeout=ASK_S
        )
        for line in done.stdout.splitlines() if done.returncode == 0 else ():
            job, status, *reason = line.split(None, 2)
            if status == "5":
                return MasterJob(int(job), "held", "".join(reason))
            return MasterJob(int(job), "queued" if status == "1" else "started")
    return None


def withdraw(directory: RunDirectory) -> str | None:
    """Take every job of a run that no master holds out of the queue, as `BatchSystem` says.

    Raises RunError when a master holds it, or the queue cannot be reached or refuses.
    """
    if not (directory.root / WORKERS).exists() and not submitted(directory):
        return None  # a run on another back end
    condor = bindings()
    lock = MasterLock(directory)  # a master that begins meanwhile ends at once
    try:
        with explained(condor):
            schedd = condor.Schedd()
            masters = [f"{ad['ClusterId']}.0" for ad in schedd.query(_there(directory), ["ClusterId"])]
            ids = ["ClusterId", "ProcId"]
            workers = [f"{ad['ClusterId']}.{ad['ProcId']}" for ad in schedd.query(_workers(directory), ids)]
            jobs = masters + workers
            refused = schedd.act(condor.JobAction.Remove, jobs)["TotalPermissionDenied"] if jobs else 0
        if refused:
            raise RunError(f"HTCondor did not let you remove job {jobs[0]}. Cancel it as the user who submitted it.")
        if jobs:
            mark_cancelled(directory)
        withdrawn = [f"its job {masters[0].partition('.')[0]}"] if masters else []
        withdrawn += [f"{len(workers)} jobs of workers"] if workers else []
        return " and ".join(withdrawn) or None
    finally:
        lock.release()


def _workers(directory: RunDirectory) -> str:
    return f"{RUN} =?= {quoted(str(directory.place))} && JobStatus =!= 3 && JobStatus =!= 4"


def _there(directory: RunDirectory) -> str:
    """Return what a job must be: its number alone could be another pool's, and a resubmitted master has another one."""
    return f"{_MARK} =?= {quoted(str(directory.place))} && JobStatus =!= 3 && JobStatus =!= 4"

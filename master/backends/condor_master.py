"""The master as a job of its own, in the schedd's local universe: it outlives the terminal and a crash.

Ended by a signal it is started again and goes on from the last credit; ended by a status it is done. While it is on
hold its jobs are gone from the queue, and `condor_rm` of it removes them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gridml import bundle
from master.backends.condor import AGAIN_S, FAREWELL_S, bindings, explained
from master.backends.condor_submit import as_text, word
from master.rundir import RunDirectory
from master.settings import CondorOptions, Settings

DESCRIPTION = "master.sub"
LOG = "master.log"
# What of the user's environment programs and HTCondor itself look at.
_PASSED = "PATH, HOME, USER, LOGNAME, LANG, LC_*, PYTHONPATH, VIRTUAL_ENV, CONDOR_CONFIG, _CONDOR_*, GRIDML_*"
_WITHOUT_SCRIPT = "-P -c 'from gridml.cli import main; main()'"


def description(settings: Settings, directory: RunDirectory) -> dict[str, str]:
    """The submit commands of the master's job."""
    options = settings.condor or CondorOptions()
    root = directory.root.absolute()
    script = Path(sys.executable).parent / "gridml"
    begin = "" if os.access(script, os.X_OK) else f"{_WITHOUT_SCRIPT} "
    return {
        "universe": "local",
        "initialdir": os.getcwd(),  # a program may open files beside it
        "executable": str(script if not begin else sys.executable),
        "arguments": f'"{begin}resume {word(str(root))}"',
        "getenv": _PASSED,
        "log": str(root / LOG),
        "output": str(root / "logs" / "master.out"),
        "error": str(root / "logs" / "master.err"),
        "batch_name": f"{options.batch_name or 'gridml ' + root.name} (master)",
        "kill_sig": "SIGTERM",
        "remove_kill_sig": "SIGTERM",
        "job_max_vacate_time": str(round(FAREWELL_S + AGAIN_S) + 10),  # the workers' jobs are removed meanwhile
        "on_exit_remove": "(ExitBySignal =!= True)",
        "+OtherJobRemoveRequirements": '"GridmlMaster =?= $(Cluster)"',
    }


def write(directory: RunDirectory, commands: Mapping[str, str]) -> None:
    """Write the description into the run directory."""
    bundle.write_atomic(directory.root / DESCRIPTION, as_text(commands, DESCRIPTION, "").encode(), durable=False)


def submit(directory: RunDirectory, commands: Mapping[str, str]) -> int:
    """Hand the run to the schedd; returns the number of the master's job. Raises RunError when it is refused."""
    condor = bindings()
    write(directory, commands)
    with explained(condor):
        return int(condor.Schedd().submit(condor.Submit(dict(commands))).cluster())


def check_reachable() -> None:
    """Raises RunError, saying what to do, when no queue can be reached."""
    condor = bindings()
    with explained(condor):
        condor.Schedd().query("false", ["ClusterId"], limit=1)

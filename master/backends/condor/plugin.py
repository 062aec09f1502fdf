"""HTCondor as gridml offers it: `gridml submit`, its dry run, and masters that are jobs of the schedd.

`gridml submit --dry-run` prints the submit descriptions of a run, and what would be sent with its jobs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gridml.errors import UsageError
from gridml.model.device_memory import parse
from gridml.model.loading import load
from master.backends.condor import master_job, submit_description
from master.backends.condor.options import CondorOptions, is_url
from master.ports.plugin import BackendPlugin, BatchSystem, Command, MasterJob
from master.state.jobs import Backend
from master.store.rundir import CODE, RunDirectory, write_code
from master.store.settings import Settings


class CondorPlugin(BackendPlugin):
    """Workers as jobs of an HTCondor pool. Its bindings are imported when they are first needed."""

    name = "condor"
    options = CondorOptions
    command = Command(
        verb="submit",
        help="Train a program on the jobs of an HTCondor pool.\n\nThe master becomes a job of the local universe: it "
        "goes on when you log out, and is started again after a crash.",
        example="gridml submit examples/mnist.py --workers 20 --request-memory 2GB --foreground",
        workers=10,
        workers_help="Jobs at once, waiting or running.",
    )

    dry_run = "Print the submit descriptions and what would be sent; submit nothing."

    def __init__(self) -> None:
        self.batch = Schedd()

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        from master.backends.condor.backend import Condor

        return Condor(settings, directory)

    def describe(self, settings: Settings, directory: RunDirectory, *, foreground: bool) -> str:

        return describe(settings, directory, foreground=foreground)

    def nearby(self) -> bool:
        from master.backends.condor.events import on_loopback

        return on_loopback()

    def check(self, settings: Settings) -> None:
        from master.backends.condor.submit_description import check

        options = CondorOptions.among(settings.options)
        if parse(settings.device).accelerates and not options.request_gpus:
            raise UsageError(f"--device is {settings.device}, and jobs ask for no GPU; give --request-gpus 1, too.")
        check(options, settings.program)

    def keep(self, settings: Settings, directory: RunDirectory) -> None:
        from master.backends.condor.submit_description import keep

        keep(CondorOptions.among(settings.options), directory)


class Schedd(BatchSystem):
    """The schedd that CONDOR_CONFIG names, as the keeper of masters."""

    def check_reachable(self) -> None:
        from master.backends.condor.events import check_reachable

        check_reachable()

    def submit_master(self, settings: Settings, directory: RunDirectory) -> int:
        from master.backends.condor import master_job

        return master_job.submit(directory, master_job.description(settings, directory))

    def prepare_master(self, settings: Settings, directory: RunDirectory) -> Path:
        from master.backends.condor import master_job

        return master_job.write(directory, master_job.description(settings, directory))

    def submission(self, prepared: Path) -> str:
        return f"condor_submit {prepared} (in a DAG: JOB train {prepared.absolute()})"

    def master_submitted(self, directory: RunDirectory) -> bool:
        from master.backends.condor import master_job

        return master_job.submitted(directory)

    def master_job(self, directory: RunDirectory) -> MasterJob | None:
        from master.backends.condor import master_job

        return master_job.waiting(directory)

    def withdraw(self, directory: RunDirectory) -> str | None:
        from master.backends.condor import master_job

        return master_job.withdraw(directory)

    def removal(self, job: int) -> str:
        return f"condor_rm {job}"

    def runs_this_process(self) -> bool:
        from master.backends.condor.events import job_ad

        return job_ad() is not None


def describe(settings: Settings, directory: RunDirectory, *, foreground: bool) -> str:
    """Return the descriptions as text; without `foreground` that of the master's job, too.

    Raises what loading the program or building its graph raises.
    """
    load(settings.program).build(settings.program)  # what is wrong with it is said now
    commands = submit_description.description(settings, directory, {})
    parts = [submit_description.as_text(commands)]
    if not foreground:
        master = master_job.description(settings, directory)
        parts.insert(0, submit_description.as_text(master, master_job.DESCRIPTION, ""))
    with tempfile.TemporaryDirectory(prefix="gridml-") as folder:
        code = Path(folder) / CODE
        write_code(code)
        parts.append(f"# sent with every job: {CODE} ({code.stat().st_size:,} bytes)")
    for path in commands["transfer_input_files"].split(", ")[1:]:
        size = f"{Path(path).stat().st_size:,} bytes" if Path(path).is_file() else "not there"
        size = "the job's own, made with it" if "$(worker)" in path else size
        size = "fetched by the machine of each job, whenever it starts" if is_url(path) else size
        parts.append(f"# sent with every job: {path} ({size})")
    return "\n".join(parts)

"""HTCondor as gridml offers it: `gridml submit`, and masters that are jobs of the schedd."""

from __future__ import annotations

from pathlib import Path

from gridml.errors import UsageError
from gridml.model.device_names import parse
from master.backends.base import Backend
from master.backends.condor.options import CondorOptions
from master.backends.plugin import BackendPlugin, BatchSystem, Command, MasterJob
from master.store.rundir import RunDirectory
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
        from master.backends.condor.dry_run import describe

        return describe(settings, directory, foreground=foreground)

    def nearby(self) -> bool:
        from master.backends.condor.schedd import on_loopback

        return on_loopback()

    def check(self, settings: Settings) -> None:
        from master.backends.condor.submit_description import check

        options = CondorOptions.among(settings.options)
        if parse(settings.device).accelerates and not options.request_gpus:
            raise UsageError(f"--device is {settings.device}, and jobs ask for no GPU; give --request-gpus 1, too.")
        check(options, settings.program)

    def keep(self, settings: Settings, directory: RunDirectory) -> None:
        from master.backends.condor.sent_files import keep

        keep(CondorOptions.among(settings.options), directory)


class Schedd(BatchSystem):
    """The schedd that CONDOR_CONFIG names, as the keeper of masters."""

    def check_reachable(self) -> None:
        from master.backends.condor.schedd import check_reachable

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
        from master.backends.condor.schedd import job_ad

        return job_ad() is not None

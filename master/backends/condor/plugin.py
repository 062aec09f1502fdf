"""The plug-in of the HTCondor back end: `gridml submit` and its dry run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gridml.errors import UsageError
from gridml.model.device_memory import parse
from gridml.model.loading import load
from gridml.model.phases import Stages
from gridml.model.program import Program
from master.backends.condor import master_job, submit_description
from master.backends.condor.events import on_loopback
from master.backends.condor.options import CondorOptions, is_url
from master.ports.plugin import BackendPlugin, Command
from master.state.jobs import Backend
from master.store.rundir import CODE, RunDirectory, write_code
from master.store.settings import Settings


class CondorPlugin(BackendPlugin):
    """Workers as jobs of an HTCondor pool. The bindings are imported on first use, so that gridml runs without them."""

    name = "condor"
    options = CondorOptions
    command = Command(
        verb="submit",
        help="Train a program on the jobs of an HTCondor pool.\n\nThe master becomes a job of the local universe: it "
        "goes on when you log out, and is started again after a crash.",
        example="gridml submit examples/mnist.py --workers 20 --request-memory 2GB --foreground",
        workers=10,
        workers_help="Number of concurrent jobs, idle or running.",
    )

    dry_run = "Print the submit descriptions and the files to send, but submit nothing."

    def __init__(self) -> None:
        self.batch = master_job.Schedd()

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        from master.backends.condor.backend import Condor

        return Condor(settings, directory)

    def describe(self, settings: Settings, directory: RunDirectory, *, foreground: bool) -> str:
        program = load(settings.program)
        program.build(settings.program)  # raises the program's errors before anything is printed
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
            if is_url(path):
                size = "fetched by the machine of each job, whenever it starts"
            elif "$(worker)" in path:
                size = "the job's own, made with it"
            else:
                size = f"{Path(path).stat().st_size:,} bytes" if Path(path).is_file() else "not there"
            parts.append(f"# sent with every job: {path} ({size})")
        has_stages = isinstance(program.shape, Stages)
        if submit_description.brings_numba(has_stages, CondorOptions.among(settings.options))[0]:
            numba = submit_description.archive_name()
            parts.append(f"# sent with every job: {numba} (some 70 MB, made as the run begins)")
        return "\n".join(parts)

    def nearby(self) -> bool:
        return on_loopback()

    def check(self, settings: Settings) -> None:
        options = CondorOptions.among(settings.options)
        if parse(settings.device).accelerates and not options.request_gpus:
            raise UsageError(f"--device is {settings.device}, and jobs ask for no GPU; give --request-gpus 1, too.")
        submit_description.check(options, settings.program)

    def keep(self, settings: Settings, directory: RunDirectory) -> None:
        submit_description.keep(CondorOptions.among(settings.options), directory)

    def equip(self, program: Program, settings: Settings, directory: RunDirectory) -> None:
        submit_description.bring_numba(program, CondorOptions.among(settings.options), directory)

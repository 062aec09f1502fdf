"""What `gridml submit --dry-run` prints: the submit descriptions of a run, and what would be sent with its jobs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gridml.model.loading import load
from master.backends.condor import master_job, submit_description
from master.backends.condor.options import is_url
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.worker_code import CODE, write_code


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

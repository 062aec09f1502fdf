"""The submit description of a run's jobs, and what travels with them. It works with plain `condor_submit`, too."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gridml.carriers.registry import CARRIERS
from gridml.errors import UsageError
from gridml.model.device_names import AUTO, CPU
from gridml.protocol import bundle, outbox
from gridml.protocol.text import printable
from master.backends.condor import sent_files
from master.backends.condor.options import CondorOptions, check_line, is_url
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.worker_code import CODE, program_entries, write_code

LAUNCHER = "worker.sh"
LOG = "condor.log"  # every event of every job of the run
DESCRIPTION = "condor.sub"
AVOIDED = "GridmlAvoided"  # attribute of every job: the machines on which it is not to start, with commas between them
NAMES = "condor.names"  # the jobs last submitted, a name a line: the description reads it when condor_submit does
_LAUNCHER = """#!/bin/sh
# Starts a gridml worker with the first Python that has what a worker imports.
exec 2>&1
: >>outbox.push  # HTCondor carries it, whatever becomes of the job
[ -z "$_CONDOR_CHIRP_CONFIG" ] || export GRIDML_CHIRP_CONFIG="$_CONDOR_CHIRP_CONFIG"
if [ -n "$GRIDML_PACKED" ]; then
    PATH="$PWD/packed/bin:$PATH"
    if [ ! -d packed ]; then  # it is there when a worker is started again in its folder
        mkdir unpacking && tar -xzf "$GRIDML_PACKED" -C unpacking && mv unpacking packed || {
            tar -tzf "$GRIDML_PACKED" >/dev/null && exit 69  # the archive is whole: it is the disk
            exit 78
        }
        rm -f "$GRIDML_PACKED"
        [ -x packed/bin/conda-unpack ] && packed/bin/conda-unpack
    fi
fi
for python in "$GRIDML_PYTHON" python3 python; do
    [ -n "$python" ] && "$python" -c 'import numpy' 2>/dev/null && exec "$python" gridml.pyz "$@"
done
echo "no Python with numpy on $(uname -n): give --container-image, --packed or --python" >&2
exit 78
"""


def description(settings: Settings, directory: RunDirectory, marks: Mapping[str, str]) -> dict[str, str]:
    """Return the submit commands of one job; `$(worker)` stands for its name. `marks` are attributes of all jobs of the
    run. Raises UsageError for a value that is not one line, whatever it is made of."""
    options, carrier = CondorOptions.among(settings.options), CARRIERS.find(settings.carrier)
    sent = [CODE, *map(str, _programs(settings.program, directory, options)), *sent_files.sent(options, directory)]
    environment = {"OMP_NUM_THREADS": str(options.request_cpus), "MKL_NUM_THREADS": str(options.request_cpus)}
    environment["GRIDML_PYTHON"] = options.python or ("" if options.container_image else sys.executable)
    if carrier.job_file is not None:
        sent.append(carrier.job_file.format(job="$(worker)"))
    if options.packed is not None:
        sent.append(options.packed)
        environment["GRIDML_PACKED"] = Path(options.packed).name
    arguments = ["--name $(worker)", f"--carrier {carrier.name}", f"--program {word(settings.program.name)}"]
    arguments.append(f"--seed {settings.seed} --patience {settings.silent_s:g} --keep {outbox.share(settings.workers)}")
    # A job that asked for no GPU must not take one that it sees.
    device = settings.device if options.request_gpus or settings.device != AUTO else CPU
    arguments.append(f"--device {device}")
    if options.chunks_per_job:
        arguments.append(f"--chunks {options.chunks_per_job}")
    commands = {
        "universe": "vanilla",
        "initialdir": str(directory.place),
        "executable": str(directory.place / LAUNCHER),
        "arguments": f'"{" ".join(arguments)}"',
        "environment": '"' + " ".join(f"{name}={word(value)}" for name, value in environment.items() if value) + '"',
        "log": LOG,
        "output": "logs/$(worker).log",
        # What a worker says must be there when its machine is not any more. It says little.
        "stream_output": "True",
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "transfer_input_files": ", ".join(sent),
        # A push without an answer is kept through evictions, and comes home when the job ends.
        "transfer_output_files": outbox.FILE,
        "transfer_output_remaps": f'"{outbox.FILE}={directory.recovered.name}/$(worker)"',
        "transfer_checkpoint_files": outbox.FILE,
        "checkpoint_exit_code": str(outbox.SAVED),
        "batch_name": options.batch_name or f"gridml {directory.place.name}",
        "request_cpus": str(options.request_cpus),
        "request_memory": f"{options.memory.first}MB",
        "request_disk": options.request_disk,
        "job_max_vacate_time": str(options.grace_s),
        # How long the schedd looks for a job out of reach. The master gives its work to others before.
        "job_lease_duration": str(options.job_lease_s),
    }
    if carrier.name == "chirp":
        commands["want_io_proxy"] = "True"
    if options.request_gpus:
        commands["request_gpus"] = str(options.request_gpus)
        if options.gpus_minimum_capability is not None:
            commands["gpus_minimum_capability"] = f"{options.gpus_minimum_capability:g}"
        if options.gpus_minimum_memory is not None:
            commands["gpus_minimum_memory"] = options.gpus_minimum_memory
    for name in ("rank", "container_image"):
        if getattr(options, name):
            commands[name] = str(getattr(options, name))
    own = f"({options.requirements}) && " if options.requirements else ""
    commands["requirements"] = f"{own}!stringListMember(TARGET.Machine, MY.{AVOIDED})"
    marks = {AVOIDED: '""', **marks}
    return lines({**commands, **{f"+{name}": value for name, value in {**attributes(options), **marks}.items()}})


def _programs(program: Path, directory: RunDirectory, options: CondorOptions) -> list[Path]:
    """What is sent of the program, but for what the user sends."""
    own, *entries = program_entries(program, directory)
    theirs = {Path(file).name for file in options.send}
    return [own, *(path for path in entries if path.name not in theirs)]


def lines(commands: dict[str, str]) -> dict[str, str]:
    """Return submit commands as they are. Raises UsageError for one whose value is more than a line."""
    for name, value in commands.items():
        check_line(name, value)
    return commands


def attributes(options: CondorOptions) -> dict[str, str]:
    """Return what the user wants in the ad of every job of the run."""
    project = {"ProjectName": quoted(options.project)} if options.project else {}
    return {**dict(map(attribute, options.attributes)), **project}


def check(options: CondorOptions, program: Path) -> None:
    """Raise UsageError for an expression that cannot be read, and for a file that is to travel with the jobs and is not
    there, or cannot be named in a list."""
    expressions = {f"--attribute {name}": value for name, value in map(attribute, options.attributes)}
    for option, expression in {**expressions, "--requirements": options.requirements, "--rank": options.rank}.items():
        if expression:
            check_expression(option, expression)
    sent = [*options.send, *filter(None, [options.packed])]
    unnameable = next((file for file in [str(program), *sent] if any(mark in file for mark in (",", "$(", "\n"))), None)
    if unnameable is not None:
        raise UsageError(
            f"{unnameable} cannot travel with the jobs: HTCondor's lists allow no comma and no '$('. Rename it."
        )
    names = [Path(file).name for file in sent]
    twice = next((file for file, name in zip(sent, names, strict=True) if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{twice} is sent beside another file of that name: in a job's folder both are one. Rename it."
        )
    image = options.container_image or ""
    needed = [*sent, *([image] if os.path.isabs(image) else [])]
    missing = next((file for file in needed if not (is_url(file) or os.path.exists(file))), None)
    if missing is not None:
        raise UsageError(f"{missing} cannot be sent with the jobs: it is not there. Name a file that is.")


def check_expression(option: str, text: str) -> None:
    """Raise UsageError for what is no expression of the ClassAd language. Where HTCondor's bindings are missing nobody
    can tell, and they are asked for a little later."""
    try:
        classads = importlib.import_module("classad2")
    except ImportError:
        return
    try:
        classads.ExprTree(text)
    except classads.ClassAdException as error:
        raise UsageError(
            f"{option} is {printable(text, 200)!r}, which HTCondor cannot read; expected an expression, as "
            "'HasAVX2 && OpSysMajorVer >= 8' or 'Memory > 4000'. Look at its brackets and quotes."
        ) from error


def attribute(text: str) -> tuple[str, str]:
    """Return (name, expression) of `NAME=EXPRESSION`, with or without a leading plus. Raises UsageError."""
    name, equals, value = text.removeprefix("+").partition("=")
    if not equals or not name.strip().isidentifier() or not value.strip():
        raise UsageError(f"--attribute got {text!r}; expected NAME=EXPRESSION, for example 'WantGlideIn=True'.")
    return name.strip(), value.strip()


def word(text: str) -> str:
    """Return one word of `arguments` or `environment`, whatever is in it, in the submit language's new syntax."""
    return "'" + text.replace("'", "''").replace('"', '""') + "'"


def quoted(text: str) -> str:
    """Return a string of the ClassAd language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_text(commands: Mapping[str, str], file: str = DESCRIPTION, queue: str = f"worker from {NAMES}") -> str:
    """Return the description as a file for `condor_submit`."""
    written = [f"{name} = {value}" for name, value in commands.items()]
    return "\n".join([f"# condor_submit {file}", *written, f"queue {queue}".rstrip(), ""])


def prepare(directory: RunDirectory, commands: Mapping[str, str]) -> None:
    """Write what is sent, and the description, into the run directory."""
    write_code(directory.root / CODE)
    launcher = directory.root / LAUNCHER
    bundle.write_atomic(launcher, _LAUNCHER.encode(), durable=False)
    launcher.chmod(0o755)
    (directory.root / NAMES).touch()
    directory.recovered.mkdir(exist_ok=True)
    bundle.write_atomic(directory.root / DESCRIPTION, as_text(commands).encode(), durable=False)

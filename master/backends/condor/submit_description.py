"""The submit description of a run's jobs, and the files that travel with them.

Plain `condor_submit` takes the description, too. A run keeps copies of the files of `--send`: its jobs get these,
whatever becomes of the originals. Where the disk can share blocks between files (reflink) a copy costs nothing.
Elsewhere a file above `LARGE` becomes a second name of the same file (hard link): deleting or replacing the
original changes nothing, writing into it does. On another disk it is copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gridml.carriers.registry import CARRIERS
from gridml.errors import StorageError, UsageError
from gridml.model.device_memory import AUTO, CPU
from gridml.protocol import bundle, outbox
from gridml.protocol.foreign import printable
from master.backends.condor.options import CondorOptions, check_line, is_url
from master.store.rundir import CODE, RunDirectory, command, program_entries, write_code
from master.store.settings import Settings

FOLDER = "sent"
LARGE = 256 << 20  # bytes above which a file is not copied where that can be spared
_FICLONE = 0x40049409  # linux/fs.h


def keep(options: CondorOptions, directory: RunDirectory) -> None:
    """Keep the files as they are now, and no others. Killed meanwhile, it leaves the copies as they were, or none.

    Raises UsageError for a file that is not there, StorageError where it cannot be kept.
    """
    folder = directory.root / FOLDER
    new, old = (folder.with_name(f"{FOLDER}.{age}") for age in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    files = _files(options)
    if files:
        new.mkdir()
    for path in files:
        if not path.exists():
            raise UsageError(f"{path} of --send is not there. Put it back, or go on with the run's own copy.")
        try:
            _copy(path, new / path.name)
        except OSError as error:
            raise StorageError(f"{path} of --send cannot be kept in {folder}: {error.strerror}") from error
    if folder.exists():
        folder.rename(old)
    if files:
        new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def files_sent(options: CondorOptions, directory: RunDirectory) -> list[str]:
    """Return what goes with the jobs: the copies, and the originals where there is no run yet, or it has none; URLs as
    they are."""
    copies = {str(path): directory.place / FOLDER / path.name for path in _files(options)}
    return [str(copies[name]) if name in copies and copies[name].exists() else name for name in options.send]


def news(options: CondorOptions, directory: RunDirectory) -> list[str]:
    """Return what a person should know: which files are no copies, and which are not any more what they were."""
    told, pairs = [], list(_pairs(options, directory))
    linked = [path for path, original, copy in pairs if _same(original, copy)]
    if linked:
        told.append(
            f"{_named(linked)} of --send: too large to copy, so the run holds a second name of the same file. Do not "
            "write into it while the run goes on; to delete or replace it does no harm"
        )
    altered = [path for path, original, copy in pairs if _differ(original, copy)]
    if altered:
        told.append(
            f"{_named(altered)} of --send changed since the run began, and it goes on with its own copy. To take what "
            f"is there now: {command('resume', directory.root)} --with-changes"
        )
    return told


def _files(options: CondorOptions) -> list[Path]:
    return [Path(name) for name in options.send if not is_url(name)]


def _named(paths: list[Path]) -> str:
    return ", ".join(map(str, dict.fromkeys(paths)))


def _pairs(options: CondorOptions, directory: RunDirectory) -> Iterator[tuple[Path, Path, Path]]:
    """(what was named, a file of it, the copy of that), of what has a copy."""
    for path in _files(options):
        kept = directory.root / FOLDER / path.name
        files = [copy.relative_to(kept) for copy in kept.rglob("*") if copy.is_file()] if kept.is_dir() else [Path()]
        if kept.exists():
            yield from ((path, path / file, kept / file) for file in files)


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to, copy_function=lambda file, copy: _copy_file(Path(file), Path(copy)))
    else:
        _copy_file(path, to)


def _copy_file(path: Path, to: Path) -> None:
    with contextlib.suppress(OSError):
        with path.open("rb") as original, to.open("xb") as copy:  # what lies there may be a second name of an original
            fcntl.ioctl(copy, _FICLONE, original.fileno())
        shutil.copystat(path, to)
        return
    to.unlink(missing_ok=True)
    if path.stat().st_size > LARGE:
        with contextlib.suppress(OSError):  # it lies on another disk, or is somebody else's
            os.link(path.resolve(), to)
            return
    shutil.copy2(path, to)


def _same(original: Path, copy: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(original, copy)
    return False


def _differ(original: Path, copy: Path) -> bool:
    """Whether an original is another one than when it was copied, as its size and time say."""
    try:
        then, now = copy.stat(), original.stat()
    except OSError:
        return True
    return (then.st_size, then.st_mtime_ns) != (now.st_size, now.st_mtime_ns)


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
    sent = [CODE, *map(str, _programs(settings.program, directory, options)), *files_sent(options, directory)]
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
    for name in ("request_gpus", "gpus_minimum_capability", "gpus_minimum_memory", "rank", "container_image"):
        if value := getattr(options, name):
            commands[name] = f"{value:g}" if isinstance(value, float) else str(value)
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

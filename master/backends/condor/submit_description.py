"""The submit description of a run's jobs, the files transferred with them, and numba, which jobs bring along.

`condor_submit` accepts the description, too. A run copies the files of `--send`, so that its jobs get the same content
even if the originals change. The copies are reflinks if the file system supports them. Otherwise a file above `LARGE`
becomes a hard link if it is on the file system of the run directory; a write to the original then changes the copy.
Every other file is copied in full.

The archive holds the installed files of the Python that submits, so it fits workers of the same Python version, on the
same processor architecture. Caches of machine code are left out: they belong to one user and one machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gridml.carriers.registry import CARRIERS
from gridml.errors import StorageError, UsageError
from gridml.model.device_memory import AUTO, CPU
from gridml.model.phases import Stages
from gridml.model.program import Program
from gridml.protocol import bundle, outbox
from gridml.protocol.foreign import MAX_NAME_CHARS, printable
from master.backends.condor.options import CondorOptions, check_line, is_url
from master.store.rundir import CODE, RunDirectory, command, program_entries, write_code
from master.store.settings import Settings

FOLDER = "sent"
LARGE = 256 << 20  # bytes; larger files are hard-linked if possible
_FICLONE = 0x40049409  # linux/fs.h


def keep(options: CondorOptions, directory: RunDirectory) -> None:
    """Replace the copies of the files of `--send` by new ones. A kill during this leaves all old copies, or none.

    Raises UsageError for a missing file, StorageError for one that cannot be copied.
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
    """Return the files to transfer: copies, originals without a copy (before the run exists), and URLs."""
    copies = {str(path): directory.place / FOLDER / path.name for path in _files(options)}
    return [str(copies[name]) if name in copies and copies[name].exists() else name for name in options.send]


def news(options: CondorOptions, directory: RunDirectory) -> list[str]:
    """Return warnings: files that are hard links, and files whose originals have changed."""
    warnings, pairs = [], list(_pairs(options, directory))
    linked = [path for path, original, copy in pairs if _same(original, copy)]
    if linked:
        warnings.append(
            f"{_named(linked)} of --send: too large to copy, so the run has a hard link to the same file. Do not "
            "write into the file during the run; deleting or replacing it is safe"
        )
    altered = [path for path, original, copy in pairs if _differ(original, copy)]
    if altered:
        warnings.append(
            f"{_named(altered)} of --send changed since the run began, and the run uses its own copy. To use the "
            f"present files: {command('resume', directory.root)} --with-changes"
        )
    return warnings


def _files(options: CondorOptions) -> list[Path]:
    return [Path(name) for name in options.send if not is_url(name)]


def _named(paths: list[Path]) -> str:
    return ", ".join(map(str, dict.fromkeys(paths)))


def _pairs(options: CondorOptions, directory: RunDirectory) -> Iterator[tuple[Path, Path, Path]]:
    """Yield (path given with `--send`, file at or below that path, its copy) for each file that has a copy."""
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
        with path.open("rb") as original, to.open("xb") as copy:  # "x": an existing file may link to an original
            fcntl.ioctl(copy, _FICLONE, original.fileno())
        shutil.copystat(path, to)
        return
    to.unlink(missing_ok=True)
    if path.stat().st_size > LARGE:
        with contextlib.suppress(OSError):  # fails for another file system, and for another user's file
            os.link(path.resolve(), to)
            return
    shutil.copy2(path, to)


def _same(original: Path, copy: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(original, copy)
    return False


def _differ(original: Path, copy: Path) -> bool:
    """Return whether an original has changed since it was copied, by size and modification time."""
    try:
        then, now = copy.stat(), original.stat()
    except OSError:
        return True
    return (then.st_size, then.st_mtime_ns) != (now.st_size, now.st_mtime_ns)


LAUNCHER = "worker.sh"
LOG = "condor.log"  # every event of every job of the run
DESCRIPTION = "condor.sub"
AVOIDED = "GridmlAvoided"  # attribute of every job: the machines on which it must not start, comma-separated
NAMES = "condor.names"  # the names of the last submitted jobs, one per line, for the description's queue statement
_LAUNCHER = """#!/bin/sh
# Starts a gridml worker with the first Python that has what a worker imports.
exec 2>&1
: >>outbox.push  # it must exist: HTCondor transfers it however the job ends
[ -z "$_CONDOR_CHIRP_CONFIG" ] || export GRIDML_CHIRP_CONFIG="$_CONDOR_CHIRP_CONFIG"
if [ -n "$GRIDML_PACKED" ]; then
    PATH="$PWD/packed/bin:$PATH"
    if [ ! -d packed ]; then  # the folder exists if an earlier worker unpacked it here
        mkdir unpacking && tar -xzf "$GRIDML_PACKED" -C unpacking && mv unpacking packed || {
            tar -tzf "$GRIDML_PACKED" >/dev/null && exit 69  # the archive is intact, so the disk is at fault
            exit 78
        }
        rm -f "$GRIDML_PACKED"
        [ -x packed/bin/conda-unpack ] && packed/bin/conda-unpack
    fi
fi
start() {  # the worker, with the first Python that can import the modules $1
    modules="$1" && shift
    for python in "$GRIDML_PYTHON" python3 python; do
        [ -n "$python" ] && "$python" -c "import $modules" 2>/dev/null && exec "$python" gridml.pyz "$@"
    done
}
if [ -n "$GRIDML_BROUGHT" ]; then  # an archive of numba
    start numpy,numba "$@"
    if [ ! -d brought ]; then
        mkdir bringing && tar -xzf "$GRIDML_BROUGHT" -C bringing && mv bringing brought || {
            tar -tzf "$GRIDML_BROUGHT" >/dev/null && exit 69  # as above
            exit 78
        }
        rm -f "$GRIDML_BROUGHT"
    fi
    export PYTHONPATH="$PWD/brought${PYTHONPATH:+:$PYTHONPATH}"
    start numpy,numba "$@"  # fails for a Python of another version
fi
start numpy "$@"
echo "no Python with numpy on $(uname -n): give --container-image, --packed or --python" >&2
exit 78
"""


def description(settings: Settings, directory: RunDirectory, marks: Mapping[str, str]) -> dict[str, str]:
    """Return the submit commands of one job, with `$(worker)` in place of the worker's name. `marks` are attributes
    that all jobs of the run get. Raises UsageError for a value that is not one line."""
    options, carrier = CondorOptions.among(settings.options), CARRIERS.find(settings.carrier)
    sent = [CODE, *map(str, _programs(settings.program, directory, options)), *files_sent(options, directory)]
    environment = {"OMP_NUM_THREADS": str(options.request_cpus), "MKL_NUM_THREADS": str(options.request_cpus)}
    environment["GRIDML_PYTHON"] = options.python or ("" if options.container_image else sys.executable)
    if carrier.job_file is not None:
        sent.append(carrier.job_file.format(job="$(worker)"))
    if options.packed is not None:
        sent.append(options.packed)
        environment["GRIDML_PACKED"] = Path(options.packed).name
    if (numba := archive(directory, options)) is not None:
        sent.append(str(numba))
        environment["GRIDML_BROUGHT"] = numba.name
    arguments = ["--name $(worker)", f"--carrier {carrier.name}", f"--program {word(settings.program.name)}"]
    arguments.append(f"--seed {settings.seed} --patience {settings.silent_s:g} --keep {outbox.share(settings.workers)}")
    # A job that requested no GPU may still see one, which belongs to another job.
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
        # A worker's log must survive its machine. It is short, so streaming is cheap.
        "stream_output": "True",
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "transfer_input_files": ", ".join(sent),
        # An unacknowledged push survives evictions as a checkpoint file, and is transferred back when the job ends.
        "transfer_output_files": outbox.FILE,
        "transfer_output_remaps": f'"{outbox.FILE}={directory.recovered.name}/$(worker)"',
        "transfer_checkpoint_files": outbox.FILE,
        "checkpoint_exit_code": str(outbox.SAVED),
        "batch_name": options.batch_name or f"gridml {directory.place.name}",
        "request_cpus": str(options.request_cpus),
        "request_memory": f"{options.memory.first}MB",
        "request_disk": options.request_disk,
        "job_max_vacate_time": str(options.grace_s),
        # How long the schedd tries to reconnect to a job. The master reassigns the job's leases earlier.
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
    """Return the program's files, except those for which `--send` gives a file of the same name."""
    own, *entries = program_entries(program, directory)
    theirs = {Path(file).name for file in options.send}
    return [own, *(path for path in entries if path.name not in theirs)]


def lines(commands: dict[str, str]) -> dict[str, str]:
    """Return submit commands unchanged. Raises UsageError for a value that is not one printable line."""
    for name, value in commands.items():
        check_line(name, value)
    return commands


def attributes(options: CondorOptions) -> dict[str, str]:
    """Return the user's attributes for the ads of all jobs."""
    project = {"ProjectName": quoted(options.project)} if options.project else {}
    return {**dict(map(attribute, options.attributes)), **project}


def check(options: CondorOptions, program: Path) -> None:
    """Raise UsageError for an invalid expression, and for a file that cannot be sent: it is missing, another file to be
    sent has the same name, or submit descriptions cannot contain the name."""
    expressions = {f"--attribute {name}": value for name, value in map(attribute, options.attributes)}
    for option, expression in {**expressions, "--requirements": options.requirements, "--rank": options.rank}.items():
        if expression:
            check_expression(option, expression)
    sent = [*options.send, *filter(None, [options.packed])]
    unnameable = next((file for file in [str(program), *sent] if any(mark in file for mark in (",", "$(", "\n"))), None)
    if unnameable is not None:
        raise UsageError(
            f"{unnameable} cannot travel with the jobs: HTCondor allows no comma and no '$(' in file names. Rename it."
        )
    names = [Path(file).name for file in sent]
    twice = next((file for file, name in zip(sent, names, strict=True) if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{twice} is sent with another file of the same name: one would overwrite the other. Rename it."
        )
    image = options.container_image or ""
    needed = [*sent, *([image] if os.path.isabs(image) else [])]
    missing = next((file for file in needed if not (is_url(file) or os.path.exists(file))), None)
    if missing is not None:
        raise UsageError(f"{missing} cannot be sent with the jobs: it is not there. Name a file that is.")


def check_expression(option: str, text: str) -> None:
    """Raise UsageError for an invalid ClassAd expression."""
    try:
        classads = importlib.import_module("classad2")
    except ImportError:
        return  # `bindings()` reports the missing package later
    try:
        classads.ExprTree(text)
    except classads.ClassAdException as error:
        raise UsageError(
            f"{option} is {printable(text, 200)!r}, which HTCondor cannot read; expected an expression, as "
            "'HasAVX2 && OpSysMajorVer >= 8' or 'Memory > 4000'. Look at its brackets and quotes."
        ) from error


def attribute(text: str) -> tuple[str, str]:
    """Parse `NAME=EXPRESSION`, with or without a leading plus. Raises UsageError."""
    name, equals, value = text.removeprefix("+").partition("=")
    if not equals or not name.strip().isidentifier() or not value.strip():
        got = printable(repr(text), MAX_NAME_CHARS)
        raise UsageError(f"--attribute got {got}; expected NAME=EXPRESSION, for example 'WantGlideIn=True'.")
    return name.strip(), value.strip()


def word(text: str) -> str:
    """Quote one word of `arguments` or `environment`, in the submit language's new syntax."""
    return "'" + text.replace("'", "''").replace('"', '""') + "'"


def quoted(text: str) -> str:
    """Quote a string of the ClassAd language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_text(commands: Mapping[str, str], file: str = DESCRIPTION, queue: str = f"worker from {NAMES}") -> str:
    """Return the description as a file for `condor_submit`."""
    written = [f"{name} = {value}" for name, value in commands.items()]
    return "\n".join([f"# condor_submit {file}", *written, f"queue {queue}".rstrip(), ""])


def prepare(directory: RunDirectory, commands: Mapping[str, str]) -> None:
    """Write gridml's code, the launcher and the description into the run directory."""
    write_code(directory.root / CODE)
    launcher = directory.root / LAUNCHER
    bundle.write_atomic(launcher, _LAUNCHER.encode(), durable=False)
    launcher.chmod(0o755)
    (directory.root / NAMES).touch()
    directory.recovered.mkdir(exist_ok=True)
    bundle.write_atomic(directory.root / DESCRIPTION, as_text(commands).encode(), durable=False)


PACKAGES = ("numba", "llvmlite")  # numba, and what it needs besides numpy
_LEFT_OUT = ("__pycache__", "tests", "..")  # `..` begins the paths of commands, such as bin/numba
_LEVEL = 1  # of gzip; level 6 takes three times as long for a tenth less


def brings_numba(has_stages: bool, options: CondorOptions) -> tuple[bool, str]:
    """Return (whether jobs bring numba, reason)."""
    if not has_stages:
        return False, "the program has no stages"
    if options.container_image is not None:
        return False, "the program's imports are in the image"
    if options.packed is not None:
        return False, "the program's imports are in the packed environment"
    if options.without_numba:
        return False, "the machines have it"
    return True, "workers compile stages with it"


def archive_name() -> str:
    """Return the name of the archive of numba as it is installed here, such as `numba-0.68.1-cp311-x86_64.tar.gz`."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"
    return f"{PACKAGES[0]}-{importlib.metadata.version(PACKAGES[0])}-{tag}.tar.gz"


def archive(directory: RunDirectory, options: CondorOptions) -> Path | None:
    """Return the archive that jobs bring along, if there is one."""
    path = directory.root / archive_name()
    return directory.place / path.name if brings_numba(path.exists(), options)[0] else None


def bring_numba(program: Program, options: CondorOptions, directory: RunDirectory) -> None:
    """Write the archive into the run directory, if jobs need it and it is not there. Raises UsageError if the files of
    an installed package are unknown, StorageError if the archive cannot be written."""
    path = directory.root / archive_name()
    if not brings_numba(isinstance(program.shape, Stages), options)[0] or path.exists():
        return
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=_LEVEL) as tar:
            for file, name in _installed():
                tar.add(file, name)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"numba, which jobs bring along, cannot be written to {path}: {error.strerror}") from error


def _installed() -> list[tuple[str, str]]:
    """Return (path, path relative to site-packages) of every installed file."""
    found = []
    for package in PACKAGES:
        files = importlib.metadata.files(package)
        if files is None:
            raise UsageError(
                f"jobs bring along {package}, and the list of its files is missing here: it was not installed by pip. "
                f"Give an environment that has it with --packed or --container-image; or, if the machines of the pool "
                f"have it, --without-numba."
            )
        found += [(str(file.locate()), str(file)) for file in files if not set(file.parts) & {*_LEFT_OUT}]
    return found

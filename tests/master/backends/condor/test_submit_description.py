"""The submit description: its commands, the transferred files, and that HTCondor accepts it."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml.errors import UNEQUIPPED, UNFIT, RunError, UsageError
from gridml.protocol import outbox
from master.backends.condor import master_job
from master.backends.condor import submit_description as condor_submit
from master.backends.condor.options import CondorOptions
from master.backends.condor.plugin import CondorPlugin
from master.backends.condor.submit_description import attribute, description
from master.ports.mailboxes import check_carrier
from master.store import rundir
from master.store.rundir import RunDirectory
from master.store.saved_program import contents_of
from master.store.settings import Settings
from pools.pool import Pool

NOT_AVOIDED = "!stringListMember(TARGET.Machine, MY.GridmlAvoided)"
EVERYTHING = CondorOptions(
    requirements="HasAVX2 && OpSysMajorVer >= 8",
    rank="Mips",
    request_cpus=4,
    request_memory="3GB",
    request_disk="5GB",
    request_gpus=1,
    container_image="docker://python:3.12",
    project="Uni_Physics",
    attributes=("+WantGlideIn=True", 'Wanted = "a place"'),
    batch_name="my batch",
    chunks_per_job=7,
    grace_s=45,
    job_lease_s=900,
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    return directory


def settings(directory: RunDirectory, options: CondorOptions | None = None, **values: str) -> Settings:
    program = directory.root.parent / "mnist.py"
    program.write_text("x = 1\n")
    return Settings(program, backend="condor", seed=5, options=options or CondorOptions(), **values)  # type: ignore[arg-type]


def test_files_are_always_transferred_and_saved_at_evictions(directory: RunDirectory) -> None:
    found = description(settings(directory), directory, {})
    assert found["should_transfer_files"] == "YES"  # with a shared disk the job would run in the run directory
    assert found["when_to_transfer_output"] == "ON_EXIT_OR_EVICT"
    assert found["want_io_proxy"] == "True"
    assert found["initialdir"] == str(directory.root)
    assert found["transfer_input_files"].split(", ") == [rundir.CODE, str(directory.root.parent / "mnist.py")]


def test_the_arguments_are_those_of_a_worker(directory: RunDirectory) -> None:
    arguments = description(settings(directory), directory, {})["arguments"]
    keep = f"--keep {outbox.MAX_OUTBOX_BYTES // settings(directory).workers} --device"
    assert arguments == f"\"--name $(worker) --carrier chirp --program 'mnist.py' --seed 5 --patience 120 {keep} cpu\""
    asked = replace(EVERYTHING, chunks_per_job=7)
    assert description(settings(directory, asked), directory, {})["arguments"].endswith(
        f' --patience 120 {keep} auto --chunks 7"'
    )


def test_by_sftp_a_job_gets_its_own_key_and_no_chirp(directory: RunDirectory) -> None:
    found = description(settings(directory, carrier="sftp", address="submit:2222"), directory, {})
    assert "--carrier sftp " in found["arguments"] and "want_io_proxy" not in found
    assert found["transfer_input_files"].split(", ")[-1] == "sftp/$(worker)"
    assert "submit" not in " ".join(found[name] for name in ("arguments", "environment"))


def test_what_the_carrier_takes_must_be_there(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_carrier(settings(directory))
    with pytest.raises(RunError, match=r"paramiko.*pip install paramiko"):
        check_carrier(settings(directory, carrier="sftp"))


def test_without_options_nothing_is_asked_of_machines(directory: RunDirectory) -> None:
    found = description(settings(directory), directory, {})
    assert not {"rank", "container_image", "request_gpus"} & set(found)
    assert found["requirements"] == NOT_AVOIDED
    assert {name: value for name, value in found.items() if name.startswith("+")} == {"+GridmlAvoided": '""'}
    assert f"GRIDML_PYTHON='{sys.executable}'" in found["environment"]
    assert found["batch_name"] == "gridml run"


def test_every_option_is_passed_on(directory: RunDirectory) -> None:
    found = description(settings(directory, EVERYTHING), directory, {"GridmlRun": '"here"'})
    assert found["requirements"] == f"(HasAVX2 && OpSysMajorVer >= 8) && {NOT_AVOIDED}"
    assert found["request_memory"] == "3072MB"
    said = {name: found[name] for name in ("rank", "container_image", "request_disk")}
    assert said == {name: getattr(EVERYTHING, name) for name in said}
    assert (found["request_cpus"], found["request_gpus"]) == ("4", "1")
    assert (found["batch_name"], found["job_max_vacate_time"]) == ("my batch", "45")
    assert found["job_lease_duration"] == "900"
    own = {name: value for name, value in found.items() if name.startswith("+")}
    assert own == {
        "+WantGlideIn": "True",
        "+Wanted": '"a place"',
        "+GridmlAvoided": '""',
        "+GridmlRun": '"here"',
        "+ProjectName": '"Uni_Physics"',
    }


def test_gpus_may_have_to_be_of_some_kind(directory: RunDirectory) -> None:
    asked = CondorOptions(request_gpus=2, gpus_minimum_capability=8.0, gpus_minimum_memory="20GB")
    found = description(settings(directory, asked), directory, {})
    said = {name: found[name] for name in ("request_gpus", "gpus_minimum_capability", "gpus_minimum_memory")}
    assert said == {"request_gpus": "2", "gpus_minimum_capability": "8", "gpus_minimum_memory": "20GB"}
    plain = description(settings(directory, CondorOptions(request_gpus=1)), directory, {})
    assert "gpus_minimum_capability" not in plain and "gpus_minimum_memory" not in plain


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gpus_minimum_memory": "20GB"}, "without --request-gpus"),
        ({"request_gpus": 1, "gpus_minimum_memory": "much"}, "--gpus-minimum-memory is 'much'"),
        ({"request_gpus": 1, "gpus_minimum_capability": -1.0}, "--gpus-minimum-capability is -1"),
        ({"request_gpus": 1, "gpus_minimum_capability": math.nan}, "--gpus-minimum-capability is nan"),
    ],
)
def test_what_gpus_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CondorOptions(**options)


def test_a_job_that_asks_for_no_gpu_takes_none(directory: RunDirectory) -> None:
    for gpus, asked, device in ((0, "auto", "cpu"), (1, "auto", "auto"), (1, "cuda", "cuda"), (1, "cpu", "cpu")):
        chosen = settings(directory, CondorOptions(request_gpus=gpus), device=asked)
        assert f"--device {device}" in description(chosen, directory, {})["arguments"]
    with pytest.raises(UsageError, match="--device is cuda, and jobs ask for no GPU"):
        CondorPlugin().check(settings(directory, device="cuda"))


def test_grace_and_job_lease_have_defaults(directory: RunDirectory) -> None:
    found = description(settings(directory), directory, {})
    assert (found["job_max_vacate_time"], found["job_lease_duration"]) == ("30", "300")


@pytest.mark.parametrize(
    ("field", "option", "low"),
    [
        ("grace_s", "--grace", 1),
        ("job_lease_s", "--job-lease", 1),
        ("request_cpus", "--request-cpus", 1),
        ("max_idle", "--max-idle", 1),
        ("request_gpus", "--request-gpus", 0),
        ("chunks_per_job", "--chunks-per-job", 0),
    ],
)
def test_a_count_that_is_too_small_is_refused(field: str, option: str, low: int) -> None:
    assert getattr(CondorOptions(**{field: low}), field) == low
    with pytest.raises(UsageError, match=rf"^{option} is {low - 1}; expected at least {low}\.$"):
        CondorOptions(**{field: low - 1})


def test_options_outlive_their_way_through_the_run_directory() -> None:
    chosen = Settings(Path("mnist.py"), backend="condor", options=EVERYTHING, carrier="sftp", address="submit:2222")
    assert Settings.from_json(json.loads(json.dumps(chosen.to_json())), CondorOptions) == chosen


def test_the_python_of_an_image_is_its_own(directory: RunDirectory) -> None:
    image = CondorOptions(container_image="docker://python:3.12")
    assert "GRIDML_PYTHON" not in description(settings(directory, image), directory, {})["environment"]
    image = replace(image, python="/opt/python")
    assert "GRIDML_PYTHON='/opt/python'" in description(settings(directory, image), directory, {})["environment"]


def test_threads_follow_the_cores(directory: RunDirectory) -> None:
    environment = description(settings(directory, EVERYTHING), directory, {})["environment"]
    assert "OMP_NUM_THREADS='4'" in environment and "MKL_NUM_THREADS='4'" in environment


def test_a_packed_environment_and_further_files_travel(directory: RunDirectory) -> None:
    sent = CondorOptions(packed="/files/env.tar.gz", send=("/files/a.npy", "/files/b.npy"))
    found = description(settings(directory, sent), directory, {})
    assert found["transfer_input_files"].split(", ")[2:] == ["/files/a.npy", "/files/b.npy", "/files/env.tar.gz"]
    assert "GRIDML_PACKED='env.tar.gz'" in found["environment"]


def test_what_has_a_url_is_fetched_by_the_machine(directory: RunDirectory) -> None:
    sent = CondorOptions(packed="osdf:///lab/env-v3.tar.gz", send=("osdf:///lab/images-v1.npy", "more.npy"))
    condor_submit.check(CondorOptions(packed=sent.packed, send=sent.send[:1]), Path("mnist.py"))
    found = description(settings(directory, sent), directory, {})
    assert found["transfer_input_files"].split(", ")[2:] == [
        "osdf:///lab/images-v1.npy",
        str(Path("more.npy").absolute()),
        "osdf:///lab/env-v3.tar.gz",
    ]
    assert "GRIDML_PACKED='env-v3.tar.gz'" in found["environment"]
    chosen = Settings(Path("mnist.py"), backend="condor", options=sent)
    assert Settings.from_json(json.loads(json.dumps(chosen.to_json())), CondorOptions) == chosen
    with pytest.raises(UsageError, match=r"a,b\.npy cannot travel"):
        condor_submit.check(CondorOptions(send=("osdf:///lab/a,b.npy",)), Path("mnist.py"))


def test_a_run_that_is_named_through_a_link_is_the_same_run(directory: RunDirectory, tmp_path: Path) -> None:
    """The jobs of a run are found by its directory."""
    (tmp_path / "link").symlink_to(directory.root, target_is_directory=True)
    linked = RunDirectory(tmp_path / "link")
    chosen = settings(directory)
    assert description(chosen, linked, {}) == description(chosen, directory, {})
    assert master_job.description(chosen, linked) == master_job.description(chosen, directory)
    for mark in (master_job.RUN, master_job._MARK):
        assert master_job._of(mark, linked) == master_job._of(mark, directory)
        assert str(directory.root.resolve()) in master_job._of(mark, linked)


def test_a_programs_own_modules_travel_as_the_run_keeps_them(directory: RunDirectory) -> None:
    chosen = settings(directory)
    (chosen.program.parent / "helper.py").write_text("import kit.part\n")
    (chosen.program.parent / "kit").mkdir()
    (chosen.program.parent / "kit" / "part.py").touch()
    (chosen.program.parent / "kit" / "unused.npy").touch()
    chosen.program.write_text("import helper\n")

    def sent(options: CondorOptions) -> list[str]:
        found = description(replace(chosen, options=options), directory, {})
        return found["transfer_input_files"].split(", ")[1:]

    theirs = chosen.program.parent
    assert sent(CondorOptions()) == [str(theirs / name) for name in ("mnist.py", "helper.py", "kit")]  # --dry-run
    directory.saved_program(chosen.program).keep(contents_of(chosen.program))
    kept = directory.root.absolute() / "program"
    assert sent(CondorOptions()) == [str(kept / name) for name in ("mnist.py", "helper.py", "kit")]
    assert [path.name for path in (kept / "kit").iterdir()] == ["part.py"]
    other = Path("/files/helper.py")
    assert sent(CondorOptions(send=(str(other),))) == [str(kept / "mnist.py"), str(kept / "kit"), str(other)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WantGlideIn=True", ("WantGlideIn", "True")),
        ("+WantGlideIn = True", ("WantGlideIn", "True")),
        ("Check=(a == b)", ("Check", "(a == b)")),
    ],
)
def test_attributes(text: str, expected: tuple[str, str]) -> None:
    assert attribute(text) == expected


@pytest.mark.parametrize("text", ["WantGlideIn", "=True", "Want Glide=True", "WantGlideIn=", "WantGlideIn= ", ""])
def test_attributes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"--attribute got .* expected NAME=EXPRESSION"):
        attribute(text)


@given(name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True), value=st.text(min_size=1))
def test_parsing_an_attribute_inverts_writing_it(name: str, value: str) -> None:
    if value.strip():
        assert attribute(f"{name}={value}") == attribute(f"+{name} = {value}") == (name, value.strip())


def test_the_text_says_the_same_as_the_commands(directory: RunDirectory) -> None:
    commands = description(settings(directory, EVERYTHING), directory, {})
    lines = condor_submit.as_text(commands).splitlines()
    assert dict(line.split(" = ", 1) for line in lines[1:-1]) == commands
    assert lines[-1] == f"queue worker from {condor_submit.NAMES}"


def prepared(directory: RunDirectory, options: CondorOptions | None = None) -> None:
    asked = settings(directory, options)
    condor_submit.prepare(directory, description(asked, directory, {}))


def test_everything_that_is_sent_lies_in_the_run_directory(directory: RunDirectory) -> None:
    before = {path.name for path in directory.root.iterdir()}
    wanted = before | {
        rundir.CODE,
        condor_submit.LAUNCHER,
        condor_submit.DESCRIPTION,
        condor_submit.NAMES,
        "recovered",
    }
    prepared(directory)
    assert {path.name for path in directory.root.iterdir()} == wanted
    assert (directory.root / condor_submit.LAUNCHER).stat().st_mode & stat.S_IXUSR
    prepared(directory)  # by the next master
    assert {path.name for path in directory.root.iterdir()} == wanted


@pytest.mark.parametrize(
    "options",
    [
        CondorOptions(packed="no.tar.gz"),
        CondorOptions(send=("no.npy",)),
        CondorOptions(container_image="/no.sif"),
    ],
)
def test_a_file_to_send_that_is_not_there(options: CondorOptions) -> None:
    with pytest.raises(UsageError, match=r"no\.\S+ cannot be sent"):
        condor_submit.check(options, Path("mnist.py"))


def test_the_code_runs_where_nothing_of_gridml_is(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    rundir.write_code(empty / rundir.CODE)
    # site-packages without gridml: a link to each package that a worker imports.
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for place in map(Path, sys.path):
        if place.name == "site-packages":
            for found in place.iterdir():
                if not found.name.startswith(("_", "gridml")) and found.suffix != ".pth":
                    (libraries / found.name).symlink_to(found)
    start = f"import sys; sys.path.append({str(libraries)!r}); import runpy; "
    start += f"sys.argv[:] = [{rundir.CODE!r}, '--help']; runpy.run_path({rundir.CODE!r}, {{}}, '__main__')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", start], cwd=empty, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: gridml-worker" in done.stdout and "chirp" in done.stdout
    assert [path.name for path in empty.iterdir()] == [rundir.CODE]


def test_the_code_holds_what_a_worker_imports_and_no_more(tmp_path: Path) -> None:
    rundir.write_code(tmp_path / "code.pyz")
    with ZipFile(tmp_path / "code.pyz") as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"__main__.py", "gridml", "remote"}
    assert "remote/worker.py" in names and "gridml/carriers/chirp.py" in names
    assert len(names) == len(set(names))


def launched(directory: RunDirectory, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run worker.sh with only the Pythons of the test on the path."""
    prepared(directory)
    return subprocess.run(
        ["/bin/sh", condor_submit.LAUNCHER, "--name", "w1"],
        cwd=directory.root,
        env={"PATH": "/nowhere", **environment},
        capture_output=True,
        text=True,
    )


def python_that(tmp_path: Path, imports: bool) -> Path:
    """A stand-in for a Python, with or without numpy, that prints the code it should run."""
    path = tmp_path / f"python-{imports}"
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {0 if imports else 1}\necho "$@"\n')
    path.chmod(0o755)
    return path


def test_the_launcher_starts_the_worker(directory: RunDirectory, tmp_path: Path) -> None:
    done = launched(directory, GRIDML_PYTHON=str(python_that(tmp_path, imports=True)))
    assert (done.returncode, done.stdout) == (0, "gridml.pyz --name w1\n"), done.stderr


def test_the_launcher_takes_the_next_python_when_the_first_lacks_numpy(directory: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(python_that(tmp_path, imports=True))
    lacking = python_that(tmp_path, imports=False)
    done = launched(directory, GRIDML_PYTHON=str(lacking), PATH=str(tmp_path / "bin"))
    assert (done.returncode, done.stdout) == (0, "gridml.pyz --name w1\n"), done.stderr


def test_a_machine_without_a_python_is_unfit_and_says_so(directory: RunDirectory, tmp_path: Path) -> None:
    done = launched(directory, GRIDML_PYTHON=str(python_that(tmp_path, imports=False)))
    assert done.returncode == UNEQUIPPED == os.EX_CONFIG
    assert "no Python with numpy" in done.stdout and "--container-image" in done.stdout


@pytest.mark.real
@pytest.mark.parametrize("options", [None, EVERYTHING], ids=["plain", "everything"])
def test_condor_submit_takes_it(
    condor_pool: Pool, directory: RunDirectory, tmp_path: Path, options: CondorOptions | None
) -> None:
    prepared(directory, options)
    (directory.root / condor_submit.NAMES).write_text("w1\nw2\n")
    jobs = tmp_path / "jobs.ads"
    done = subprocess.run(
        [condor_pool.release.binary("condor_submit"), "-dry-run", str(jobs), condor_submit.DESCRIPTION],
        cwd=directory.root,
        env=condor_pool.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 job(s) dry-run" in done.stdout
    said = jobs.read_text()
    assert "--name w1 --carrier chirp --program mnist.py --seed 5" in said and 'Out="logs/w2.log"' in said
    if options is not None:
        assert "WantGlideIn=true" in said and 'ProjectName="Uni_Physics"' in said and "HasAVX2" in said


def test_a_packed_environment_is_unpacked_once_and_used_again(directory: RunDirectory, tmp_path: Path) -> None:
    """A worker that saved a checkpoint is restarted in the same folder."""
    with tarfile.open(directory.root / "env.tar.gz", "w:gz") as archive:
        archive.add(python_that(tmp_path, imports=True), "bin/python3")
    for _ in range(2):
        done = launched(directory, GRIDML_PACKED="env.tar.gz", PATH=os.environ["PATH"])
        assert (done.returncode, done.stdout) == (0, "gridml.pyz --name w1\n"), done
    assert not (directory.root / "env.tar.gz").exists()


def test_a_packed_environment_that_is_damaged_is_not_the_machines_fault(directory: RunDirectory) -> None:
    (directory.root / "env.tar.gz").write_bytes(b"half of it")
    done = launched(directory, GRIDML_PACKED="env.tar.gz", PATH=os.environ["PATH"])
    assert done.returncode == UNEQUIPPED
    assert not (directory.root / "packed").exists()


def test_a_packed_environment_that_has_no_room_makes_the_machine_unfit(directory: RunDirectory, tmp_path: Path) -> None:
    with tarfile.open(directory.root / "env.tar.gz", "w:gz") as archive:
        archive.add(python_that(tmp_path, imports=True), "bin/python3")
    full = tmp_path / "full" / "tar"
    full.parent.mkdir()
    full.write_text('#!/bin/sh\n[ "$1" = -tzf ] && exec /bin/tar "$@"\necho "No space left on device" >&2\nexit 2\n')
    full.chmod(0o755)
    done = launched(directory, GRIDML_PACKED="env.tar.gz", PATH=f"{full.parent}:{os.environ['PATH']}")
    assert done.returncode == UNFIT


def test_the_launcher_says_where_the_chirp_proxy_is(directory: RunDirectory, tmp_path: Path) -> None:
    tells = python_that(tmp_path, imports=True)
    tells.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "proxy $GRIDML_CHIRP_CONFIG"\n')
    done = launched(directory, GRIDML_PYTHON=str(tells), _CONDOR_CHIRP_CONFIG="/scratch/.chirp.config")
    assert (done.returncode, done.stdout) == (0, "proxy /scratch/.chirp.config\n"), done.stderr

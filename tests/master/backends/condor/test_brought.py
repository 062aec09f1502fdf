"""numba in the job of a program of stages: when it is sent, what the archive holds, and which Python runs it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridml.model.loading import load
from gridml.protocol import bundle
from master.backends.condor.options import CondorOptions
from master.backends.condor.submit_description import (
    LAUNCHER,
    archive_name,
    bring_numba,
    brings_numba,
    description,
    prepare,
)
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from pools import pool
from pools.pool import Pool
from pools.release import NoCondor
from pools.submitted import Submitted
from tests.support.bare_python import bare_python

PROGRAMS = Path(__file__).parents[3] / "programs"
EPOCHS = 20
STAGES, PLAIN = PROGRAMS / "topics.py", PROGRAMS / "slow_count.py"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    return directory


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (CondorOptions(container_image="docker://image"), "image"),
        (CondorOptions(packed="/files/env.tar.gz"), "packed"),
        (CondorOptions(without_numba=True), "machines"),
    ],
)
def test_an_environment_of_the_users_own_has_numba_itself(options: CondorOptions, reason: str) -> None:
    brings, because = brings_numba(True, options)
    assert not brings and reason in because
    assert brings_numba(True, CondorOptions())[0] and not brings_numba(False, CondorOptions())[0]


def test_the_job_of_a_program_of_stages_brings_numba_and_no_machine_code(directory: RunDirectory) -> None:
    settings = Settings(STAGES, backend="condor", options=CondorOptions())
    bring_numba(load(PLAIN), CondorOptions(), directory)
    assert not (directory.root / archive_name()).exists()
    bring_numba(load(STAGES), CondorOptions(), directory)
    found = description(settings, directory, {})
    name = archive_name()
    assert found["transfer_input_files"].split(", ")[-1] == str(directory.place / name)
    assert f"GRIDML_BROUGHT='{name}'" in found["environment"] and platform.machine() in name
    with tarfile.open(directory.root / name) as tar:
        names = tar.getnames()
    assert {"numba/__init__.py", "llvmlite/__init__.py"} <= {*names}
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]
    own = replace(settings, options=CondorOptions(packed="/files/env.tar.gz"))  # after a resume with another option
    assert "GRIDML_BROUGHT" not in description(own, directory, {})["environment"]


def launched(directory: RunDirectory, python: Path, archive: bool = True) -> subprocess.CompletedProcess[str]:
    """Run worker.sh where gridml's code prints whether numba works, and which."""
    prepare(directory, description(Settings(STAGES, backend="condor", options=CondorOptions()), directory, {}))
    code = "import remote.fitness as f, sys\ntry: f.demand_numba()\nexcept f.Unequipped as e: sys.exit(f'{e}')\n"
    code += "import numba\nprint(numba.njit(lambda x: x + 1)(1), numba.__file__)"
    (directory.root / "gridml.pyz").write_text(f"import sys; sys.path.append({str(PROGRAMS.parents[1])!r})\n{code}")
    environment = {"GRIDML_PYTHON": str(python), "PATH": "/usr/bin:/bin"}
    if archive:
        environment["GRIDML_BROUGHT"] = archive_name()
    return subprocess.run(
        ["/bin/sh", LAUNCHER], cwd=directory.root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.real
def test_a_python_without_numba_runs_that_of_the_job_and_one_with_numba_its_own(
    directory: RunDirectory, tmp_path: Path
) -> None:
    bring_numba(load(STAGES), CondorOptions(), directory)
    done = launched(directory, Path(sys.executable))
    assert done.returncode == 0 and done.stdout.startswith("2 "), done
    assert not (directory.root / "brought").exists()
    bare = bare_python(tmp_path / "bare")
    for _ in range(2):  # the second time in the same folder, after a checkpoint
        done = launched(directory, bare)
        assert (done.returncode, done.stdout) == (0, f"2 {directory.place}/brought/numba/__init__.py\n"), done
        assert not (directory.root / archive_name()).exists()


@pytest.mark.real
def test_one_message_names_numba_and_says_what_to_do(directory: RunDirectory, tmp_path: Path) -> None:
    bare = bare_python(tmp_path / "bare")
    done = launched(directory, bare, archive=False)
    (line,) = done.stderr.splitlines() + done.stdout.splitlines()
    assert "compiled by numba" in line and "No module named 'numba'" in line and "--packed" in line
    with tarfile.open(directory.root / archive_name(), "w:gz") as tar:  # of a Python of another version
        (tmp_path / "numba").mkdir()
        (tmp_path / "numba" / "__init__.py").write_text("from numba import _dispatcher\n")
        tar.add(tmp_path / "numba", "numba")
    done = launched(directory, bare)
    (line,) = done.stderr.splitlines() + done.stdout.splitlines()
    assert "_dispatcher" in line and archive_name() in line and "--container-image" in line


@pytest.fixture
def firewalled(tmp_path: Path) -> Iterator[Pool]:
    try:
        there = pool.firewalled(tmp_path / "pool", workers=2, subnet=83)
    except NoCondor as why:
        pytest.skip(str(why))
    yield there
    pool.take_down(there)


@pytest.mark.real
def test_topics_on_firewalled_machines_without_numba_that_are_evicted(firewalled: Pool, tmp_path: Path) -> None:
    """Each vertex of each pass is credited once, and counts are those recounted from the topics that came home."""
    root, options = tmp_path / "run", ("--epochs", str(EPOCHS), "--chunk", "20")
    python = str(bare_python(tmp_path / "bare"))
    run = Submitted(firewalled, root, "--python", python, *options, workers=2, program=STAGES)
    for evicted, how in enumerate(((), ("-fast",), ())):
        run.wait(lambda now, goal=evicted * EPOCHS * 30: int(str(now["all_credited"])) > goal, "more credits")  # type: ignore[misc]
        for job in run.jobs():
            firewalled.tool("condor_vacate_job", *how, job.split()[0])
    run.wait(lambda now: now["status"] == "finished", "the end of the run")
    report = json.loads(run.gridml("report", str(root), "--json"))
    assert report["kills"] > 0
    assert [(e["credited"], e["duplicated"], e["lost"]) for e in report["epochs"]] == [(120, 0, 0)] * EPOCHS
    module: dict[str, Any] = {}
    exec(STAGES.read_text(), module)
    offsets, words = module["tokens"]()
    count = np.zeros((50, 8), np.int64)
    np.add.at(count, (words, np.load(root / "fields" / "Text:words.topic.npy")), 1)
    assert set(np.load(root / "fields" / "Text:words.visits.npy").tolist()) == {EPOCHS}
    _, final = bundle.decode((root / "final.safetensors").read_bytes())
    np.testing.assert_array_equal(final["Word/count"], count)
    assert report["epochs"][-1]["metrics"] == {"counted": int(offsets[-1]), "apart": 0}

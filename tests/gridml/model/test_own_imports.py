"""Modules next to a program take precedence for the program's imports, and for no other code in the process."""

from __future__ import annotations

import builtins
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gridml
import master
from gridml.errors import ProgramError
from gridml.model import own_imports
from gridml.model.loading import load
from master.store.saved_program import SavedProgram, contents_of

TALLY = (Path(__file__).parents[2] / "programs" / "tally.py").read_text()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Remove a program's modules from the process after a test."""
    path, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    importing = builtins.__import__, importlib.import_module
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    builtins.__import__, importlib.import_module = importing
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def written(folder: Path, text: str, **files: str) -> Path:
    """Write a program that begins with `text`, and files by path, with `__` for a slash, "package" for __init__.py."""
    for name, content in {**files, "program": f"{text}\n{TALLY}"}.items():
        path = folder / f"{name.replace('__', '/').replace('package', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder / "program.py"


def loaded(folder: Path, text: str, **files: str) -> Any:
    load(written(folder, text, **files))
    return sys.modules["gridml_program_program"]


IMPORTS = [  # (the program's import, the value of `got`)
    ("import master; got = master.SCALE", 2),
    ("import master as m; got = m.SCALE", 2),
    ("from master import SCALE as got", 2),
    ("from master import *; got = SCALE", 2),
    ("got = __import__('master').SCALE", 2),
    ("import importlib; got = importlib.import_module('master').SCALE", 2),
    ("from importlib import import_module; got = import_module('remote.deep.below').BELOW", 3),
    ("import remote.deep.below; got = remote.deep.below.BELOW", 3),
    ("import remote.deep.below as below; got = below.BELOW", 3),
    ("from remote.deep import below; got = below.BELOW", 3),
    ("from remote.deep.below import BELOW as got", 3),
    ("import remote; got = remote.UP", 3),
    ("from ami.part import PART as got", 4),  # a folder without __init__.py
    ("import chunk_model; got = chunk_model.other().TURN", 5),
    ("import between_of_master; got = between_of_master.master.SCALE", 2),
    ("import statistics; got = statistics.MINE", 6),
    ("import comm; got = comm.of_mine()", 7),
    ("import six; got = six.MINE", 8),
    ("import pools; got = pools.MINE", 9),
    ("def late():\n    import master\n    return master.SCALE\ngot = late()", 2),
    ("class A:\n    from master import SCALE\ngot = A.SCALE", 2),
]
FILES = {
    "master": "SCALE = 2",
    "remote__package": "from .deep import below\nfrom remote.deep.below import BELOW as UP",
    "remote__deep__package": "",
    "remote__deep__below": "from .. import deep\nBELOW = 3",
    "ami__part": "PART = 4",
    "chunk_model": "import turn_of_chunk_model\nTURN = 5\ndef other():\n    return turn_of_chunk_model.chunk_model",
    "turn_of_chunk_model": "import chunk_model",
    "between_of_master": "import master",
    "statistics": "MINE = 6",
    "comm": "def of_mine():\n    return 7",
    "six": "MINE = 8",
    "pools": "MINE = 9",
}


@pytest.mark.parametrize(("text", "got"), IMPORTS)
@pytest.mark.parametrize("kept", [False, True])
def test_the_programs_folder_goes_first_for_what_it_imports(tmp_path: Path, text: str, got: int, kept: bool) -> None:
    program = written(tmp_path / "theirs", text, **FILES)
    if kept:  # as in workers, and for evaluate
        copy = SavedProgram(tmp_path / "copy", program)
        copy.keep(contents_of(program))
        for name in copy.files:
            (tmp_path / "theirs" / name).write_text("raise ImportError('not what the run keeps')")
    load(tmp_path / "copy" / "program.py" if kept else program, program if kept else None)
    assert sys.modules["gridml_program_program"].got == got


def test_others_keep_theirs(tmp_path: Path) -> None:
    programs = "gridml_program_", "gridml_own_"  # modules of other tests, which loading a program may remove
    ours = {name: module for name, module in sys.modules.items() if not name.startswith(programs)}
    loaded(tmp_path, "import master, comm, six, statistics", **FILES)
    import comm

    assert "site-packages" in str(comm.__file__)
    assert importlib.import_module("statistics").mean([1, 3]) == 2
    from master.store.rundir import RunDirectory

    assert Path(str(master.__file__)).parents[1] == Path(gridml.__file__).parents[1]
    assert RunDirectory and all(sys.modules[name] is ours[name] for name in ours if name in sys.modules)


def test_a_module_without_a_conflict_keeps_its_name(tmp_path: Path) -> None:
    importing = builtins.__import__
    loaded(tmp_path, "import plain_of_a_program", plain_of_a_program="")
    assert "plain_of_a_program" in sys.modules and builtins.__import__ is importing


def test_two_programs_have_each_their_own_modules_of_one_name(tmp_path: Path) -> None:
    text = "import twice_there\ndef late():\n    import twice_late\n    return twice_there.A, twice_late.A"
    first, second = (loaded(tmp_path / f"{n}", text, twice_there=f"A = {n}", twice_late=f"A = {n}") for n in (1, 2))
    assert (first.late(), second.late(), first.late()) == ((1, 1), (2, 2), (1, 1))


def test_what_they_make_can_be_pickled(tmp_path: Path) -> None:
    """Forked processes, such as a DataLoader's workers, find the program's modules."""
    program = loaded(tmp_path, "import comm", comm="class Row:\n    pass\ndef made():\n    return Row()")
    row = program.comm.made()
    assert isinstance(pickle.loads(pickle.dumps(row)), program.comm.Row)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import master.no_such", "No module named 'master.no_such'; 'master' is not a package"),
        ("import remote.no_such", "No module named 'remote.no_such'"),
        ("from master import no_such", "cannot import name 'no_such'"),
        ("import six.no_such", "six"),
        ("import ami", "relative import"),  # as in a script, which is in no package
        ("import chunk_model.up", "relative import"),
    ],
)
def test_what_is_not_there_is_called_as_the_program_calls_it(tmp_path: Path, text: str, said: str) -> None:
    files = {"ami": "from . import other", "chunk_model__package": "", "chunk_model__up": "from .. import other"}
    with pytest.raises(ProgramError, match=said) as failed:
        loaded(tmp_path, text, **{**FILES, "ami__part": "", **files, "chunk_model": "", "other": ""})
    assert "own_imports.py" not in str(failed.value)


def test_an_environment_in_the_folder_has_what_is_installed_in_it(tmp_path: Path) -> None:
    """Packages of a virtual environment below the program's folder are not the program's own."""
    installed = tmp_path / "venv" / "site"
    installed.mkdir(parents=True)
    (installed / "asks_for_comm.py").write_text("import comm\nfile = comm.__file__")
    sys.path.insert(0, str(installed))
    program = loaded(tmp_path, "import asks_for_comm, comm", comm="")
    assert program.comm.__file__ == str(tmp_path / "comm.py")
    assert "site-packages" in program.asks_for_comm.file


SCRIPT = """
import {first}
import {second}
{program}
def late():
    import importlib, master, remote.part
    assert importlib.import_module("master") is master and master.SCALE == 2 and remote.part.PART == 3
    return master
if __name__ == "__main__":
    import pickle
    before = master
    run = gridml.simulate(program, workers=1, cost="t_x=0.01", run_dir="run")
    assert run.report().credited == COUNT * EPOCHS
    assert late() is before is master
    assert type(pickle.loads(pickle.dumps(master.Row()))) is master.Row
    from sys import modules
    assert "RunDirectory" in vars(modules["master.store.rundir"])
    print("done")
"""
BESIDE = {
    "master": "SCALE = 2\nclass Row: pass",
    "remote__package": "",
    "remote__part": "from . import other\nPART = 3",
    "remote__other": "",
}


@pytest.mark.real
@pytest.mark.parametrize(("first", "second"), [("gridml", "master"), ("master", "gridml")])
def test_a_script_has_its_modules_and_gridml_has_its_own(tmp_path: Path, first: str, second: str) -> None:
    """Python finds a script's own modules first, also for gridml's imports."""
    written(tmp_path, "", **BESIDE)
    (tmp_path / "script.py").write_text(SCRIPT.format(first=first, second=second, program=TALLY))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr


@pytest.mark.real
@pytest.mark.parametrize("named", [("-m", "gridml"), ("-P", "-m", "gridml")])
def test_a_run_has_them_on_workers_and_in_evaluate(tmp_path: Path, named: tuple[str, ...]) -> None:
    """Workers start in the program's folder, which is also on Python's path, so its modules come before gridml's."""
    text = "import master\nfrom comm import of_mine\ndef evaluate():\n"
    text += "    import remote.part\n    return {'scale': master.SCALE, 'part': remote.part.PART}\n"
    program = written(tmp_path, text, **BESIDE, comm="def of_mine():\n    return 7")
    late = "    documents.visits += 1\n"
    changed = program.read_text().replace(late, f"{late}    import remote.part\n    assert remote.part.PART == 3\n")
    program.write_text(changed.replace("(graph, train,", "(graph, train, evaluate,"))
    paths = {"PYTHONPATH": "."} if named[0] == "-P" else {}
    for verb in (["run", "program.py", "--workers=2"], ["resume"]):
        command = [sys.executable, *named, *verb, *(["--run-dir=run"] if verb[0] == "run" else ["run", "--epochs=3"])]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0 and "finished" in done.stdout, done.stdout + done.stderr
    reported = subprocess.run(
        [sys.executable, "-P", "-m", "gridml", "report", "run", "--json"], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    assert b'"scale": 2' in reported


def test_an_import_in_a_loop_looks_at_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook sees every import of the process, also those in functions, such as numba's compiler."""
    text = "def again():\n    import json\n    import master\n    return master.SCALE"
    module = loaded(tmp_path, text, master__package="SCALE = 2")
    looks = list[str]()
    resolved = own_imports._resolved
    monkeypatch.setattr(own_imports, "_resolved", lambda path: looks.append(path) or resolved(path))
    assert {module.again() for _ in range(100)} == {2}
    importlib.import_module("json")
    assert len(looks) <= 1

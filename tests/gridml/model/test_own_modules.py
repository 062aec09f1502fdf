"""A program's own modules are found, distinguished from installed ones, and loaded from a copy."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridml
from gridml.errors import LedgerError, ProgramError
from gridml.model import own_modules
from gridml.model.loading import load
from gridml.model.own_modules import own_files
from master.planning.trial import _shadowed_modules
from master.store.saved_program import SavedProgram, contents_of

PROGRAM = Path(__file__).parents[2] / "programs" / "slow_count.py"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Remove a program's modules from the process after a test."""
    path, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "theirs"
    made.mkdir()
    return made


def write(folder: Path, **files: str) -> Path:
    """Write files by path, with `__` for a slash and "package" for __init__.py; return the path of the program."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/').replace('package', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "program.py"


def found(program: Path) -> set[str]:
    files = own_files(program).files
    assert next(iter(files)) == program.name
    return set(files) - {program.name}


def test_each_file_is_parsed_once_however_much_is_asked_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write(folder, program="import one, sys", one="import program", sys="")
    parsed: list[str] = []
    read = own_modules._imported

    def counted(file: Path, package: str) -> list[str]:
        parsed.append(file.name)
        return read(file, package)

    monkeypatch.setattr(own_modules, "_imported", counted)
    assert any("sys.py" in warning for warning in _shadowed_modules(program))
    assert sorted(parsed) == ["one.py", "program.py"]


def test_modules_beside_a_program_are_its_own(folder: Path) -> None:
    program = write(
        folder,
        program="import one\nfrom two import what\ndef f():\n    import inside as other\n",
        one="import deeper",
        two="",
        inside="",
        deeper="import one  # in a circle",
        unused="",
    )
    assert found(program) == {"one.py", "two.py", "inside.py", "deeper.py"}


def test_packages_bring_what_is_imported_of_them(folder: Path) -> None:
    program = write(
        folder,
        program="import kit.tools.saw\nfrom kit import name, drill\n",
        kit__package="from . import always",
        kit__always="from .tools import hammer",
        kit__drill="from .tools.bits import *\nfrom ..beyond import nothing",
        kit__unused="",
        kit__tools__package="",
        kit__tools__saw="",
        kit__tools__hammer="from .. import glue",
        kit__tools__bits="",
        kit__glue="",
    )
    inside = {"always", "drill", "glue", "tools/__init__", "tools/saw", "tools/hammer", "tools/bits", "__init__"}
    assert found(program) == {f"kit/{name}.py" for name in inside}


def test_a_folder_without_an_init_is_a_package_too(folder: Path) -> None:
    assert found(write(folder, program="import loose.part", loose__part="")) == {"loose/part.py"}


def test_what_lies_beside_a_program_goes_before_what_is_installed(folder: Path) -> None:
    """Own modules come before the standard library, as for a script, except for modules that are already loaded; gridml
    stays gridml."""
    program = write(
        folder,
        program="import json, numpy.linalg, comm, master, sys, os, gridml, nothing_of_the_kind",
        json="",
        numpy__package="",
        comm="",
        master="",
        sys="",
        os="",
        gridml__package="",
    )
    assert found(program) == {"json.py", "numpy/__init__.py", "comm.py", "master.py"}


def test_a_folder_without_an_init_comes_after_what_is_installed(folder: Path) -> None:
    """Data folders may have the names of packages, also of gridml's, and are not taken for modules."""
    program = write(
        folder, program="import yaml.nodes, torch, remote.part", yaml__nodes="", remote__part="", torch__a=""
    )
    assert found(program) == {"remote/part.py"}
    (folder / "master").mkdir()
    write(folder, program="import master")
    assert found(program) == set()


def test_what_was_installed_beside_a_program_is_not_sent_where_it_is_elsewhere_too(folder: Path) -> None:
    """Packages from pip install --target are not copied: two copies of numpy cannot share a process."""
    program = write(folder, program="import numpy, mine_beside_numpy", numpy__package="", mine_beside_numpy="")
    (folder / "numpy-2.0.dist-info").mkdir()
    assert found(program) == {"mine_beside_numpy.py"}


def hidden(program: Path) -> dict[str, str]:
    return dict(own_files(program).hidden())


def test_what_is_hidden_is_named_with_what_hides_it(folder: Path) -> None:
    program = write(
        folder,
        program="import time, gridml, numpy\nfrom torch import mine\nimport both.part, helper_of_hidden, comm, master",
        helper_of_hidden="import sys",
        time="",
        sys="",
        gridml="",
        torch__mine="",
        both="",
        both__package="",
        both__part="",
        both__part__package="",
        comm="",
        master="",
        os="",  # not imported
    )
    hidden_by = hidden(program)
    assert hidden_by.keys() == {"time.py", "sys.py", "gridml.py", "torch/mine.py", "both.py", "both/part.py"}
    assert hidden_by["time.py"] == "Python's own module time, which is loaded before any program"
    assert hidden_by["gridml.py"] == "gridml itself"
    assert hidden_by["torch/mine.py"].startswith("torch of /") and "without __init__.py" in hidden_by["torch/mine.py"]
    assert (hidden_by["both.py"], hidden_by["both/part.py"]) == (
        "the package both/ next to it",
        "the package both/part/ next to it",
    )


def test_what_the_search_path_has_first_and_something_loaded_hides_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    write(library, program="", master="", numpy__package="", mine_on_the_path="")
    monkeypatch.syspath_prepend(library)
    program = write(
        folder, program="import master, numpy, mine_on_the_path, scipy, os, time, helper", helper="import json"
    )
    importlib.import_module("mine_on_the_path")
    hidden_by = dict(own_files(program).hidden_on_path())
    assert {Path(path).relative_to(library).as_posix() for path in hidden_by} == {"master.py", "numpy/__init__.py"}
    assert hidden_by[str(library / "master.py")] == str(Path(gridml.__file__).parents[1] / "master" / "__init__.py")
    write(folder, master="")  # modules next to the program come first
    assert [*dict(own_files(program).hidden_on_path())] == [str(library / "numpy" / "__init__.py")]


def test_nothing_is_hidden_in_a_checkout_or_by_data(folder: Path) -> None:
    assert hidden(write(folder, program="import torch, numpy.linalg", torch__data__mine="", numpy__notes="")) == {}
    root = Path(gridml.__file__).parents[1]
    program = write(folder, program="import gridml, master.store, pools")
    assert not {"gridml", "master", "pools"} & {name.split("/")[0] for name in own_files(program, root).files}


def test_a_module_that_is_imported_by_its_name_is_found_when_it_is_loaded(folder: Path) -> None:
    text = "import importlib\nimportlib.import_module('by_name_of_own_modules')\n" + PROGRAM.read_text()
    program = write(folder, program=text, by_name_of_own_modules="")
    assert found(program) == set()
    load(program)
    assert found(program) == {"by_name_of_own_modules.py"}


def test_an_environment_in_the_folder_is_not_sent(folder: Path) -> None:
    """Modules of an environment in the program's folder have other names than their paths there would give."""
    installed = write(folder / "venv" / "lib", installed_in_a_venv="").parent
    sys.path.insert(0, str(installed))
    text = "import installed_in_a_venv\n" + PROGRAM.read_text()
    program = write(folder, program=text)
    load(program)
    assert found(program) == set()


@pytest.mark.parametrize("text", ["import helper\nthis is no Python", "\0", "import helper\n\x80"])
def test_what_cannot_be_parsed_is_left_to_who_runs_it(folder: Path, text: str) -> None:
    program = write(folder, program="import broken", helper="")
    (folder / "broken.py").write_bytes(text.encode("latin-1"))
    assert found(program) == {"broken.py"}


def copied(program: Path, to: Path) -> SavedProgram:
    kept = SavedProgram(to, program)
    kept.keep(contents_of(program))
    return kept


def test_a_copy_is_loaded_as_what_it_was_made_of(folder: Path, tmp_path: Path) -> None:
    """The saved program has its own modules as they were, and they find their files."""
    text = "import pathlib, own_of_a_copy, kit_of_a_copy.part\nHERE = pathlib.Path(__file__)\n" + PROGRAM.read_text()
    beside = "import pathlib\nREAD = (pathlib.Path(__file__).parent / 'words.txt').read_text()\n"
    program = write(
        folder,
        program=text,
        own_of_a_copy=f"{beside}SPEED = 1\n",
        kit_of_a_copy__package="",
        kit_of_a_copy__part="A = 1",
    )
    (folder / "words.txt").write_text("beside")
    kept = copied(program, tmp_path / "copy")
    assert kept.files == {"program.py", "own_of_a_copy.py", "kit_of_a_copy/__init__.py", "kit_of_a_copy/part.py"}
    assert [path.name for path in kept.entries] == ["program.py", "kit_of_a_copy", "own_of_a_copy.py"]
    write(
        folder, program="raise ImportError", own_of_a_copy="raise ImportError", kit_of_a_copy__part="raise ImportError"
    )
    load(kept.program, program)
    module = sys.modules["gridml_program_program"]
    assert (program, 1, "beside") == (module.HERE, module.own_of_a_copy.SPEED, module.own_of_a_copy.READ)
    assert module.kit_of_a_copy.part.A == 1


def test_what_is_not_kept_is_found_where_the_program_is(folder: Path, tmp_path: Path) -> None:
    program = write(folder, program="import importlib\n" + PROGRAM.read_text(), late_of_a_copy="A = 1")
    load(copied(program, tmp_path / "copy").program, program)
    assert __import__("late_of_a_copy").A == 1


def test_a_failure_in_a_copy_shows_the_lines_that_ran_under_the_name_that_is_known(
    folder: Path, tmp_path: Path
) -> None:
    program = write(folder, program="\nvalue = 1 / 0  # as it was\n")
    kept = copied(program, tmp_path / "copy")
    program.write_text("# something else\n# by now\n")
    with pytest.raises(ProgramError) as failed:
        load(kept.program, program)
    assert f'File "{program}", line 2' in str(failed.value)
    assert "value = 1 / 0  # as it was" in str(failed.value)


def test_what_has_changed_is_named(folder: Path, tmp_path: Path) -> None:
    program = write(folder, program="import first, second", first="", second="", third="")
    kept = copied(program, tmp_path / "copy")
    before = kept.digest()
    assert kept.altered() == []
    write(folder, first="A = 1", second="import third")
    assert kept.altered() == ["first.py", "second.py"]
    kept.keep(contents_of(program))
    assert (kept.altered(), kept.digest() == before) == ([], False)
    write(folder, program="import first")
    assert kept.altered() == ["program.py"]
    kept.keep(contents_of(program))
    assert kept.files == {"program.py", "first.py"}
    shutil.rmtree(folder)
    assert kept.altered() == ["program.py", "first.py"]


def test_a_copy_that_is_damaged_is_made_again_or_refused(folder: Path, tmp_path: Path) -> None:
    program = write(folder, program="import first", first="A = 1")
    kept = copied(program, tmp_path / "copy")
    known = kept.digest()
    kept.repair(known)
    for harm in (
        lambda: (kept.folder / "first.py").write_text("A = 2"),
        lambda: (kept.folder / "first.py").unlink(),
        lambda: kept.program.unlink(),
        lambda: shutil.rmtree(kept.folder),
    ):
        harm()
        kept.repair(known)
        assert kept.digest() == known
    write(folder, first="A = 3")
    kept.repair(known)  # it is intact, whatever the state of the original
    (kept.folder / "first.py").write_text("A = 2")
    with pytest.raises(LedgerError, match=r"neither is .* --with-changes"):
        kept.repair(known)
    kept.keep(contents_of(program))
    kept.repair(known)  # as left by `--with-changes` if its master was killed before it recorded the change
    assert (kept.folder / "first.py").read_text() == "A = 3"
    shutil.rmtree(folder)
    with pytest.raises(LedgerError, match="neither is"):
        kept.repair(known)


def test_a_program_in_the_folder_of_copies_is_its_own(folder: Path) -> None:
    program = write(folder, program="A = 1")
    kept = SavedProgram(folder, program)
    kept.keep(contents_of(program))
    assert (kept.program, kept.altered()) == (program, [])


def test_a_copy_is_loaded_in_a_process_of_its_own(folder: Path, tmp_path: Path) -> None:
    """It is loaded as in a worker, which has no access to the original."""
    program = write(folder, program="import far_away\n" + PROGRAM.read_text(), far_away="A = 1")
    kept = copied(program, tmp_path / "copy")
    shutil.rmtree(folder)
    script = f"from pathlib import Path; from gridml.model.loading import load; load(Path({str(kept.program)!r}), "
    subprocess.run([sys.executable, "-c", f"{script}Path({str(program)!r}))"], check=True)


def test_packages_find_their_own_data(folder: Path, tmp_path: Path) -> None:
    """A package can read its data files in every usual way."""
    reads = (
        "import importlib.resources, inspect, pkgutil\n"
        "DATA = importlib.resources.files(__package__).joinpath('words.txt').read_text()\n"
        "AGAIN = pkgutil.get_data(__package__, 'words.txt')\n"
        "def source():\n    return inspect.getsource(source)\n"
    )
    text = "import kit_with_data\n" + PROGRAM.read_text()
    program = write(folder, program=text, kit_with_data__package=reads)
    (folder / "kit_with_data" / "words.txt").write_text("beside")
    kept = copied(program, tmp_path / "copy")
    write(folder, kit_with_data__package="raise ImportError")
    load(kept.program, program)
    module = sys.modules["kit_with_data"]
    assert (module.DATA, module.AGAIN) == ("beside", b"beside")
    assert "inspect.getsource" in module.source()


def test_a_link_to_a_program_is_that_program(folder: Path, tmp_path: Path) -> None:
    program = write(folder, program="import beside_a_link\n" + PROGRAM.read_text(), beside_a_link="A = 1")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "linked.py"
    link.symlink_to(program)
    kept = SavedProgram(tmp_path / "copy", link)
    kept.keep(contents_of(link))
    assert (kept.files, kept.altered()) == ({"linked.py", "beside_a_link.py"}, [])
    write(folder, beside_a_link="A = 2")
    assert kept.altered() == ["beside_a_link.py"]
    load(kept.program, link)
    assert sys.modules["beside_a_link"].A == 1


def test_a_copy_is_whole_or_not_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write(folder, program="import first", first="A = 1")
    kept = copied(program, tmp_path / "copy")
    before = kept.digest()
    write(folder, program="import first, second", first="A = 2", second="A = 2")
    for fails_at in range(3):
        writes = iter(range(10))

        def failing(path: Path, payload: bytes, writes: Iterator[int] = writes, fails_at: int = fails_at) -> None:
            if next(writes) == fails_at:
                raise OSError(28, "No space left on device")
            path.write_bytes(payload)

        monkeypatch.setattr("master.store.saved_program.bundle.write_atomic", failing)
        with pytest.raises(OSError, match="No space"):
            kept.keep(contents_of(program))
        assert (kept.digest(), kept.files) == (before, {"program.py", "first.py"})


def test_an_original_that_cannot_be_read_is_not_needed(folder: Path, tmp_path: Path) -> None:
    program = write(folder, program="import first", first="")
    kept = copied(program, tmp_path / "copy")
    (folder / "first.py").unlink()
    (folder / "first.py").mkdir()
    assert kept.altered() == ["first.py"]

"""Sources of a program: a file, a module, a package, or the cells of a notebook."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gridml
from gridml.api.program_file import source_of
from gridml.errors import ProgramError

PROGRAM = (Path(__file__).parents[2] / "programs" / "tally.py").read_text()


def imported(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(folder))
    for each in [each for each in sys.modules if each.partition(".")[0] == name.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, each)
    module = importlib.import_module(name)
    for each in [each for each in sys.modules if each.partition(".")[0] == name.partition(".")[0]]:
        monkeypatch.setitem(sys.modules, each, sys.modules[each])
    return module


def test_a_program_in_a_module_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "house_of_counts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WORDS = 5\n")
    (package / "models.py").write_text(f"from .sizes import WORDS as MANY\n{PROGRAM}")
    module = imported("house_of_counts.models", tmp_path, monkeypatch)
    source = source_of(module.program, "gridml.run")
    assert set(source.contents) == {"models.py", *(f"house_of_counts/{n}.py" for n in ("__init__", "models", "sizes"))}
    run = gridml.simulate(module.program, workers=1, cost="t_x=0.01", run_dir=tmp_path / "run")
    assert run.report().credited == module.COUNT * module.EPOCHS


def test_a_program_that_a_script_imports_is_that_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counts_of_a_script.py").write_text(PROGRAM)
    module = imported("counts_of_a_script", tmp_path, monkeypatch)
    monkeypatch.setattr(sys.modules["__main__"], "program_of_another", module.program, raising=False)
    assert source_of(module.program, "gridml.run").file == tmp_path / "counts_of_a_script.py"


def kernel(monkeypatch: pytest.MonkeyPatch, cells: list[str]) -> dict[str, object]:
    """Make this process look like a kernel that ran these cells; return its namespace."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for cell in cells:
        exec(cell, vars(main))
    vars(main)["In"] = cells
    shell = SimpleNamespace(user_ns=vars(main))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    return vars(main)


def test_cells_keep_the_modules_beside_their_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/somebody/my counts.ipynb")
    Path("sizes_of_cells.py").write_text("WORDS = 5\n")
    cells = ["from sizes_of_cells import WORDS as MANY", PROGRAM, "print(MANY)", "made = [MANY, program]"]
    namespace = kernel(monkeypatch, cells)
    contents = source_of(namespace["program"], "gridml.run").contents
    assert set(contents) == {"my_counts.py", "sizes_of_cells.py"}
    assert b"class Document" in contents["my_counts.py"] and b"MANY" not in contents["my_counts.py"]
    file = source_of(namespace["program"], "gridml.run").materialise(tmp_path / "run")
    assert file == tmp_path / "run" / "program" / "my_counts.py" and file.with_name("sizes_of_cells.py").is_file()


def test_a_program_of_the_prompt_has_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(PROGRAM, vars(main))
    with pytest.raises(ProgramError, match="was not defined in a file"):
        source_of(vars(main)["program"], "gridml.run")
